"""The pool contract: what is the same wherever environments run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

import numpy as np

from stoker.errors import EnvError
from stoker.pools.spaces import ActionCodec
from stoker.types import EnvSpec, EpisodeJournal, StepBatch


class BasePool(ABC):
    """A pool: `send` actions, `recv` whoever is ready, or `step` everyone. See `types.Pool`."""

    def __init__(self, spec: EnvSpec, n_envs: int) -> None:
        self.spec, self.n_envs = spec, n_envs
        self.codec = ActionCodec(spec.action)
        self._everyone = np.arange(n_envs)

    @abstractmethod
    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment, or bring each back to where `journal` says it stood."""

    @abstractmethod
    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Hand policy actions [n, A] to the environments `env_ids` [n]; they begin to step."""

    @abstractmethod
    def recv(self, at_least: int) -> StepBatch:
        """Wait until `at_least` environments that were sent to are done; all that are done."""

    @abstractmethod
    def close(self) -> None:
        """Close every environment; safe to call twice."""

    def step(self, actions: np.ndarray) -> StepBatch:
        """Step everyone with policy actions [N, A]."""
        self.send(actions, self._everyone)
        return self.recv(self.n_envs)

    def __enter__(self) -> BasePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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


def check_finite(batch: StepBatch) -> StepBatch:
    """Refuse NaN and infinity at the first occurrence, by environment and leaf."""
    floats = {leaf: x for leaf, x in batch.obs.items() if x.dtype == np.float32}
    for name, array in {"reward": batch.reward, **floats}.items():
        if not np.isfinite(array).all():
            bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
            row = int(np.flatnonzero(bad)[0])
            raise EnvError(
                f"Environment {batch.env_ids[row]} returned a {name} that is not finite: "
                f"{np.array2string(array[row], threshold=12)}. Mend it, or clip it in a wrapper."
            )
    return batch
