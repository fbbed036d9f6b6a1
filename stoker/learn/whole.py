"""Whole rollouts and whole lessons as CUDA graphs.

Where environments are tensors, nothing in either needs the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from stoker.errors import CaptureAgainError

R = TypeVar("R")


class Whole:
    """Runs functions of tensors that stay where they are: a whole rollout, a whole lesson.

    As CUDA graphs, if so asked: the first call is made as it is, since libraries set themselves up
    in it, the second is captured, and then the host launches one thing instead of thousands.
    What a function gives back is overwritten by its next call.
    """

    def __init__(self, captures: bool) -> None:
        self.captures = captures
        self._known: list[_Captured[Any]] = []

    def __call__(self, function: Callable[[], R], generator: torch.Generator) -> Callable[[], R]:
        """`function`, which draws its random numbers from `generator`."""
        if not self.captures:
            return function
        captured = _Captured(function, generator)
        self._known.append(captured)
        return captured

    def forget(self) -> None:
        """What the functions work on lies elsewhere now, or they do something else."""
        for captured in self._known:
            captured.graph, captured.warm, captured.cannot = None, False, False


class _Captured(Generic[R]):
    def __init__(self, function: Callable[[], R], generator: torch.Generator) -> None:
        self._function, self._generator = function, generator
        self._stream = torch.cuda.Stream()  # one for all: libraries keep memory for each
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = False
        self._result: R
        self.cannot = False

    def __call__(self) -> R:
        if self.cannot:
            return self._function()
        if not self.warm:
            self.warm = True
            return self._beside()
        while self.graph is None and not self.cannot:
            self._capture()
        if self.cannot:
            return self._function()
        assert self.graph is not None
        self.graph.replay()
        return self._result

    def _beside(self) -> R:
        """On a stream that is not the default one, as captures are."""
        here, beside = torch.cuda.current_stream(), self._stream
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            result = self._function()
        here.wait_stream(beside)
        return result

    def _capture(self) -> None:
        """Unless memory runs out, which asks for another try, it can be captured or it cannot."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        before = self._generator.get_state()
        try:
            # Another thread may be compiling, and allocate memory, while this one captures.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._function()
        except CaptureAgainError:
            self._generator.set_state(before)
        except Exception as error:
            self.cannot = True
            self._generator.set_state(before)
            summary, _, _ = str(error).partition("\n")
            warnings.warn(
                f"This could not be captured as a CUDA graph ({type(error).__name__}: {summary}), "
                "so it goes on kernel by kernel, which takes longer. Where the environment is "
                "your own, stoker check says what stands in the way.",
                stacklevel=2,
            )
        else:
            self.graph = graph
