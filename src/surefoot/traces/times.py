"""Durations and instants as people and clouds write them, read strictly into milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|s|m|h|d)")


def duration_ms(text: object) -> int:
    """Read `30s`, `5m`, `1h30m`, `500ms`, `2d` or 0. Raises ValueError for anything else."""
    if text == 0 and not isinstance(text, bool):
        return 0
    if not isinstance(text, str):
        raise ValueError(f"a duration needs a unit (30s, 5m, 2h), got {text!r}")
    compact = text.strip().replace(" ", "")
    if compact == "0":
        return 0
    parts = _PART.findall(compact)
    if not parts or "".join(n + u for n, u in parts) != compact:
        raise ValueError(f"a duration is like 30s, 5m, 1h30m or 2d, got {text!r}")
    return round(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def instant_ms(text: str) -> tuple[int, bool]:
    """Read an ISO 8601 stamp; return (epoch ms, whether it named its time zone).

    A stamp without a zone is read as UTC: the caller decides whether to warn or refuse.
    Raises ValueError when it is no date and time.
    """
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"not a date and time: {text!r}") from None
    zoned = when.tzinfo is not None
    if not zoned:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000), zoned


def iso(at_ms: int) -> str:
    """Return an epoch instant as ISO 8601 in UTC, to the millisecond where it has any."""
    when = datetime.fromtimestamp(at_ms / 1000, UTC)
    text = when.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")
