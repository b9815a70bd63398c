"""Durations, instants and money as people write them, turned into whole ms and micro-dollars."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from surefoot.core.units import micro_usd, ms

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST_S = 10 * 366 * 86400.0

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")

DURATION = "a time with its unit, such as 90s, 5m, 1h30m or 300h"


def duration_ms(value: object) -> int:
    """Return a duration such as `5m` or `1h30m` in ms.

    Raises ValueError saying what is allowed: for a number without a unit, for zero or less,
    and for more than ten years.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be {DURATION}")
    if isinstance(value, int | float):
        if value <= 0:
            raise ValueError("must be more than 0")
        raise ValueError(f"{value:g} has no unit; write {DURATION}")
    text = value.strip().replace(" ", "")
    if text.startswith("-"):
        raise ValueError("must be more than 0")
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"must be {DURATION}")
    total = sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(text))
    if total > LONGEST_S:
        raise ValueError("must be at most ten years")
    if ms(total) < 1:
        raise ValueError("must be more than 0")
    return ms(total)


def instant_ms(text: str) -> int | None:
    """Return an ISO date or date-time as epoch ms (UTC where no zone is given), else None."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def say_ms(value: int) -> str:
    """Write a duration in ms for people: `850 ms`, `12.5 s`, `4 min 10 s`, `3 h 5 min`."""
    if value < 1_000:
        return f"{value} ms"
    if value < 120_000:
        return f"{value / 1000:.3g} s"
    minutes, rest_s = divmod(round(value / 1000), 60)
    if minutes < 120:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    full, minutes = divmod(minutes, 60)
    return f"{full} h {minutes} min" if minutes else f"{full} h"


def money_micro_usd(value: object) -> int:
    """Return US dollars (a number, or text like `$9.50`) in micro-dollars.

    Raises ValueError for anything else, for zero or less, and for more than a billion dollars.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be an amount in US dollars, such as 9000 or 12.50")
    try:
        amount = float(value.strip().lstrip("$") if isinstance(value, str) else value)
    except ValueError:
        raise ValueError("must be an amount in US dollars, such as 9000 or 12.50") from None
    if not math.isfinite(amount) or amount > 1e9:
        raise ValueError("must be a finite amount below a billion dollars")
    if amount <= 0:
        raise ValueError("must be more than 0; leave the key out for no limit")
    return micro_usd(amount)
