"""A small run told as events, for the tests of what reports and views make of it."""

from __future__ import annotations

from surefoot.core.event import (
    CheckpointCommitted,
    CheckpointFailed,
    Decided,
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    MetricSeen,
    NoticeReceived,
    OfferingsSeen,
    RunEnded,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.job import Job, Throughput, Work
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Decision, IntervalChoice, Plan

POOL = Pool("local", "east", "east-a", "p3.2xlarge")
START = 1_800_000_000_000
JOB = Job("gpt", 2, (POOL,), Throughput(1, 3), work=Work(total_steps=100))


def decided(at_ms: int, interval_ms: int = 12_000, *, hazard: float = 3.0) -> Decided:
    choice = IntervalChoice(interval_ms, "tuned", hazard, 0.5, 60.0)
    return Decided(at_ms, Decision(at_ms, Plan((), "all is well"), choice, "hybrid", "mixture"))


def launched(token: str, at_ms: int, capacity: Capacity) -> list[Event]:
    return [
        InstanceRequested(at_ms, token, POOL, capacity),
        InstanceLaunched(at_ms + 10, token, f"i-{token}"),
        InstanceReady(at_ms + 5_000, token),
    ]


def told_run(name: str = "gpt-1", *, upto_s: float = 1e9, message: str = "") -> list[Event]:
    """Return events of 100 s: a start, a notice, a silent loss, a stand-in, and the end."""
    spot, demand = Capacity.SPOT, Capacity.ON_DEMAND
    t = START
    events: list[Event] = [
        RunStarted(t, name),
        OfferingsSeen(t, (Offering(POOL, spot, 970_000), Offering(POOL, demand, 3_060_000))),
        decided(t),
        *launched("t-s1", t + 100, spot),
        *launched("t-s2", t + 200, spot),
        GroupFormed(t + 6_000, 1, ("t-s1", "t-s2"), 0),
        MetricSeen(t + 6_100, "val_loss", 5.5, 0),
        *[StepsDone(t + 6_000 + 1_000 * i, i, 1_000, 5.5 - i / 20, 4_096) for i in range(1, 20)],
        CheckpointCommitted(t + 20_000, 14, t + 19_800, 15, 180),
        CheckpointFailed(t + 21_000, 15, "disk full"),
        NoticeReceived(t + 26_000, "t-s1", t + 32_000),
        CheckpointCommitted(t + 27_000, 19, t + 26_500, 20, 300, emergency=True, margin_ms=5_000),
        InstanceGone(t + 32_000, "t-s1", Ending.PREEMPTED_NOTICE),
        *launched("t-d1", t + 33_000, demand),
        GroupFormed(t + 39_000, 2, ("t-s2", "t-d1"), 19),
        *[StepsDone(t + 39_000 + 1_000 * i, 19 + i, 1_000, 4.5, 4_096) for i in range(1, 21)],
        InstanceGone(t + 60_000, "t-s2", Ending.PREEMPTED_SILENT),
        GroupBroken(t + 60_100, 2, message or "peer lost"),
        LaunchFailed(t + 60_300, "t-x", "CapacityError", message or "no spot left"),
        decided(t + 61_000, 6_000, hazard=9.0),
        GroupFormed(t + 62_000, 3, ("t-d1",), 37, 2),
        *[StepsDone(t + 62_000 + 1_000 * i, 37 + i, 2_000, 4.0, 4_096) for i in range(1, 30)],
        MetricSeen(t + 95_000, "val_loss", 3.5, 66),
        InstanceGone(t + 96_000, "t-d1", Ending.RELEASED),
        RunEnded(t + 100_000, "done", message),
    ]
    kept = sorted(events, key=lambda e: e.at_ms)
    return [e for e in kept if e.at_ms <= t + upto_s * 1_000]
