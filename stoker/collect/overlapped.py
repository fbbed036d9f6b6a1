"""Overlapped collection: the next rollout is gathered while the last one is learned from."""

from __future__ import annotations

import queue
import threading

import numpy as np
import torch

from stoker.collect.gather import Gathered, Gatherer
from stoker.collect.in_step import InStepCollector
from stoker.collect.weights import Weights
from stoker.storage.staged import StagedStorage
from stoker.types import Clock

_Filled = tuple[Gathered, dict[str, np.ndarray]]
"""What came of a rollout, and where everything stood when it was full."""


class OverlappedCollector(InStepCollector):
    """Gathers in a thread of its own, under the weights published last.

    While it is `ahead`, a rollout is begun as soon as the one before is full, so it is gathered
    under weights that are one iteration old when the learner gets it: never older. While it is not,
    the learner waits for fresh ones. There are two storages, one on each side.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        storages: tuple[StagedStorage, StagedStorage],
        weights: Weights,
        clock: Clock,
        ahead: bool = True,
    ) -> None:
        super().__init__(gatherer, storages[0])
        self._spare = storages[1]
        self._weights, self._learner_clock = weights, clock
        self.ahead = ahead
        self._boundary = gatherer.state()
        self._start()

    def _start(self) -> None:
        if self.gatherer.stream is not None:  # which shall not read what is still to be written
            self.gatherer.stream.wait_stream(torch.cuda.current_stream())
        self._under_way = self._closing = False
        self._orders: queue.SimpleQueue[StagedStorage | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Filled | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="stoker-collect", daemon=True)
        self._thread.start()

    def collect(self, last: bool = False) -> StagedStorage:
        """The next full rollout; if this collector is `ahead`, the one after it is begun."""
        if not self._under_way:
            self._orders.put(self._storage)
        self._under_way = self.ahead and not last
        self._orders.put(self._spare if self._under_way else None)
        with self._learner_clock.phase("wait"):
            answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        gathered, self._boundary = answer
        self._note(gathered)
        full, self._storage, self._spare = self._storage, self._spare, self._storage
        return full

    def publish(self) -> None:
        """The policy's weights have changed: the next rollout that is begun acts with them."""
        self._weights.publish(self.version + 1)
        super().publish()  # which waits: what was learned from is written next, on another stream

    def state(self) -> dict[str, np.ndarray]:
        """As in step: a rollout that is under way will be gathered again from its beginning."""
        return self._boundary

    def restore(self, state: dict[str, np.ndarray]) -> np.ndarray:
        self.close()  # whatever was under way, or interrupted
        restarted = self.gatherer.restore(state)
        self._boundary = self.gatherer.state()
        self._start()
        return restarted

    def close(self) -> None:
        """Stop gathering; a rollout under way is given up."""
        self._closing = True
        self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        """Fill what is ordered; each answer waits for the next order, which may be to rest.

        So whoever gets a rollout cannot publish weights before the next one has taken its own, and
        environments are stepping again before the learner asks for the interpreter.
        """
        # OpenMP's own count is this thread's alone, and all cores where nobody says otherwise.
        torch.set_num_threads(torch.get_num_threads())
        storage: StagedStorage | None = None
        begun = False
        while not self._closing:
            if storage is None:
                storage, begun = self._orders.get(), False
                continue
            answer: _Filled | BaseException
            try:
                if not begun:
                    self._begin(storage)
                gathered = self.gatherer.complete(storage, wanted=lambda: not self._closing)
                answer = gathered, self.gatherer.state()
                storage = self._orders.get()
                if storage is not None:
                    self._begin(storage)
                begun = True
            except BaseException as error:  # the learner's thread raises it
                answer, storage = error, None
            self._answers.put(answer)

    def _begin(self, storage: StagedStorage) -> None:
        with self.gatherer.on_its_stream():
            version = self._weights.take()
        self.gatherer.begin(storage, version)
