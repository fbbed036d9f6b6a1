"""The arrays that environments write and the learner reads, one row an environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from stoker.types import EnvSpec, HostObs, StepBatch

_ALIGNMENT = 64  # a cache line, so that two workers never write to the same one by field
_SEEDS_END = 2**63 - 1


EVERYONE = slice(None)


class Infos(NamedTuple):
    """What an environment said beside its row: now, and of the episode that the step ended."""

    info: Mapping[str, Any]
    final: Mapping[str, Any] | None


class Rows:
    """All fields of N environments' steps in one block of memory, shared or not.

    A process pool lays the same rows over the same shared block in every worker; nothing is
    pickled when environments step.
    """

    def __init__(self, spec: EnvSpec, n_envs: int, memory: Any = None) -> None:
        self.spec, self.n_envs = spec, n_envs
        block = np.zeros(self.size(spec, n_envs), np.uint8) if memory is None else memory
        place = 0
        arrays: dict[str, np.ndarray] = {}
        for name, shape, dtype in _layout(spec, n_envs):
            arrays[name] = np.ndarray(shape, dtype, buffer=block, offset=place)
            place += padded(arrays[name].nbytes)
        self.action = arrays["action"]
        self.reward, self.valid = arrays["reward"], arrays["valid"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.action_mask = arrays["action_mask"] if spec.has_mask else None
        self.obs: HostObs = {leaf: arrays[f"obs.{leaf}"] for leaf in spec.observation}
        self.final_obs: HostObs = {leaf: arrays[f"final.{leaf}"] for leaf in spec.observation}
        self._seeds = arrays["seeds"]
        self._metrics = arrays["metrics"]
        self.metrics = dict(zip(spec.metric_names, self._metrics.T, strict=True))
        self._everyone = np.arange(n_envs)
        kept = ("action", *(f"final.{leaf}" for leaf in spec.observation))
        self._told = [array for name, array in arrays.items() if name not in kept and array.size]

    @staticmethod
    def size(spec: EnvSpec, n_envs: int) -> int:
        """Bytes of memory that the rows of `n_envs` environments need."""
        sizes = (np.dtype(d).itemsize * int(np.prod(s)) for _, s, d in _layout(spec, n_envs))
        return sum(map(padded, sizes))

    def batch(self, pick: slice | np.ndarray = EVERYONE) -> StepBatch:
        """The rows of a range of environments as views, or of any others, copied."""

        def of(array: np.ndarray) -> np.ndarray:  # `take` costs a quarter of an index
            return array[pick] if isinstance(pick, slice) else array.take(pick, 0)

        return StepBatch(
            env_ids=of(self._everyone),
            obs={leaf: of(array) for leaf, array in self.obs.items()},
            reward=of(self.reward),
            terminated=of(self.terminated),
            truncated=of(self.truncated),
            final_obs={leaf: of(array) for leaf, array in self.final_obs.items()},
            action_mask=None if self.action_mask is None else of(self.action_mask),
            valid=of(self.valid),
            metrics=dict(zip(self.spec.metric_names, of(self._metrics).T, strict=True)),
        )

    def to_bytes(self, env_ids: np.ndarray) -> bytes:
        """The rows of these environments without their actions, to be sent to another machine.

        Final observations are told of those whose episode has ended.
        """
        over = env_ids[self.terminated[env_ids] | self.truncated[env_ids]]
        parts = [array.take(env_ids, 0) for array in self._told]
        if over.size:
            parts += [array.take(over, 0) for array in self.final_obs.values()]
        return b"".join([part.tobytes() for part in parts])

    def from_bytes(self, env_ids: np.ndarray, told: bytes) -> int:
        """Write what `to_bytes` of these environments gave; the number of bytes read."""
        place = 0

        def read(array: np.ndarray, ids: np.ndarray) -> None:
            nonlocal place
            shape = (len(ids), *array.shape[1:])
            array[ids] = np.ndarray(shape, array.dtype, told, place)
            place += len(ids) * array[:1].nbytes

        for array in self._told:
            read(array, env_ids)
        over = env_ids[self.terminated[env_ids] | self.truncated[env_ids]]
        for array in self.final_obs.values() if over.size else ():
            read(array, over)
        return place

    def note_seed(self, row: int, seed: int | None) -> None:
        """An episode begins with `seed`; that of the one before is kept. Said twice, it is once."""
        fits = isinstance(seed, int | np.integer) and 0 <= seed < _SEEDS_END
        kept = int(seed) + 1 if seed is not None and fits else 0
        if kept != self._seeds[row, 0]:
            self._seeds[row] = kept, self._seeds[row, 0]

    def seed_of(self, row: int, before: bool = False) -> int | None:
        """The seed of the row's episode, or of the one before; None if it is not known."""
        kept = int(self._seeds[row, int(before)])
        return kept - 1 if kept else None

    def cut(self, row: int) -> None:
        """Mark the end of an episode that a fault cut off; `obs` is the next one's first."""
        self.reward[row] = 0.0
        self.terminated[row] = self.valid[row] = False
        self.truncated[row] = True
        for leaf, array in self.obs.items():
            self.final_obs[leaf][row] = array[row]  # nothing better is known of the last
        for values in self.metrics.values():
            values[row] = np.nan


def as_range(env_ids: np.ndarray) -> slice | np.ndarray:
    """`env_ids` as a range, where they are one, in order."""
    if not env_ids.size:
        return env_ids
    first, last = int(env_ids[0]), int(env_ids[-1])
    if last - first != len(env_ids) - 1 or (env_ids[1:] - env_ids[:-1] != 1).any():
        return env_ids
    return slice(first, last + 1)


def padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _layout(spec: EnvSpec, n: int) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    yield "action", (n, *spec.action.shape), spec.action.dtype
    yield "reward", (n,), np.float32
    yield "valid", (n,), np.bool_
    yield "terminated", (n,), np.bool_
    yield "truncated", (n,), np.bool_
    if spec.has_mask:
        yield "action_mask", (n, spec.mask_width), np.bool_
    for leaf, kind in spec.observation.items():
        yield f"obs.{leaf}", (n, *kind.shape), kind.dtype
        yield f"final.{leaf}", (n, *kind.shape), kind.dtype
    yield "seeds", (n, 2), np.int64  # of this episode and the one before, plus 1; 0 is unknown
    yield "metrics", (n, len(spec.metric_names)), np.float32
