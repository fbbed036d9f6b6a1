"""How numbers may be written, `50M`, `1e6`, `64k`, `"1024,512,256"`, and how they are told."""

from __future__ import annotations

import math
import re
from decimal import Decimal, DecimalException

_LARGEST = Decimal("1e28")  # as many digits as Decimal keeps, and far past any count
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SCALE = {"k": 1_000, "m": 1_000_000, "b": 1_000_000_000, "g": 1_000_000_000}


def parse_count(text: object) -> int:
    """A whole number from an int or from text such as `64k`, `1.5M`, `1e6` or `10_000`."""
    if isinstance(text, bool):
        raise ValueError(f"{text!r} is not a whole number")
    if isinstance(text, int):
        return text
    written = str(text).strip().replace("_", "").replace(",", "")
    scale = _SCALE.get(written[-1:].lower(), 1)
    digits = written[:-1] if scale > 1 else written
    try:
        value = Decimal(digits) * scale  # exact, where a float would round
        if abs(value) <= _LARGEST and value == int(value):
            return int(value)
    except DecimalException:  # no number at all, or not a number
        pass
    raise ValueError(f"{text!r} is not a whole number (written like 100000, 64k, 1.5M or 1e6)")


def parse_number(value: object) -> float:
    """A finite number from a number or from text such as `3e-4`."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    try:
        number = float(value)  # type: ignore[arg-type]  # it says by itself what it does not take
    except ValueError:
        raise ValueError(f"{value!r} is not a number (written like 0.01 or 3e-4)") from None
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def parse_sizes(text: object) -> tuple[int, ...]:
    """Layer sizes from `"1024,512,256"`, a list of numbers, or the number of a single layer."""
    parts: object = text
    if isinstance(text, str):
        parts = re.sub(r"(?<=\w)-", ",", text).split(",")  # 64-64 too, but not the sign of ,-64
    elif isinstance(text, int):
        parts = [text]
    if isinstance(parts, (list, tuple)):
        *first, last = [str(part).strip() for part in parts] or [""]
        said = [*first, last] if last else first  # which is blank in `64,`
        if all(said):
            return tuple(map(parse_count, said))
    raise ValueError(f"{text!r} is not a list of layer sizes (written like 256,256)")


def parse_seconds(text: object) -> float:
    """Seconds, above 0, from a number or from text such as `90s`, `10m` or `1.5h`."""
    written = str(text).strip().lower()
    scale = _SECONDS.get(written[-1:])
    try:
        seconds = parse_number(written[:-1] if scale else written) * (scale or 1)
    except ValueError:
        seconds = 0.0
    if isinstance(text, bool) or not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no length of time above 0 (written like 90s, 10m or 1.5h)")
    return seconds


def format_count(value: int) -> str:
    """The shortest exact way to write `value` in the forms that `parse_count` reads."""
    for suffix, scale in (("M", 1_000_000), ("k", 1_000)):
        if value and value % scale == 0:
            return f"{value // scale}{suffix}"
    return str(value)


def counted(number: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
