"""What holds in every simulated run, whatever the market does."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.core.event import (
    CheckpointCommitted,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    RestoreDone,
    State,
    StepsDone,
    apply,
)
from surefoot.core.job import IntervalRule, Job, Limits, Throughput, Work
from surefoot.core.market import Capacity, Pool
from surefoot.core.replay import Replay
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.sim import CostModel, simulate

POOLS = (Pool("local", "here", "a", "small"), Pool("local", "here", "b", "small"))
MIN = 60_000

supplies = st.lists(st.integers(0, 6) | st.none(), min_size=1, max_size=10)
losses = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 3), st.sampled_from((0, 30, 120))))
policies = st.sampled_from(("greedy", "spot-only", "hybrid", "on-demand"))
models = st.builds(
    CostModel,
    boot_ms=st.integers(0, 5 * MIN),
    reform_ms=st.integers(0, 30_000),
    stall_ms=st.integers(0, 5_000),
    persist_ms=st.integers(0, 3 * MIN),
    restore_ms=st.integers(0, MIN),
    detect_ms=st.integers(0, 5_000),
    slowdown=st.floats(0, 1),
    replicated=st.booleans(),
    jitter=st.floats(0, 0.5),
    lost_notices=st.floats(0, 1),
    hardware_per_vm_h=st.sampled_from((0.0, 0.5)),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Job, Trace, dict[str, Any]]:
    records = {}
    for pool in POOLS:
        steps = tuple(Step(i * 10 * MIN, v) for i, v in enumerate(draw(supplies)))
        reclaims = tuple(Reclaim(at * MIN, n, s * 1000) for at, n, s in draw(losses))
        price = draw(st.integers(100_000, 2_000_000))
        records[pool] = PoolTrace(
            pool, steps, (Step(0, price),), (Step(0, 3_000_000),), reclaims, boot_ms=MIN
        )
    trace = Trace("t", Semantics.SUPPLY, 0, 100 * MIN, records)
    nodes = draw(st.integers(1, 5))
    job = Job(
        "j",
        nodes,
        POOLS,
        Throughput(draw(st.integers(0, nodes)), nodes + draw(st.integers(0, 3))),
        limits=Limits(budget_micro_usd=draw(st.sampled_from((None, 2_000_000, 9_000_000)))),
        work=Work(
            total_steps=draw(st.sampled_from((None, 500, 3_000))),
            step_ms=draw(st.sampled_from((333, 1_000, 20_000))),
        ),
        interval=IntervalRule(min_ms=MIN),  # free saves every second would only be slow
        policy=draw(policies),
        forecaster="gamma_poisson",
    )
    return job, trace, {"model": draw(models), "seed": draw(st.integers(0, 99))}


@settings(max_examples=12, deadline=None)
@given(runs())
def test_every_run_is_a_legal_history_that_ends_clean(
    run: tuple[Job, Trace, dict[str, Any]],
) -> None:
    job, trace, terms = run
    outcome = simulate(job, trace, keep_events=True, **terms)
    state, safe, at = State(), 0, 0
    for event in outcome.events:
        assert event.at_ms >= at, event
        at = event.at_ms
        if isinstance(event, GroupFormed):
            assert len(set(event.members)) == len(event.members) > 0
            assert all(state.fleet.get(m) is not None for m in event.members)
            assert event.step + event.lost_steps >= safe
        if isinstance(event, CheckpointCommitted):
            safe = max(safe, event.step)
        if isinstance(event, RestoreDone):
            assert event.step == safe
        if isinstance(event, StepsDone):
            assert event.step > state.progress.steps_done
        state = apply(state, event)
    assert len(state.fleet) == 0
    assert state.outcome == outcome.result
    assert outcome.bill.unknown_ms == 0
    if job.limits.budget_micro_usd is not None:
        assert outcome.bill.total <= job.limits.budget_micro_usd
    if outcome.result == "done":
        assert safe == state.progress.steps_done == job.work.total_steps


@settings(max_examples=8, deadline=None)
@given(runs())
def test_no_pool_ever_holds_more_spot_than_the_trace_grants(
    run: tuple[Job, Trace, dict[str, Any]],
) -> None:
    job, trace, terms = run
    outcome = simulate(job, trace, keep_events=True, **terms)
    replay, held, pools = Replay(trace), dict[str, Pool](), dict[str, Pool]()
    for event in outcome.events:
        if isinstance(event, InstanceRequested) and event.capacity is Capacity.SPOT:
            pools[event.token] = event.pool
        if isinstance(event, InstanceLaunched) and event.token in pools:
            held[event.token] = pools[event.token]
            supply = replay.supply(pools[event.token], event.at_ms)
            assert supply is not None
            assert sum(p == held[event.token] for p in held.values()) <= supply
        if isinstance(event, InstanceGone):
            held.pop(event.token, None)
    assert not held


@settings(max_examples=12, deadline=None)
@given(runs())
def test_equal_seeds_agree_and_telling_less_changes_no_figure(
    run: tuple[Job, Trace, dict[str, Any]],
) -> None:
    """A run without events passes a calm spell's saves as one sum."""
    job, trace, terms = run
    told = simulate(job, trace, keep_events=True, **terms)
    quiet = simulate(job, trace, **terms)
    assert simulate(job, trace, keep_events=True, **terms).as_dict() == told.as_dict()
    assert simulate(job, trace, **terms).as_dict() == quiet.as_dict()
    assert {**quiet.as_dict(), "events": told.events_seen} == told.as_dict()
