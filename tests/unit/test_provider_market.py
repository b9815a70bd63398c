"""The replayed market on its own: how often it is looked at must not change what it does."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.core.market import Capacity, Pool
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.providers.local.market import ReplayedMarket
from surefoot.providers.local.records import VmRecord

POOL = Pool("local", "here", "a", "small")
END_MS = 100_000


def random_trace(random: np.random.Generator) -> Trace:
    times = sorted({0, *random.integers(1, END_MS, 12).tolist()})
    supply = tuple(Step(at, int(random.integers(0, 7))) for at in times)
    reclaims = tuple(
        Reclaim(int(at), int(random.integers(1, 3)), [None, 0, 2_000][random.integers(0, 3)])
        for at in random.integers(1, END_MS, 3)
    )
    record = PoolTrace(
        POOL, supply, (Step(0, 1),), (Step(0, 2),), reclaims, notice_ms=int(random.choice([0, 500]))
    )
    return Trace("random", Semantics.SUPPLY, 0, END_MS, {POOL: record})


def vm(number: int) -> VmRecord:
    token = f"t{number}"
    launch = 1_000 + number
    return VmRecord(token, number, token, "r", POOL, Capacity.SPOT, launch, launch, "", token)


def departures(trace: Trace, looks: list[int]) -> dict[str, int]:
    """Return when each of six VMs is taken by a market that is looked at at these instants."""
    held = {f"t{number}": vm(number) for number in range(6)}
    taken: dict[str, int] = {}
    start = ReplayedMarket(trace, elapsed_ms=1_010)
    settled = start
    for look in looks:
        market = ReplayedMarket(trace, elapsed_ms=look)
        market.settled_ms = settled.settled_ms
        due = market.due(tuple(held.values()))
        for departure in due.taken:
            taken[departure.token] = departure.gone_ms
            del held[departure.token]
        assert due.wake_ms > look
        settled = market
    return taken


@pytest.mark.parametrize("seed", range(60))
def test_how_often_it_is_looked_at_changes_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    trace = random_trace(random)
    fine = list(range(1_020, END_MS, 100))
    coarse = sorted(random.integers(1_020, END_MS - 200, 15).tolist())
    assert departures(trace, [*fine, END_MS]) == departures(trace, [*coarse, END_MS])


def test_wakes_up_for_the_notice_and_again_for_the_end() -> None:
    record = PoolTrace(
        POOL, (Step(0, 1), Step(50_000, 0)), (Step(0, 1),), (Step(0, 2),), notice_ms=8_000
    )
    trace = Trace("one", Semantics.SUPPLY, 0, END_MS, {POOL: record})
    held = [vm(0)]
    assert ReplayedMarket(trace, elapsed_ms=2_000).due(held).wake_ms == 42_000
    told = ReplayedMarket(trace, elapsed_ms=42_000).due(held)
    assert [d.token for d in told.told] == ["t0"] and told.wake_ms == 50_000
    assert [d.token for d in ReplayedMarket(trace, elapsed_ms=50_000).due(held).taken] == ["t0"]
