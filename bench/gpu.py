"""What the GPU that torch uses does while others use it, for the details of a row."""

from __future__ import annotations

import torch

from stoker.monitor.records import figures_of
from stoker.monitor.sampler import Sampler

_SETTLES_S = 0.5  # busy is of the last sixth of a second or longer, and counters of the last fifth
_PERCENT = ("busy", "sm_active", "sm_occupancy", "tensor", "dram")
_SHOWN = (*_PERCENT, "power_w")


class GpuWatch:
    """Samples in a thread of its own, from `with` to its end. Without NVML it knows nothing."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None

    def __enter__(self) -> GpuWatch:
        if torch.cuda.is_available():
            self._sampler = Sampler(uuid=str(torch.cuda.get_device_properties(0).uuid))
            self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def between(self, began: float, ended: float) -> dict[str, float] | None:
        """Means of what was measured in that time; None where nothing was: unknown."""
        gpus = () if self._sampler is None else self._sampler.gpus
        means = gpus[0].series.between(began + _SETTLES_S, ended) if gpus else None
        if means is None:
            return None
        known = {n: v for n, v in figures_of(means) if n in _SHOWN and v is not None}
        shares = {f"{name}_%": round(100 * v, 1) for name, v in known.items() if name in _PERCENT}
        others = {name: round(v, 1) for name, v in known.items() if name not in _PERCENT}
        return {**shares, **others} or None
