"""What the collector remembers of episodes: their returns, and what they said of themselves."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

import numpy as np

from stoker.types import StepBatch

_WINDOW = 100  # episodes, as Stable-Baselines3 averages them


class EpisodeTracker:
    """Returns and lengths of running episodes, and of the last hundred that ended."""

    def __init__(self, n_envs: int) -> None:
        self.running_return = np.zeros(n_envs)
        self.running_length = np.zeros(n_envs, np.int64)
        self.ended = 0
        self._returns: deque[float] = deque(maxlen=_WINDOW)
        self._lengths: deque[int] = deque(maxlen=_WINDOW)

    def take(self, batch: StepBatch) -> None:
        """Count a step. Rows that are no transition count nothing; cut-off episodes are dropped."""
        ids = batch.env_ids
        self.running_return[ids] += np.where(batch.valid, batch.reward, 0.0)
        self.running_length[ids] += batch.valid
        over = batch.terminated | batch.truncated
        if 1 in over.tobytes():  # a third of the cost of `any`
            done = ids[over]
            whole = done[batch.valid[over]]
            self._returns.extend(self.running_return[whole].tolist())
            self._lengths.extend(self.running_length[whole].tolist())
            self.ended += len(whole)
            self.forget(done)

    def forget(self, env_ids: np.ndarray) -> None:
        """Begin these environments' episodes anew."""
        self.running_return[env_ids] = 0
        self.running_length[env_ids] = 0

    def metrics(self) -> dict[str, float]:
        """SB3's names; nothing until an episode has ended."""
        if not self._returns:
            return {}
        return {
            "rollout/ep_rew_mean": float(np.mean(self._returns)),
            "rollout/ep_len_mean": float(np.mean(self._lengths)),
        }

    def state(self) -> dict[str, np.ndarray]:
        return {
            "running_return": self.running_return,
            "running_length": self.running_length,
            "ended": np.array(self.ended),
            "returns": np.array(self._returns),
            "lengths": np.array(self._lengths, np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.running_return[:] = state["running_return"]
        self.running_length[:] = state["running_length"]
        self.ended = int(state["ended"])
        self._returns = deque(state["returns"].tolist(), maxlen=_WINDOW)
        self._lengths = deque(state["lengths"].tolist(), maxlen=_WINDOW)


class MetricSums:
    """Means of what environments report of themselves, over the steps that report it."""

    def __init__(self) -> None:
        self._reported: list[Mapping[str, np.ndarray]] = []
        self._sums: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(2))  # and counts

    def take(self, batch: StepBatch) -> None:
        if batch.metrics:  # summed later, all at once: environments are waiting now
            self._reported.append({name: value.copy() for name, value in batch.metrics.items()})

    def merge(self, other: MetricSums) -> None:
        """Count what `other` counted as well."""
        for name, sums in other._summed().items():
            self._sums[name] += sums

    def means(self) -> dict[str, float]:
        return {f"env/{name}": float(s / n) for name, (s, n) in self._summed().items() if n}

    def _summed(self) -> dict[str, np.ndarray]:
        for name in dict.fromkeys(name for some in self._reported for name in some):
            values = np.concatenate([some[name] for some in self._reported if name in some])
            known = values[np.isfinite(values)]
            self._sums[name] += known.sum(dtype=np.float64), known.size
        self._reported.clear()
        return self._sums
