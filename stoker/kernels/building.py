"""Kernels that have been seen to build on this machine, or a sentence that says why they do not."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import ModuleType


def built(name: str) -> ModuleType | None:
    """A module of kernels beside this one, tried out; None where they cannot be built."""
    try:
        kernels = import_module(f"stoker.kernels.{name}")
        kernels.try_out()
        return kernels
    except Exception as error:  # no Triton, no C compiler, a chip that it does not know
        warnings.warn(
            f"Triton cannot build kernels here ({type(error).__name__}: {error}), so plain torch "
            "takes their place: updates take longer. Triton comes with torch on Linux and needs a "
            "C compiler.",
            stacklevel=3,
        )
        return None
