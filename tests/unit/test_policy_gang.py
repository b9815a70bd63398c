"""Gangs with a deadline: the table, and whole runs of it in the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from policy_world import USD, H, forecast, job, on_demand, pool, seen, spot, vm

from surefoot.core.fleet import InstanceState, Progress
from surefoot.core.job import Limits, Work
from surefoot.core.market import Capacity
from surefoot.core.policy import get_policy, policy_for
from surefoot.core.policy.finish import market, run_on
from surefoot.core.policy.gang import Mode, Problem, solve
from surefoot.core.policy.terms import steps_per_h, with_rate
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.sim import CostModel, simulate

A = pool("a")
TICK_H = 1 / 12
WIDTHS = np.array([0.25, 0.25, 0.5, 1.0, 2.0, 4.0, np.inf])


def problem(ticks, units, *, switch=2, window=0.5, drought=1.0):
    odds = [tuple(float(1 - np.exp(-r * TICK_H)) for _ in WIDTHS) for r in (window, drought)]
    advance = tuple(float(x) for x in np.minimum(1.0, TICK_H / WIDTHS))
    return Problem(ticks, units, 1, switch, 0.97, 3.06, *odds, advance)


def test_without_slack_the_gang_runs_on_demand_and_stays_there():
    table = solve(problem(50, 48))
    assert table.best(50, 48, Mode.IDLE, overhead=0, spell=0) is Mode.SAFE
    assert table.best(40, 40, Mode.SAFE, overhead=0, spell=0) is Mode.SAFE


def test_with_slack_the_gang_waits_out_a_drought_and_takes_a_window():
    table = solve(problem(120, 48))
    assert table.best(120, 48, Mode.IDLE, overhead=0, spell=7) is Mode.IDLE
    assert table.best(120, 48, Mode.IDLE, overhead=0, spell=0) is Mode.SPOT


def test_a_long_switch_keeps_the_gang_from_hopping_onto_short_windows():
    quick = solve(problem(110, 100, switch=1, window=2.5))
    slow = solve(problem(110, 100, switch=5, window=2.5))
    assert quick.best(106, 100, Mode.SAFE, overhead=0, spell=0) is Mode.SPOT
    assert slow.best(106, 100, Mode.SAFE, overhead=0, spell=0) is Mode.SAFE


def test_work_that_is_late_already_still_hurries():
    table = solve(problem(40, 48))
    assert table.best(40, 48, Mode.IDLE, overhead=0, spell=7) is Mode.SAFE


def test_the_expected_cost_lies_between_all_spot_and_all_on_demand():
    table = solve(problem(144, 96))
    cost = table.cost[96]
    assert np.all(cost >= 96 * 0.97 - 1e-9)
    assert np.all(cost <= 98 * 3.06 + 1e-9)


def test_a_step_time_from_before_a_change_of_members_is_not_believed():
    terms = job(A, nodes=1, floor=0, ceiling=1, work=Work(total_steps=36_000, step_ms=1_000))
    one = Progress(steps_done=10, step_ms=500, members=1)
    before = seen((), (vm("a", A),), progress=one)
    memory = with_rate(terms, before)
    assert steps_per_h(terms, before) == pytest.approx(7_200)
    two = Progress(steps_done=10, step_ms=500, members=2)
    mixed = seen((), (vm("a", A), vm("b", A)), progress=two, memory=memory)
    assert steps_per_h(terms, mixed) == pytest.approx(7_200)
    fresh = Progress(steps_done=20, step_ms=260, members=2)
    measured = seen((), (vm("a", A), vm("b", A)), progress=fresh, memory=memory)
    assert steps_per_h(terms, measured) == pytest.approx(3_600_000 / 260 / 2)


def test_one_spot_vm_is_asked_for_where_the_market_does_not_tell():
    terms = dict(nodes=1, floor=0, ceiling=1, work=Work(total_steps=36_000, step_ms=1_000))
    loose = job(A, limits=Limits(deadline_ms=40 * H), **terms)
    told = {A: forecast(A, 0.2, in_drought=True, window_h=0.3, launch_odds=0.1)}
    plan = get_policy("hybrid").decide(loose, seen((spot(A, 0.3), on_demand(A, 1.0))), told)
    assert [a.count for a in plan.actions] == [1]
    assert "to learn whether there is any" in plan.reason
    assert plan.revisit_at_ms == 10 * H + 1_000


def test_a_probe_that_is_granted_and_not_wanted_is_ended():
    probe = vm("p0", A, state=InstanceState.STARTING, since_ms=10 * H)
    look = seen((spot(A, 0.3), on_demand(A, 1.0)), (vm("d0", A, Capacity.ON_DEMAND), probe))
    terms = job(A, nodes=1, floor=0, ceiling=1, work=Work(total_steps=36_000, step_ms=1_000))
    around = market(terms, look, {A: forecast(A)})
    plan = run_on(terms, look, Mode.SAFE, around, reason="", memory={})
    assert "p0" in {getattr(a, "token", "") for a in plan.actions}


def windows(seed, up_h=1.5, down_h=1.0, hours=40):
    """One VM's worth of supply in exponential windows and droughts."""
    rng = np.random.default_rng(seed)
    steps, at, up = [], 0.0, True
    while at < hours:
        steps.append(Step(int(at * H), int(up)))
        at += rng.exponential(up_h if up else down_h) + 0.02
        up = not up
    prices = ((Step(0, 970_000),), (Step(0, 3_060_000),))
    record = PoolTrace(A, tuple(steps), *prices, notice_ms=0, boot_ms=90_000)
    return Trace(f"windows-{seed}", Semantics.SUPPLY, 0, hours * H, {A: record})


@pytest.mark.parametrize("seed", range(3))
def test_a_run_meets_its_deadline_for_less_than_the_rivals_and_more_than_the_oracle(seed):
    trace = windows(seed)
    terms = job(
        A,
        nodes=1,
        floor=0,
        ceiling=1,
        limits=Limits(deadline_ms=15 * H),
        work=Work(total_steps=12 * 720, step_ms=5_000),
    )
    costs = CostModel(reform_ms=5_000, restore_ms=60_000, jitter=0.0)
    bills = {}
    for name in ("hybrid", "greedy", "on-demand", "oracle"):
        run = simulate(terms, trace, policy=policy_for(name, trace), model=costs, seed=seed)
        assert run.result == "done"
        bills[name] = run.bill.total / USD
        if name != "oracle":  # it knows windows, but plans in ticks of five minutes
            assert run.end_ms <= 15 * H, f"{name} was late (seed {seed})"
    assert bills["hybrid"] < bills["on-demand"]
    assert bills["hybrid"] <= bills["greedy"] * 1.02, f"seed {seed}: {bills}"
    assert bills["hybrid"] >= bills["oracle"] * 0.97, f"seed {seed}: {bills}"
