"""Parse and format sizes and durations as people write them."""

import re

from iotwin.common.errors import UsageError

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "ki": 1024, "kib": 1024, "mi": 1024**2, "mib": 1024**2, "gi": 1024**3, "gib": 1024**3, "ti": 1024**4, "tib": 1024**4,
}  # fmt: skip
_DURATION_UNITS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_MOST = 1 << 62  # bytes or nanoseconds, so that the sum of two fits in 64 bits


def _parse(text: str, what: str, units: dict[str, int], example: str) -> int:
    """Return the quantity `text` in the smallest of `units`. Raises UsageError unless number and unit are valid."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise UsageError(f"{what} '{text}' is not a positive number with a unit; write for example {example}")
    unit = match[2].lower()
    if unit not in units:
        raise UsageError(f"{what} '{text}' has the unknown unit '{match[2]}'; write for example {example}")
    number = float(match[1]) * units[unit]
    if number > _MOST:
        raise UsageError(f"{what} '{text}' is larger than any that can be measured; write for example {example}")
    return round(number)


def parse_size(text: str, zero: bool = False) -> int:
    """Return the size `text` in bytes: '512MiB', '30 GB', '4096'. Raises UsageError for 0 bytes unless `zero` is set."""
    size_bytes = _parse(text, "size", _SIZE_UNITS, "512MiB")
    if size_bytes == 0 and not zero:
        raise UsageError(f"size '{text}' must be at least one byte; write for example 512MiB")
    return size_bytes


def parse_duration(text: str) -> int:
    """Return the duration `text` in nanoseconds: '100ms', '1.5s', '5min'; a number without a unit is seconds."""
    return _parse(text, "duration", _DURATION_UNITS, "1s or 100ms")


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, singular or plural: '1 call', '2,000 calls', '0 copies'. `thing`: the singular noun."""
    if number == 1:
        return f"1 {thing}"
    plural = f"{thing[:-1]}ies" if thing.endswith("py") else f"{thing}{'es' if thing.endswith(('s', 'tch')) else 's'}"
    return f"{number:,} {plural}"


def _three_digits(value: float) -> str:
    """Return `value` with three significant digits. From 999.5 on, it is a whole number, without an exponent."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def format_size(size_bytes: float) -> str:
    """Return bytes with a binary unit and three significant digits: '1.50 GiB'."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} TiB"


def format_duration(duration_ns: float) -> str:
    """Return nanoseconds as text, in a unit that keeps the number readable: '1.23 ms'."""
    value = float(duration_ns)
    for unit, limit in (("ns", 1e3), ("us", 1e6), ("ms", 1e9)):
        if abs(value) < limit:
            return f"{_three_digits(value / (limit / 1e3))} {unit}"
    return f"{_three_digits(value / 1e9)} s"
