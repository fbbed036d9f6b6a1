"""NVML: which GPUs there are, and asking them; no context is made on any.

The one file that imports `pynvml`, of the package nvidia-ml-py.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

_HINT = "pip install nvidia-ml-py"
_LOST = {1, 9, 12, 15, 16, 18}
"""Return codes: not initialised, no driver, no library, GPU lost, reset required, versions do not
match. Others, such as "not supported" or "no permission", are about one question."""


def tell(trouble: str) -> None:
    """Warn; also where warnings are errors, no thread ends of it."""
    with suppress(Warning):
        warnings.warn(trouble, stacklevel=3)


class Chip:
    """A GPU, or a part of one where it is divided (MIG). Each question may fail on its own."""

    def __init__(
        self, nvml: Any, handle: Any, index: int, parent: Any = None, instance: int | None = None
    ) -> None:
        self.nvml, self.handle, self.index = nvml, handle, index
        self.parent, self.instance = parent, instance
        """Of a part: the whole GPU, and the number of the part in it."""
        self.lost: str | None = None
        """Why nothing more will be said, once that is so."""
        self.name = str(self.ask("nvmlDeviceGetName") or "GPU")
        self.uuid = self.ask("nvmlDeviceGetUUID")

    def ask(self, question: str, *arguments: Any) -> Any:
        """What NVML answers of this chip; None is unknown."""
        return self.call(question, self.handle, *arguments)

    def call(self, question: str, *arguments: Any) -> Any:
        """What NVML answers; None is unknown. Of a chip that is lost nothing is asked."""
        if self.lost:
            return None
        try:
            return getattr(self.nvml, question)(*arguments)
        except self.nvml.NVMLError as error:
            if getattr(error, "value", None) in _LOST:
                self.lost = str(error)
        except Exception:  # a binding older than the driver, or newer
            pass
        return None


class Found(NamedTuple):
    """The GPUs that there are; or why none is known."""

    chips: Sequence[Chip]
    trouble: str | None
    nvml: ModuleType | None
    """To be shut down at the end, where it was opened."""

    def close(self) -> None:
        if self.nvml is not None:
            with suppress(Exception):  # which may be gone
                self.nvml.nvmlShutdown()


def open_chips(uuid: str | None = None) -> Found:
    """All GPUs and parts of GPUs; or the one with that UUID, with or without what it begins with.

    To be closed by the caller.
    """
    try:
        import pynvml
    except ImportError:
        return Found((), f"nvidia-ml-py is not installed ({_HINT})", None)
    try:
        pynvml.nvmlInit()
    except Exception as error:  # no driver, no rights, another version
        return Found((), f"NVML cannot be used: {error}", None)
    chips = _all_chips(pynvml) if uuid is None else _chip_called(pynvml, uuid)
    found = "no GPU" if uuid is None else f"no GPU with the UUID {uuid}"
    return Found(chips, None if chips else f"NVML knows {found}", pynvml)


def _chip_called(nvml: Any, uuid: str) -> list[Chip]:
    """CUDA says UUIDs without saying whether they are of a GPU or of a part."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for name in (f"GPU-{bare}", f"MIG-{bare}"):
        with suppress(Exception):
            handle = nvml.nvmlDeviceGetHandleByUUID(name)
            if name.startswith("MIG-"):
                parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                return [_part(nvml, handle, 0, parent)]
            return [Chip(nvml, handle, 0)]
    return []


def _all_chips(nvml: Any) -> list[Chip]:
    """In NVML's order, the parts of a GPU after it."""
    chips: list[Chip] = []
    with suppress(Exception):
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(Exception):  # one that we have no right to see
                whole = Chip(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index)
                chips.append(whole)
                chips += _parts_of(whole)
    return chips


def _parts_of(whole: Chip) -> list[Chip]:
    if not (whole.ask("nvmlDeviceGetMigMode") or (0,))[0]:
        return []
    parts = []
    for place in range(whole.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        with suppress(Exception):  # places need not be taken
            handle = whole.nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, place)
            parts.append(_part(whole.nvml, handle, whole.index, whole.handle))
    return parts


def _part(nvml: Any, handle: Any, index: int, parent: Any) -> Chip:
    instance = None
    with suppress(Exception):
        instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
    return Chip(nvml, handle, index, parent, instance)
