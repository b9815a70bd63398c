"""Integer units of state (ms, micro-dollars) and the one place where floats are rounded to them."""

from __future__ import annotations

import math

MS_PER_S = 1_000
MS_PER_HOUR = 3_600_000
MICROS_PER_USD = 1_000_000


def ms(seconds: float) -> int:
    """Return `seconds` as whole milliseconds, rounded half away from zero.

    Raises ValueError for NaN and infinity.
    """
    return _round(seconds * MS_PER_S, "seconds", seconds)


def seconds(milliseconds: int) -> float:
    """Return milliseconds as float seconds, for use inside formulas."""
    return milliseconds / MS_PER_S


def hours(milliseconds: int) -> float:
    """Return milliseconds as float hours."""
    return milliseconds / MS_PER_HOUR


def micro_usd(usd: float) -> int:
    """Return US dollars as whole micro-dollars, rounded half away from zero.

    Raises ValueError for NaN and infinity.
    """
    return _round(usd * MICROS_PER_USD, "usd", usd)


def usd(micros: int) -> float:
    """Return micro-dollars as float dollars, for display."""
    return micros / MICROS_PER_USD


def charge_micro_usd(rate_micro_usd_h: int, duration_ms: int) -> int:
    """Return the cost of `duration_ms` at a rate per hour, in micro-dollars, rounded half up."""
    return (2 * rate_micro_usd_h * duration_ms + MS_PER_HOUR) // (2 * MS_PER_HOUR)


def _round(value: float, name: str, given: float) -> int:
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {given!r}")
    return math.floor(abs(value) + 0.5) * (1 if value >= 0 else -1)
