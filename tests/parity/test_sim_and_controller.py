"""One job and one market: the simulator and the live controller decide the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from surefoot.controller import Controller, Settings, Store
from surefoot.core.event import Decided, Event, GroupFormed, InstanceGone, InstanceLaunched
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import Job, Limits, Throughput, Work
from surefoot.core.market import Pool
from surefoot.core.policy import get_policy
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.sim import CostModel, simulate
from surefoot.testing import FakeAgents, FakeClock, FakeProvider, Pace, drive

HOUR, MINUTE = 3_600_000, 60_000
START = 1_700_000_000_000
A, B = Pool("fake", "r1", "a", "gpu"), Pool("fake", "r1", "b", "gpu")

TOLERANCE_MS = 1_000

MODEL = CostModel(jitter=0.0, detect_ms=0, slowdown=0.0)
PACE = Pace(
    step_ms=10_000,
    num_nodes=4,
    reform_ms=MODEL.reform_ms,
    stall_ms=MODEL.stall_ms,
    persist_ms=MODEL.persist_ms,
    restore_ms=MODEL.restore_ms,
)


def pool(
    which: Pool,
    *supply: tuple[int, int],
    spot: tuple[tuple[int, int], ...] = ((0, 1_000_000),),
    reclaims: tuple[Reclaim, ...] = (),
) -> PoolTrace:
    """Return a pool's record; minutes after START, micro-dollars per hour."""
    return PoolTrace(
        pool=which,
        supply=tuple(Step(START + at * MINUTE, n) for at, n in supply),
        spot=tuple(Step(START + at * MINUTE, price) for at, price in spot),
        on_demand=(Step(START, 3_000_000),),
        reclaims=reclaims,
        boot_ms=60_000,
    )


def market(name: str, *pools: PoolTrace) -> Trace:
    """Return a market of six hours."""
    return Trace(name, Semantics.SUPPLY, START, START + 6 * HOUR, {p.pool: p for p in pools})


MARKETS = [
    market("calm", pool(A, (0, 8))),
    market("drought", pool(A, (0, 8), (63, 1), (171, 8))),
    market(
        "two pools",
        pool(A, (0, 6), (47, 2), (92, 0), (150, 6), (211, 3)),
        pool(B, (0, 1), (33, 5), (140, 0), (201, 4), (290, 8)),
    ),
    market(
        "reclaims and prices",
        pool(
            A,
            (0, 8),
            spot=((0, 1_000_000), (50, 2_500_000), (120, 900_000)),
            reclaims=(
                Reclaim(START + 71 * MINUTE, 2),
                Reclaim(START + 133 * MINUTE, 1, 0),
                Reclaim(START + 205 * MINUTE, 4, 30_000),
            ),
        ),
    ),
]


@dataclass(frozen=True)
class Story:
    """What one shell did."""

    decided: list[tuple[int, str]]
    """Decisions that act; the others are recorded for their figures, which are rounded apart."""
    launched: list[tuple[int, str]]
    lost: list[tuple[int, str, str]]
    """VMs that the market took; our own releases wait for a last checkpoint in one shell only."""
    groups: list[tuple[int, tuple[str, ...]]]


def story(events: list[Event], run: str) -> Story:
    """Return what matters of a journal, in words that both shells share."""

    def short(token: str) -> str:
        return token.removeprefix(f"{run}-")

    def act(event: Decided) -> str:
        return str(event.decision.plan.actions).replace(f"'{run}-", "'")

    at = START
    return Story(
        [
            (e.at_ms - at, act(e))
            for e in events
            if isinstance(e, Decided) and e.decision.plan.actions
        ],
        [(e.at_ms - at, short(e.token)) for e in events if isinstance(e, InstanceLaunched)],
        sorted(
            (e.at_ms - at, short(e.token), e.ending.value)
            for e in events
            if isinstance(e, InstanceGone) and e.ending.is_preemption
        ),
        [
            (e.at_ms - at, tuple(short(t) for t in e.members))
            for e in events
            if isinstance(e, GroupFormed)
        ],
    )


def same(lived: list[Any], told: list[Any], *, within_ms: int = TOLERANCE_MS) -> None:
    """Assert equal facts in equal order, at instants that differ by a save's stalls at most.

    A save begins a step earlier in one shell than in the other, which shifts step boundaries.
    Groups change at step boundaries: when one falls a few ms before the order to leave in one
    shell and after it in the other, they change a whole step apart, so that is allowed for them.
    """
    assert [row[1:] for row in lived] == [row[1:] for row in told]
    for here, there in zip(lived, told, strict=True):
        assert abs(here[0] - there[0]) <= within_ms, (here, there)


def live(job: Job, trace: Trace, path: Path) -> list[Event]:
    """Run the live controller on a fake clock; return its journal."""
    clock = FakeClock(START)
    provider = FakeProvider(trace, clock)
    agents = FakeAgents(provider, clock, pace=PACE, total_steps=job.work.total_steps)
    store = Store(path / "journal.db")
    controller = Controller(
        job,
        provider,
        agents=agents,
        store=store,
        clock=clock,
        policy=get_policy(job.policy),
        forecaster=get_forecaster(job.forecaster),
        run="sim",
        settings=Settings(poll_ms=10 * MINUTE, renew_ms=HOUR, stale_price_ms=HOUR),
    )
    drive(controller, clock, provider, agents, until_ms=trace.end_ms - 1)
    return [event for _, event in store.events("sim")]


def job_of(policy: str, pools: tuple[Pool, ...]) -> Job:
    return Job(
        name="parity",
        num_nodes=4,
        pools=pools,
        throughput=Throughput(2, 6),
        limits=Limits(deadline_ms=START + 8 * HOUR),
        work=Work(total_steps=1_800, step_ms=PACE.step_ms),
        policy=policy,
    )


@pytest.mark.parametrize("policy", ["on-demand", "spot-only", "greedy", "hybrid"])
@pytest.mark.parametrize("trace", MARKETS, ids=lambda t: t.name)
def test_simulator_and_controller_decide_the_same(
    trace: Trace, policy: str, tmp_path: Path
) -> None:
    job = job_of(policy, tuple(trace.pools))
    outcome = simulate(job, trace, model=MODEL, keep_events=True)
    told = story(list(outcome.events), "sim")
    lived = story(live(job, trace, tmp_path), "sim")
    same(lived.decided, told.decided)
    same(lived.launched, told.launched)
    same(lived.lost, told.lost)
    same(lived.groups, told.groups, within_ms=PACE.step_ms + TOLERANCE_MS)
