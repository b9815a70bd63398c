"""Goodput, badput, the bill and the counts of a run, folded from its events, live or simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from surefoot.core.event import Event
from surefoot.core.goodput import Badput, Goodput, TimeSplit
from surefoot.core.job import Job
from surefoot.core.ledger import Bill, Ledger
from surefoot.core.market import Capacity, Pool
from surefoot.core.tally import Counts, Tally
from surefoot.core.units import usd

__all__ = ["Account", "Badput", "Bill", "Counts", "Goodput", "fold", "summary"]


class Account:
    """An incremental account of one run: feed every event in order, ask at any time."""

    def __init__(self, job: Job | None = None) -> None:
        self.job = job
        self._ledger = Ledger(job.limits.egress_micro_usd_gb if job else 0)
        self._time = TimeSplit()
        self._tally = Tally(job.num_nodes if job else 0, job.on_demand_base if job else 0)
        self._begun_ms: int | None = None

    def add(self, event: Event) -> None:
        """Take in one event."""
        if self._begun_ms is None:
            self._begun_ms = event.at_ms
        self._ledger.add(event)
        self._time.add(event)
        self._tally.add(event)

    def quiet_saves(self, count: int, *, at_ms: int, stall_ms: int) -> None:
        """Take in saves up to an instant that a simulator does not tell one by one.

        `stall_ms` is their total; the event of the last save of the spell must follow.
        """
        self._time.quiet_saves(at_ms, stall_ms)
        self._tally.checkpoints += count

    @property
    def goodput(self) -> Goodput:
        """How the wall-clock time was spent up to the newest event."""
        return self._time.goodput()

    @property
    def bill(self) -> Bill:
        """What was spent up to the newest event, running VMs included."""
        return self._ledger.bill()

    def bill_at(self, now_ms: int) -> Bill:
        """Return what was spent up to an instant after the newest event."""
        return self._ledger.bill(now_ms)

    def bill_by_pool(self) -> Mapping[Pool, Bill]:
        """Return the bill split by pool."""
        return self._ledger.by_pool()

    def cost_of(
        self, pool: Pool, capacity: Capacity, begun_ms: int, end_ms: int | None = None
    ) -> tuple[int, int]:
        """Return (micro-dollars, ms without a known price) of one VM, ended or still held."""
        return self._ledger.cost_of((pool, capacity), begun_ms, end_ms)

    @property
    def counts(self) -> Counts:
        """Preemptions, fallbacks, returns, growth, saves and steps so far."""
        return self._tally.counts()

    @property
    def recovery_s(self) -> list[float]:
        """Seconds from each break by a loss, or a departure on notice, to the next first step."""
        return [ms / 1000 for ms in self._time.recoveries_ms]

    @property
    def metrics(self) -> Mapping[str, tuple[float, float]]:
        """(first, last) value of each figure of the user's own."""
        return self._tally.metrics

    def on_demand_same_time(self) -> int | None:
        """Return micro-dollars for the asked size held on demand over the run's wall time.

        In the allowed pool that is cheapest per unit of speed over that very time; None when no
        on-demand price is known.
        """
        return self._on_demand(self._time.wall_ms)

    def on_demand_same_work(self) -> int | None:
        """Return micro-dollars for the run's kept steps on an on-demand fleet of the asked size.

        The kept steps times the step time of such a fleet, without any stop: measured in this
        run while it had that size (10 steps or more), else carried over from the sizes that it
        had by the job's scaling curve, else the job's prior. None without an on-demand price.
        """
        if self.job is None:
            return None
        step_ms = self._tally.step_ms_at(float(self.job.num_nodes), self.job)
        return self._on_demand(round(self._tally.kept_steps * step_ms))

    def _on_demand(self, span_ms: int) -> int | None:
        if self.job is None or self._begun_ms is None:
            return None
        begun = self._begun_ms
        speeds = self._ledger.speeds
        costs = [
            (cost * self.job.num_nodes / speeds.get(pool, 1.0), pool)
            for pool in self.job.pools
            if (cost := self._ledger.held_cost((pool, Capacity.ON_DEMAND), begun, begun + span_ms))
            is not None
        ]
        return round(min(costs)[0]) if costs else None

    def summary(self) -> dict[str, Any]:
        """Return the run's figures under the keys of summary.json; what is unknown is None.

        Dollars and seconds as floats, shares of wall time as fractions of 1.
        """
        counts, bill, goodput = self.counts, self.bill, self.goodput
        same_time, same_work = self.on_demand_same_time(), self.on_demand_same_work()
        losses = self.metrics.get("val_loss", (None, None))
        wall = goodput.wall_ms
        return {
            "steps": counts.steps,
            "lost_steps": counts.lost_steps,
            "preemptions": {"notice": counts.notice, "silent": counts.silent},
            "on_demand_fallbacks": counts.on_demand_fallbacks,
            "returns_to_spot": counts.returns_to_spot,
            "scale_ups": counts.scale_ups,
            "recovery_s": self.recovery_s,
            "checkpoints": counts.checkpoints,
            "goodput": _rounded(goodput.share),
            "badput": {
                cause: _rounded(ms / wall if wall else None)
                for cause, ms in goodput.badput.as_dict().items()
            },
            "bill_usd": usd(bill.total),
            "on_demand_usd_same_time": None if same_time is None else usd(same_time),
            "on_demand_usd_same_work": None if same_work is None else usd(same_work),
            "saving_same_work": _rounded(1 - bill.total / same_work) if same_work else None,
            "val_loss_before": losses[0],
            "val_loss_after": losses[1],
        }


def fold(events: Iterable[Event], job: Job | None = None) -> tuple[Goodput, Bill]:
    """Return the goodput and the bill of a run from all of its events."""
    account = Account(job)
    for event in events:
        account.add(event)
    return account.goodput, account.bill


def summary(job: Job, events: Iterable[Event]) -> dict[str, Any]:
    """Return a run's figures under the keys of summary.json (see `Account.summary`)."""
    account = Account(job)
    for event in events:
        account.add(event)
    return account.summary()


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
