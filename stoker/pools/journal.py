"""How environments are brought back to where they stood: their actions, kept and replayed."""

from __future__ import annotations

import numpy as np

from stoker.pools.spaces import ActionCodec
from stoker.types import EpisodeJournal, StepBatch


class JournalKeeper:
    """The actions of every running episode, so that a resumed run stands where it stood.

    Episodes longer than `limit` are not kept (their environments begin anew on resume): replaying
    costs as long as stepping did, and memory grows with it.
    """

    def __init__(self, n_envs: int, width: int, dtype: str, limit: int = 20_000) -> None:
        self._limit = limit
        self._episode = np.zeros(n_envs, np.int64)
        self._length = np.zeros(n_envs, np.int64)
        self._longest = 0  # no episode is longer; the true length is looked up when it matters
        self._actions = np.zeros((256, n_envs, width), dtype)

    def take(self, actions: np.ndarray, batch: StepBatch) -> None:
        """Note the actions that led to `batch`."""
        ids = batch.env_ids
        place = self._length[ids]
        self._longest += 1
        if self._longest >= min(len(self._actions), self._limit):
            self._longest = int(self._length.max()) + 1
            self._make_room(min(self._longest, self._limit))
            kept = place < self._limit
            self._actions[place[kept], ids[kept]] = actions[kept]
        else:
            self._actions[place, ids] = actions
        self._length[ids] += 1
        over = ids[batch.terminated | batch.truncated]
        if over.size:
            self._episode[over] += 1
            self._length[over] = 0

    def _make_room(self, steps: int) -> None:
        while len(self._actions) < steps:
            self._actions = np.concatenate([self._actions, np.zeros_like(self._actions)])

    def journal(self) -> EpisodeJournal:
        """Where every environment stands now."""
        length = np.where(self._length > self._limit, -1, self._length)
        longest = int(length.max(initial=0))
        return EpisodeJournal(self._episode.copy(), length, self._actions[:longest].copy())

    def restore(self, journal: EpisodeJournal, restarted: np.ndarray) -> None:
        """Go on from `journal`, where the environments `restarted` began an episode anew."""
        self._episode[:] = journal.episode
        self._length[:] = np.maximum(journal.length, 0)
        self._longest = int(self._length.max(initial=0))
        self._make_room(len(journal.actions))
        self._actions[: len(journal.actions)] = journal.actions
        self._episode[restarted] += 1
        self._length[restarted] = 0


def replay_of(
    journal: EpisodeJournal | None, env_id: int, codec: ActionCodec
) -> tuple[int, np.ndarray | None]:
    """Which episode an environment is in, and its environment actions so far (None: unknown)."""
    if journal is None:
        return 0, np.empty((0, *codec.spec.shape), codec.spec.dtype)
    episode, length = int(journal.episode[env_id]), int(journal.length[env_id])
    if length < 0:  # too long to have been kept: the next episode begins
        return episode + 1, None
    return episode, codec.encode(journal.actions[:length, env_id])
