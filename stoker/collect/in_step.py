"""Collection in step: the learner's turn comes when the rollout is full, and vice versa."""

from __future__ import annotations

import numpy as np
import torch

from stoker.collect.episodes import MetricSums
from stoker.collect.gather import Gathered, Gatherer
from stoker.storage.staged import StagedStorage


class InStepCollector:
    """Fills a rollout when asked to. Same seed, same machine, same bits."""

    ahead, may_fail = False, True

    def __init__(self, gatherer: Gatherer, storage: StagedStorage) -> None:
        self.gatherer, self.policy = gatherer, gatherer.policy
        self.version = 0
        """Of the learner's weights."""
        self.steps = self.late = 0
        """Transitions of the rollout last collected, and decisions whose outcome came too late."""
        self._storage = storage
        self._metrics = MetricSums()
        self._episodes: dict[str, float] = {}

    def collect(self, last: bool = False) -> StagedStorage:
        """A full rollout; `last` says that no other is wanted soon."""
        if self.gatherer.stream is not None:
            self.gatherer.stream.wait_stream(torch.cuda.current_stream())  # the last update
        self.gatherer.begin(self._storage, self.version)
        self._note(self.gatherer.complete(self._storage))
        return self._storage

    def publish(self) -> None:
        """The policy's weights have changed. Here it acts with the very same ones."""
        self.version += 1
        if self.gatherer.stream is not None:  # else who next waits would count the update's time
            over = torch.cuda.Event(blocking=True)  # sleeps: workers need the cores
            over.record()
            over.synchronize()  # sync: the update is over

    def _note(self, gathered: Gathered) -> None:
        self.steps, self.late = gathered.steps, gathered.late
        self._metrics.merge(gathered.metrics)
        self._episodes = gathered.episodes

    def metrics(self) -> dict[str, float]:
        """Of episodes, and the means of what environments reported since the last call."""
        own, self._metrics = self._metrics.means(), MetricSums()
        return {**self._episodes, **own}

    def state(self) -> dict[str, np.ndarray]:
        """Where environments and noise stood when the rollout last collected was full."""
        return self.gatherer.state()

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Go on from `state()`; the environments that had to begin anew, by number."""
        return self.gatherer.restore(state)

    def close(self) -> None:
        """Nothing runs between two calls."""
