"""Figures as text, the same way on every screen. What is unknown reads so."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 40
_BARS = " ▁▂▃▄▅▆▇█"


def figure(value: float | None, form: str, unit: str = "") -> str:
    """A number in that form, with its unit; `unknown` if it is None."""
    return "unknown" if value is None else format(value, form) + unit


def of_total(used: float | None, total: float | None, unit: str = " GiB") -> str:
    """`20.0 of 80.0 GiB`."""
    if used is None or total is None:
        return "unknown"
    return f"{used:.1f} of {total:.1f}{unit}"


def bar(share: float | None, width: int = WIDTH) -> str:
    """A share of 1 as a bar; empty where it is unknown."""
    if share is None:
        return ""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def sparkline(
    values: Sequence[float | None],
    width: int = WIDTH,
    scale: tuple[float, float] | None = None,
) -> str:
    """Values as bars, squeezed to the width: between their own limits, or those of `scale`.

    What is unknown is a gap.
    """
    count = min(width, len(values))
    shown = [values[int((i + 1) * len(values) / count) - 1] for i in range(count)]
    known = [value for value in shown if value is not None]
    low, high = scale or (min(known, default=0.0), max(known, default=0.0))
    return "".join(_level(value, low, high) for value in shown)


def _level(value: float | None, low: float, high: float) -> str:
    if value is None:
        return _BARS[0]
    return _BARS[1 + int(7 * (min(high, max(low, value)) - low) / (high - low or 1.0))]


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
