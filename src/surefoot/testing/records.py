"""Runs' folders made from events, as `surefoot run` leaves them: small ones, and one at scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from surefoot.controller.store import Store
from surefoot.core.event import (
    CheckpointCommitted,
    Decided,
    Event,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    NoticeReceived,
    OfferingsSeen,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Decision, IntervalChoice, Plan
from surefoot.report.card import CARD, JOURNAL, Card
from surefoot.report.strict import strict_json

START_MS, HOUR_MS = 1_800_000_000_000, 3_600_000
POOLS = tuple(Pool("fake", "r1", f"r1{zone}", "gpu.8xlarge") for zone in "abcdef")


def write_run(
    folder: Path, events: Iterable[Event], *, card: Card, owner: str = "test:1", led: bool = False
) -> None:
    """Write a run's folder: its card, and its journal, whose lease is given back unless `led`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).write_text(strict_json(card) + "\n", encoding="utf-8")
    store = Store(folder / JOURNAL)
    journal = store.acquire(card.run, owner, now_ms=0)
    facts = list(events)
    for begin in range(0, len(facts), 1_000):
        journal.extend(facts[begin : begin + 1_000])
    if not led:
        journal.release()
    store.close()


def big_card(run: str = "big-1", *, vms: int = 1_000) -> Card:
    """Return the card of the run that `big_run` tells."""
    pools = tuple(str(pool) for pool in POOLS)
    return Card(run, "big", vms, "hybrid", pools, steps=10**6, ceiling=vms, started_ms=START_MS)


def big_run(run: str = "big-1", *, vms: int = 1_000, events: int = 20_000) -> Iterator[Event]:
    """Yield about `events` facts of 90 days with `vms` VMs held at any time.

    Prices change hourly; one VM in turn is preempted and replaced, and steps and saves go on.
    """
    at_ms = START_MS
    yield RunStarted(at_ms, run)
    yield _offers(at_ms, 0)
    yield _decided(at_ms, 1.0)
    for number in range(vms):
        yield from _joined(at_ms, number)
    members = tuple(f"{run}-{number}" for number in range(min(vms, 64)))
    yield GroupFormed(at_ms + 60_000, 1, members, 0)
    turns = max(90 * 24, (events - 3 * vms - 4) * 10 // 13)
    span_ms, step, oldest, newest = 90 * 24 * HOUR_MS // turns, 0, 0, vms
    for turn in range(turns):
        at_ms, hour = START_MS + 120_000 + turn * span_ms, turn * 90 * 24 // turns
        kind = turn % 10
        if kind in (0, 5):
            yield _offers(at_ms, hour)
        elif kind == 1:
            yield NoticeReceived(at_ms, f"{run}-{oldest}", at_ms + 120_000)
        elif kind == 2:
            yield InstanceGone(at_ms, f"{run}-{oldest}", Ending.PREEMPTED_NOTICE)
            yield from _joined(at_ms, newest, run)
            oldest, newest = oldest + 1, newest + 1
        elif kind == 3:
            yield CheckpointCommitted(at_ms, step, at_ms - 9_000, 40, 8_000, 10**9)
        elif kind == 4:
            yield _decided(at_ms, 0.5 + (hour % 24) / 24)
        else:
            step += 60
            loss = 1.8 + 3.6 * 0.9997 ** (step / 60)
            yield StepsDone(at_ms, step, 9_000 + 10 * (hour % 24), loss, 1 << 20)


def _joined(at_ms: int, number: int, run: str = "big-1") -> Iterator[Event]:
    token, pool = f"{run}-{number}", POOLS[number % len(POOLS)]
    capacity = Capacity.ON_DEMAND if number % 20 == 0 else Capacity.SPOT
    yield InstanceRequested(at_ms, token, pool, capacity)
    yield InstanceLaunched(at_ms + 1_000, token, f"i-{number:08x}")
    yield InstanceReady(at_ms + 55_000, token)


def _offers(at_ms: int, hour: int) -> OfferingsSeen:
    spot = [
        Offering(pool, Capacity.SPOT, 900_000 + 1_000 * ((hour * (7 + index)) % 331))
        for index, pool in enumerate(POOLS)
    ]
    return OfferingsSeen(
        at_ms, (*spot, *(Offering(pool, Capacity.ON_DEMAND, 3_060_000) for pool in POOLS))
    )


def _decided(at_ms: int, hazard: float) -> Decided:
    choice = IntervalChoice(600_000, "tuned", hazard, 0.9, 60.0)
    plan = Plan((), "the fleet is as it should be", at_ms + HOUR_MS)
    return Decided(at_ms, Decision(at_ms, plan, choice, "hybrid", "mixture"))
