"""Forecast against what happened: expected losses added up over a run, beside the real ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from surefoot.core.units import MS_PER_HOUR
from surefoot.report.story import Story

MERGE_MS = 180_000
"""Losses of one pool within this time are one event, as the forecast counts them."""

CENTRAL = 0.9


@dataclass(frozen=True, slots=True)
class Foretold:
    """The run's pool events: expected by the forecasts in force, and seen.

    `expected` are (epoch ms, sum so far); `seen` the instants of events, in order.
    """

    expected: tuple[tuple[int, float], ...]
    seen: tuple[int, ...]

    @property
    def total(self) -> float:
        """Expected number of events over the run."""
        return self.expected[-1][1] if self.expected else 0.0

    @property
    def odds(self) -> float | None:
        """The odds of a count at least as far from the expected one, if the forecast is right.

        None when nothing was forecast. Small odds speak against the forecast.
        """
        if not self.expected:
            return None
        low = sum(poisson(k, self.total) for k in range(len(self.seen) + 1))
        high = 1 - low + poisson(len(self.seen), self.total)
        return min(1.0, 2 * min(low, high))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for summary.json."""
        low, high = band(self.total)
        known = bool(self.expected)
        return {
            "expected": round(self.total, 4) if known else None,
            "low": low if known else None,
            "high": high if known else None,
            "seen": len(self.seen),
            "odds": round(self.odds, 4) if self.odds is not None else None,
        }


def foretold(story: Story) -> Foretold:
    """Add up the forecast rate of pool events over the time that it was in force.

    Hardware failures are in the rate as the interval counts them; they are rare beside
    preemptions.
    """
    return Foretold(_summed(story), _events(story))


def _summed(story: Story) -> tuple[tuple[int, float], ...]:
    points = [(t, rate) for t, rate in story.hazard_per_h.points if math.isfinite(rate)]
    if not points:
        return ()
    total, found = 0.0, [(points[0][0], 0.0)]
    for (begin, rate), (end, _) in pairwise([*points, (story.state.now_ms, 0.0)]):
        total += rate * max(0, end - begin) / MS_PER_HOUR
        found.append((end, total))
    return tuple(found)


def _events(story: Story) -> tuple[int, ...]:
    last: dict[str, int] = {}
    found = []
    for mark in story.marks:
        if mark.at_ms - last.get(mark.pool, -MERGE_MS - 1) > MERGE_MS:
            found.append(mark.at_ms)
        last[mark.pool] = mark.at_ms
    return tuple(found)


def poisson(count: int, mean: float) -> float:
    """Return the odds of `count` events where `mean` are expected."""
    if mean <= 0:
        return 1.0 if count == 0 else 0.0
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def band(mean: float, share: float = CENTRAL) -> tuple[int, int]:
    """Return the counts between which a Poisson count of this mean lies with odds of `share`."""
    tail, below, low, count = (1 - share) / 2, 0.0, None, 0
    while True:
        below += poisson(count, mean)
        if low is None and below > tail:
            low = count
        if below >= 1 - tail or count > 10 * mean + 50:
            return low or 0, count
        count += 1
