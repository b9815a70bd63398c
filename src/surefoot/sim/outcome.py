"""What one simulated run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.core.account import Bill, Counts, Goodput
from surefoot.core.event import Event
from surefoot.core.market import Pool
from surefoot.core.plan import Decision


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a simulated run. `events` and `decisions` are empty unless they were kept.

    `result` is done, stopped (the horizon came first), refused (a limit) or failed.
    `unknown_share`: share of pool-time simulated for which the trace has no supply figure.
    """

    job: str
    trace: str
    policy: str
    forecaster: str
    seed: int
    start_ms: int
    end_ms: int
    result: str
    message: str
    goodput: Goodput
    bill: Bill
    bill_by_pool: Mapping[Pool, Bill]
    counts: Counts
    summary: Mapping[str, Any]
    unknown_share: float
    events_seen: int
    decisions_made: int
    floor_short_ms: int = 0
    """Time below the throughput floor; `floor_broken_ms`: the part beyond a boot, a load and a
    re-forming (see `core.floor.FloorWatch`)."""
    floor_broken_ms: int = 0
    events: tuple[Event, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-able values; equal runs give equal values."""
        return {
            "job": self.job,
            "trace": self.trace,
            "policy": self.policy,
            "forecaster": self.forecaster,
            "seed": self.seed,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "wall_s": (self.end_ms - self.start_ms) / 1000,
            "result": self.result,
            "message": self.message,
            **self.summary,
            "unknown_share": round(self.unknown_share, 6),
            "floor_short_s": self.floor_short_ms / 1000,
            "floor_broken_s": self.floor_broken_ms / 1000,
            "unknown_price_s": self.bill.unknown_ms / 1000,
            "events": self.events_seen,
            "decisions": self.decisions_made,
        }
