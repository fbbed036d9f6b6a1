"""How numbers may be written: `50M`, `1e6`, `64k`, `"1024,512,256"`."""

from __future__ import annotations

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
        value = int(digits) * scale if digits.lstrip("+-").isdigit() else float(digits) * scale
        whole = int(value)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a whole number (written like 100000, 64k, 1.5M or 1e6)"
        ) from None
    if whole != value:
        raise ValueError(f"{text!r} is not a whole number")
    return whole


def parse_sizes(text: object) -> tuple[int, ...]:
    """Layer sizes from `"1024,512,256"` or a list of numbers."""
    parts = text.replace("-", ",").split(",") if isinstance(text, str) else text
    if not isinstance(parts, (list, tuple)):
        raise ValueError(f"{text!r} is not a list of layer sizes (written like 256,256)")
    return tuple(parse_count(part) for part in parts if str(part).strip())


def format_count(value: int) -> str:
    """The shortest exact way to write `value` in the forms that `parse_count` reads."""
    for suffix, scale in (("M", 1_000_000), ("k", 1_000)):
        if value and value % scale == 0:
            return f"{value // scale}{suffix}"
    return str(value)
