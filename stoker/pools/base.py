"""The pool contract: what is the same wherever environments run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from stoker.errors import EnvError
from stoker.pools.spaces import ActionCodec
from stoker.types import EnvSpec, EpisodeJournal, LeafSpec, StepBatch


class BasePool(ABC):
    """A pool: `send` actions, `recv` whoever is ready, or `step` everyone. See `types.Pool`."""

    def __init__(self, spec: EnvSpec, n_envs: int) -> None:
        self.spec, self.n_envs = spec, n_envs
        self.codec = ActionCodec(spec.action)
        self._everyone = np.arange(n_envs)
        self.groups: tuple[slice, ...] = (slice(0, n_envs),)

    @abstractmethod
    def reset(self, seed: int, journal: EpisodeJournal | None = None) -> StepBatch:
        """Start every environment, or bring each back to where `journal` says it stood."""

    @abstractmethod
    def send(self, actions: np.ndarray, env_ids: np.ndarray) -> None:
        """Hand policy actions [n, A] to the environments `env_ids` [n]; they begin to step."""

    @abstractmethod
    def recv(
        self, at_least: int, among: slice | None = None, patience: float | None = None
    ) -> StepBatch:
        """Wait until `at_least` environments that were sent to are done; all that are done."""

    @abstractmethod
    def close(self) -> None:
        """Close every environment; safe to call twice."""

    def step(self, actions: np.ndarray) -> StepBatch:
        """Step everyone with policy actions [N, A]."""
        self.send(actions, self._everyone)
        return self.recv(self.n_envs)

    def faults(self) -> dict[str, int]:
        """How often each kind of fault was mended so far; a pool that mends nothing has none."""
        return {}

    def __enter__(self) -> BasePool:
        return self

    def __exit__(self, *error: object) -> None:
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


def check_values(batch: StepBatch, spec: EnvSpec) -> StepBatch:
    """Refuse NaN, infinity and categories that the space has not, by environment and leaf."""
    _refuse("reward", "finite", batch.reward, np.isfinite(batch.reward), batch.env_ids)
    over = np.flatnonzero(batch.terminated | batch.truncated)
    for leaf, kind in spec.observation.items():
        _check_leaf(leaf, kind, batch.obs[leaf], batch.env_ids)
        if over.size:
            last = batch.final_obs[leaf][over]
            _check_leaf(f"final observation {leaf}", kind, last, batch.env_ids[over])
    return batch


def _check_leaf(name: str, kind: LeafSpec, values: np.ndarray, env_ids: np.ndarray) -> None:
    if kind.kind == "vector":
        _refuse(name, "finite", values, np.isfinite(values), env_ids)
    elif kind.kind == "discrete":
        categories = f"between {kind.start} and {kind.start + kind.n - 1}"
        good = (values >= 0) & (values < kind.n)
        _refuse(name, categories, values + kind.start, good, env_ids)


def _refuse(
    name: str, rule: str, values: np.ndarray, good: np.ndarray, env_ids: np.ndarray
) -> None:
    if good.all():
        return
    row = int(np.flatnonzero(~good.reshape(len(good), -1).all(axis=1))[0])
    raise EnvError(
        f"Environment {env_ids[row]} returned a {name} that is not {rule}: "
        f"{np.array2string(values[row], threshold=12)}. Mend it, or clip it in a wrapper."
    )


def read_mask(given: Any, env_id: int, spec: EnvSpec) -> np.ndarray:
    """The action mask [M] that an environment gave, with a choice left of each action."""
    mask = np.asarray(given, bool).reshape(-1)
    if mask.size != spec.mask_width:
        raise EnvError(
            f"Environment {env_id} gave an action mask of {mask.size} entries; it needs "
            f"{spec.mask_width}, one for each choice of each action."
        )
    place = 0
    for choices in spec.action.nvec:
        if not mask[place : place + choices].any():
            raise EnvError(
                f"Environment {env_id} gave an action mask that allows no action: "
                f"{mask.astype(int).tolist()}. Leave at least one choice of each action, or "
                "end the episode."
            )
        place += choices
    return mask
