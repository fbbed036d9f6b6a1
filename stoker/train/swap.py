"""Kernels that are built behind a running path, and take its place when they are ready.

Nobody waits for a compiler: training goes on with what torch has until then.
"""

from __future__ import annotations

import importlib
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from stoker.collect.on_device import DeviceCollector
from stoker.learn.whole import Whole
from stoker.pools.tensor import Into, TensorPool
from stoker.storage.on_device import DeviceStorage
from stoker.train.fused import Fused
from stoker.train.overlap import Decision
from stoker.train.parts import Lesson, Parts
from stoker.types import Way, as_it_is

SETTLED = 3  # iterations: the first sets libraries up, the second is captured
AFTER_S = 1.0  # of training: most that is short is over by then
WORTH_S = 20.0  # of training still to come: a build takes about as long
_PATIENCE_S = 20.0  # with a build that is under way when the run ends

F = TypeVar("F", bound=Callable[..., Any])


class Compiling:
    """The `Way` to run functions compiled, from their second use on without delay."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}

    def __call__(self, function: F) -> F:
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, dynamic=False, fullgraph=True)
        return self._compiled[function]


class Built(NamedTuple):
    """How environments step and how other functions run, and how long it took to build them."""

    into: Into
    way: Way
    seconds: float
    loading_s: float = 0.0
    """Of these, what it took to load the compiler: once a process."""


class Swap:
    """Implements `parts.Trial`: has kernels built in a thread, then lets them take over.

    `live` makes what is to take over, `rehearsal` the same with tensors of its own.
    """

    def __init__(
        self,
        parts: Parts,
        live: Callable[[Way], Fused],
        rehearsal: Callable[[Way], tuple[Fused, DeviceCollector]],
    ) -> None:
        self._parts, self._live, self._rehearsal = parts, live, rehearsal
        self.built: Built | None = None
        self._builder: threading.Thread | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Time from now on."""
        self._iterations, self._began = 0, 0.0

    def consider(self) -> Decision | None:
        """Begin to build once that pays; take over once that is done."""
        in_parts = self._parts.config.rows_at_once < self._parts.config.minibatch
        if self._parts.fused is not None or in_parts:  # the kernels take minibatches whole
            return None
        self._iterations += 1
        if self._iterations == SETTLED:
            self._began = time.perf_counter()
        if self.built is not None:
            return self.take_over(self.built)
        if self._builder is None and self._pays():
            self._builder = threading.Thread(target=self._build, name="stoker-kernels", daemon=True)
            self._builder.start()
        return None

    def _pays(self) -> bool:
        """Whether there is enough left to train, by how long iterations take now."""
        timed = self._iterations - SETTLED
        if timed <= 0:
            return False
        spent = time.perf_counter() - self._began
        left = spent / timed * (self._parts.config.n_iterations - self._iterations)
        return spent > AFTER_S and left > WORTH_S

    def _build(self) -> None:
        try:
            self.built = self.build()
        except Exception as error:
            warnings.warn(
                f"The kernels could not be built ({type(error).__name__}: {_summary(error)}), so "
                "training goes on with torch's own.",
                stacklevel=2,
            )

    def build(self) -> Built:
        """Compile what torch compiles, and have Triton compile the rest by using it once."""
        began = time.perf_counter()
        pool = self._parts.pool
        assert isinstance(pool, TensorPool)
        if pool.device.type == "cpu":
            return Built(pool.into, as_it_is, 0.0)
        importlib.import_module("torch._inductor.compile_fx")  # and dynamo
        loading_s, way = time.perf_counter() - began, Compiling()
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            fused, collector = self._rehearsal(way)
            collector.acting, collector.way = fused, way
            assert isinstance(collector.pool, TensorPool)
            collector.pool.into = into = _compiled_step(pool, collector.storage)
            collector.collect()
            fused.lesson()
            torch.cuda.current_stream().synchronize()  # sync: in a thread of its own
        return Built(into, way, time.perf_counter() - began, loading_s)

    def seconds_from_cache(self) -> float:
        """What a build takes where all of it was built before, as it is for a run after this one.

        To be asked last: what is compiled in this process is forgotten.
        """
        assert self.built is not None
        torch._dynamo.reset()
        return self.built.loading_s + self.build().seconds

    def take_over(self, built: Built) -> Decision:
        """Act, step and learn in kernels from now on."""
        parts = self._parts
        collector, pool, before = parts.collector, parts.pool, parts.learner.state()
        assert isinstance(collector, DeviceCollector)
        assert isinstance(pool, TensorPool)
        parts.fused = fused = self._live(built.way)
        fused.learner.restore(before)
        pool.into, collector.acting, collector.way = built.into, fused, built.way
        parts.learner = fused.learner
        parts.whole.forget()
        parts.lesson = whole_lesson(parts.whole, fused.lesson, fused.learner.generator)
        how = f"built in {built.seconds:.1f} s" if built.seconds else "as plain torch, on a CPU"
        return Decision("kernels", "fused", f"{how}: a few of them act, and a few make an update")

    def close(self) -> None:
        """A thread that compiles must not be cut off by the end of the process."""
        if self._builder is not None:
            self._builder.join(_PATIENCE_S)


def whole_lesson(whole: Whole, learn: Callable[[], Any], generator: torch.Generator) -> Lesson:
    """A lesson from the one rollout storage there is, run as `whole` says."""
    once = whole(learn, generator)
    return lambda _: once()


def _compiled_step(pool: TensorPool, storage: DeviceStorage) -> Into:
    """The environments' step, compiled; as it is, if it cannot be."""
    bare, (state, keys, numbers) = pool.for_compiling()
    into = torch.compile(bare.into, dynamic=False, fullgraph=True)
    # Not the first row: what is compiled must not count on where in memory a row begins.
    count = torch.zeros(2, dtype=torch.int64, device=pool.device)[1]
    try:
        into(storage.row(1), state, storage.rollout.action[1], keys, numbers, count)
    except Exception as error:
        warnings.warn(
            f"The step of {pool.spec.name} could not be compiled ({type(error).__name__}: "
            f"{_summary(error)}), so it stays as it is, which takes longer.",
            stacklevel=2,
        )
        return pool.into
    return into


def _summary(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
