"""Courses thinned for a screen: few points, but no peak is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

Pair = tuple[int, float | None]


def thin(points: Sequence[tuple[int, float]], count: int) -> list[Pair]:
    """Return at most about `count` points: first and last, and of each bucket least and most.

    Values that are not finite become None.
    """
    if len(points) <= max(count, 4):
        return [_pair(p) for p in points]
    buckets = max(1, (count - 2) // 2)
    inner = points[1:-1]
    width = len(inner) / buckets
    kept: list[tuple[int, float]] = [points[0]]
    for index in range(buckets):
        part = inner[round(index * width) : round((index + 1) * width)]
        known = [p for p in part if math.isfinite(p[1])]
        if not known:
            kept.extend(part[:1])
            continue
        low, high = min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])
        kept.extend(sorted({low, high}))
    kept.append(points[-1])
    return [_pair(p) for p in kept]


def _pair(point: tuple[int, float]) -> Pair:
    value = point[1]
    return int(point[0]), (round(value, 6) if math.isfinite(value) else None)
