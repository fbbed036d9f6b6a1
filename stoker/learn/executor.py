"""How an update runs: eagerly or compiled. Decided here and nowhere else.

An update is a pure function of tensors. The path that builds at once is used first; a compiled one
is made ready behind it and swapped in, so that nobody waits for a compiler. The CUDA-graph path
takes its place beside these.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stoker.types import Loss, LossFunction, Minibatch


def executable(loss: LossFunction, mode: str, compile_in: str) -> LossFunction:
    """`loss`, run as the settings `executor` and `compile_in` say."""
    if mode == "eager":
        return loss
    compiled = torch.compile(loss, dynamic=False)
    return compiled if compile_in == "foreground" else _SwapIn(loss, compiled)


class _SwapIn:
    """Runs `eager` until `compiled` has been built in a thread, then runs that."""

    def __init__(self, eager: LossFunction, compiled: LossFunction) -> None:
        self._now = eager
        self._compiled = compiled
        self._builder: threading.Thread | None = None

    def __call__(self, parameters: Mapping[str, Tensor], batch: Minibatch, clip: Tensor) -> Loss:
        if self._builder is None:
            # Copies: building runs a forward and a backward pass, which must not touch the run's.
            example = pytree.tree_map_only(Tensor, _copy, (dict(parameters), batch, clip))
            self._builder = threading.Thread(
                target=self._build, args=example, name="stoker-compile", daemon=True
            )
            self._builder.start()
        return self._now(parameters, batch, clip)

    def _build(self, *example: Any) -> None:
        try:
            self._compiled(*example).total.backward()
            self._now = self._compiled
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
