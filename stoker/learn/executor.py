"""How an update runs: eagerly, compiled or as a CUDA graph. Decided here and nowhere else.

The loss is a pure function of tensors, and an update changes tensors in place. The path that builds
at once is used first; a compiled one is made ready behind it and swapped in, so that nobody waits
for a compiler; a CUDA graph is recorded within the first few updates.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.types import Loss, LossFunction, Minibatch

Step = Callable[[Any, Any], None]
"""All rows, and what is another for each update, such as the numbers of those to learn from."""

_WARM_UP = 3  # updates before the capture, which are real ones: libraries set themselves up


def executable(loss: LossFunction, mode: str, compile_in: str) -> LossFunction:
    """`loss`, run as the settings `executor` and `compile_in` say."""
    if mode != "compile":
        return loss
    compiled = torch.compile(loss, dynamic=False)
    return compiled if compile_in == "foreground" else _SwapIn(loss, compiled)


class _SwapIn:
    """Runs `eager` until `compiled` has been built for as many rows in a thread, then that."""

    def __init__(self, eager: LossFunction, compiled: LossFunction) -> None:
        self._eager, self._compiled = eager, compiled
        self._now: dict[int, LossFunction] = {}  # by how many rows it is built for

    def __call__(self, parameters: Mapping[str, Tensor], batch: Minibatch, clip: Tensor) -> Loss:
        rows = len(batch.valid)
        if rows not in self._now:
            self._now[rows] = self._eager
            # Copies: building runs a forward and a backward pass, which must not touch the run's.
            example = pytree.tree_map_only(Tensor, _copy, (dict(parameters), batch, clip))
            threading.Thread(
                target=self._build, args=(rows, *example), name="stoker-compile", daemon=True
            ).start()
        return self._now[rows](parameters, batch, clip)

    def _build(self, rows: int, *example: Any) -> None:
        try:
            self._compiled(*example).total.backward()
            self._now[rows] = self._compiled
        except Exception as error:
            summary, _, _ = str(error).partition("\n")
            warnings.warn(
                f"The update could not be compiled ({type(error).__name__}: {summary}); it goes "
                "on eagerly.",
                stacklevel=2,
            )


def _copy(tensor: Tensor) -> Tensor:
    copied = tensor.detach().clone()
    return torch.nn.Parameter(copied) if isinstance(tensor, torch.nn.Parameter) else copied


class Steps:
    """Updates as Python makes them, kernel by kernel; or each as one CUDA graph.

    Then the host launches once instead of a hundred times. The graph reads its rows and which to
    take from tensors of its own, so each rollout is copied there first, if there is one.
    """

    def __init__(self, step: Step, captures: bool) -> None:
        # One stream for all, as libraries keep memory for each that they were used on.
        self._step, self._stream = step, torch.cuda.Stream() if captures else None
        self.forget()

    def forget(self) -> None:
        """What the updates change lies elsewhere now."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._updates = 0

    def over(self, rows: Any) -> Callable[[Any], None]:
        """The updates of one rollout's rows."""
        if self._stream is None:
            return lambda index: self._step(rows, index)
        if self._updates == 0:
            self._rows = pytree.tree_map_only(Tensor, torch.clone, rows)
        else:
            _fill(self._rows, rows)
        return partial(self._run, self._stream)

    def _run(self, beside: torch.cuda.Stream, index: Any) -> None:
        if self._updates == 0:
            self._index = pytree.tree_map_only(Tensor, torch.clone, index)
        _fill(self._index, index)
        if self._updates < _WARM_UP:
            here = torch.cuda.current_stream()
            beside.wait_stream(here)
            with torch.cuda.stream(beside):  # not the default one, as for captures
                self._step(self._rows, self._index)
            here.wait_stream(beside)
        else:
            self._graph = self._graph or self._captured(beside)
            self._graph.replay()
        self._updates += 1  # not before: an update may fail, and be made again

    def _captured(self, beside: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Another thread may be acting, and allocate memory, while this one captures.
        with torch.cuda.graph(graph, stream=beside, capture_error_mode="thread_local"):
            self._step(self._rows, self._index)
        return graph


def _fill(kept: Any, new: Any) -> None:
    for mine, given in zip(pytree.tree_leaves(kept), pytree.tree_leaves(new), strict=True):
        if mine is not None:
            mine.copy_(given)
