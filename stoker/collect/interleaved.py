"""Collection that lets something else be done while environments step, in the same thread.

A rollout is collected under the weights that there were when it began, though others come of what
is done meanwhile. Where they changed with every step, DQN ended worse: no episode goes in circles
for long then, and it does not learn to leave them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.collect.acting import Place
from stoker.collect.gather import Gatherer
from stoker.collect.in_step import InStepCollector
from stoker.collect.weights import Weights
from stoker.errors import StokerError
from stoker.storage.staged import StagedStorage

Meanwhile = Callable[[int], None]
"""Told how many turns it has left in this rollout, with this one."""


class InterleavedGatherer(Gatherer):
    """Instead of groups of environments with each other, all of them alternate with `meanwhile`."""

    def __init__(self, *given: Any, weights: Weights, meanwhile: Meanwhile) -> None:
        super().__init__(*given)
        self.groups = (slice(0, self.pool.n_envs),)
        self._weights, self._meanwhile, self._turns = weights, meanwhile, 0

    def begin(self, storage: StagedStorage, version: int) -> None:
        self._turns = storage.n_steps
        self._weights.publish(version)  # in one thread: there is nobody else to do it
        self._weights.take()
        super().begin(storage, version)

    def _send_on(self, place: Place) -> None:
        super()._send_on(place)
        self.go_on(self._turns)
        self._turns -= 1

    def go_on(self, turns: int) -> None:
        """Let `meanwhile` have its turn."""
        with self.clock.phase("update"):
            self._meanwhile(turns)


class InterleavedCollector(InStepCollector):
    """Once all environments have been told to step, something else has its turn; then they are
    heard, and what was to be done is done by the last turn.

    So there is nothing for two threads to take from each other, and the same seed gives the same
    bits, as in step.
    """

    on_last = False
    """Whether no rollout comes after the one last collected."""

    gatherer: InterleavedGatherer

    def __init__(self, gatherer: InterleavedGatherer, storage: StagedStorage) -> None:
        super().__init__(gatherer, storage)

    def collect(self, last: bool = False) -> StagedStorage:
        self.on_last = last
        try:
            return super().collect(last)
        except StokerError:
            self.gatherer.go_on(1)  # so that what can be saved is not half done
            raise
