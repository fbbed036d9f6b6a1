"""Overlapped collection: the next rollout is gathered while the last one is learned from."""

from __future__ import annotations

import queue
import threading

import numpy as np
import torch

from stoker.collect.gather import Gathered, Gatherer
from stoker.collect.in_step import InStepCollector
from stoker.collect.weights import Weights
from stoker.storage.rollout import RolloutStorage
from stoker.types import Clock


class OverlappedCollector(InStepCollector):
    """Gathers in a thread of its own, under the weights published last.

    While it is `ahead`, a rollout is begun as soon as the one before is handed over, so it is
    gathered under weights that are one iteration old when the learner gets it: never older. While
    it is not, the learner waits for fresh ones. There are two storages, one on each side.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        storages: tuple[RolloutStorage, RolloutStorage],
        weights: Weights,
        clock: Clock,
        ahead: bool = True,
    ) -> None:
        super().__init__(gatherer, storages[0])
        self._spare = storages[1]
        self._weights, self._learner_clock = weights, clock
        self.ahead = ahead
        self._boundary = gatherer.state()
        self._under_way = False
        self._closing = False
        self._orders: queue.SimpleQueue[tuple[RolloutStorage, int] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Gathered | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="stoker-collect", daemon=True)
        self._thread.start()

    def collect(self, last: bool = False) -> RolloutStorage:
        """The next full rollout; if this collector is `ahead`, the one after it is begun."""
        if not self._under_way:
            self._begin(self._storage)
        with self._learner_clock.phase("wait"):
            answer = self._answers.get()
        self._under_way = False
        if isinstance(answer, BaseException):
            raise answer
        self._note(answer)
        self._boundary = self.gatherer.state()
        full, self._storage, self._spare = self._storage, self._spare, self._storage
        if self.ahead and not last:
            self._begin(self._storage)
        return full

    def _begin(self, storage: RolloutStorage) -> None:
        with self.gatherer.on_its_stream():
            version = self._weights.take()  # now, not when the thread gets to it: the lag is 1
        self._under_way = True
        self._orders.put((storage, version))

    def publish(self) -> None:
        """The policy's weights have changed: the next rollout that is begun acts with them."""
        super().publish()
        self._weights.publish(self.version)
        if self.gatherer.stream is not None:
            # The storage learned from goes back to the collector, which writes on its own stream.
            over = torch.cuda.Event(blocking=True)  # sleeps: workers need the cores
            over.record()
            over.synchronize()  # sync: the update is over

    def state(self) -> dict[str, np.ndarray]:
        """As in step: a rollout that is under way will be gathered again from its beginning."""
        return self._boundary

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        self._finish()
        restarted = self.gatherer.restore(state)
        self._boundary = self.gatherer.state()
        return restarted

    def close(self) -> None:
        """Stop gathering; a rollout under way is given up."""
        self._closing = True
        self._orders.put(None)
        self._thread.join()

    def _finish(self) -> None:
        """Wait for the rollout under way, if there is one, and forget it."""
        if self._under_way:
            self._answers.get()
            self._under_way = False

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                self._answers.put(self.gatherer.fill(*order, wanted=lambda: not self._closing))
            except BaseException as error:  # the learner's thread raises it
                self._answers.put(error)
