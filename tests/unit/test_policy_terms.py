"""Average floors, blind forecasts, anchors: the finer terms of the hybrid policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_world import (
    USD,
    H,
    S,
    World,
    asked,
    forecast,
    job,
    let_go,
    on_demand,
    pool,
    seen,
    spot,
    vm,
)

from surefoot.core.fleet import CheckpointCost, FleetCost, InstanceState
from surefoot.core.job import FloorKind, Limits, Work
from surefoot.core.market import Capacity
from surefoot.core.policy import get_policy
from surefoot.core.policy.average import bank, floor_now

A = pool("a")
HYBRID = get_policy("hybrid")
SPOT, SAFE = Capacity.SPOT, Capacity.ON_DEMAND
ONE = (spot(A, 0.3), on_demand(A, 1.0))
QUICK = FleetCost(boot_ms=60_000, reform_ms=500, detect_ms=1_000)
AVERAGE = job(A, floor=8, ceiling=16, kind=FloorKind.AVERAGE)


def fleet(count, capacity=SPOT, prefix="s", since_ms=0):
    return tuple(vm(f"{prefix}{i}", A, capacity, since_ms=since_ms) for i in range(count))


def test_a_surplus_of_good_hours_pays_for_a_drought():
    memory = {"bank.h": 40.0, "bank.at": float(10 * H), "bank.rate": 0.0}
    look = seen(ONE, failures={A: 11 * H}, memory=memory, fleet_cost=QUICK)
    told = {A: forecast(A, in_drought=True, window_h=2.0)}
    assert asked(HYBRID.decide(AVERAGE, look, told), SAFE) == 0
    poor = seen(ONE, failures={A: 11 * H}, fleet_cost=QUICK)
    assert asked(HYBRID.decide(AVERAGE, poor, told), SAFE) == 8


def test_the_bank_adds_up_speed_beyond_the_floor_and_is_cut_to_a_window():
    memory = {"bank.h": 1.0, "bank.at": float(9 * H), "bank.rate": 4.0}
    now = bank(AVERAGE, seen(ONE, fleet(8), memory=memory))
    assert now.surplus_h == pytest.approx(5.0)
    assert now.memory["bank.rate"] == 0.0
    rich = {"bank.h": 1e6, "bank.at": float(9 * H), "bank.rate": 4.0}
    assert bank(AVERAGE, seen(ONE, memory=rich)).surplus_h == 8 * 24


def test_what_is_owed_raises_the_floor_but_never_beyond_the_ceiling():
    look = seen(ONE, fleet_cost=QUICK)
    assert floor_now(AVERAGE, look, -9.0, 1.0) == pytest.approx(11.0)
    assert floor_now(AVERAGE, look, -900.0, 1.0) == 16.0
    assert floor_now(job(A), look, 900.0, 1.0) == 8.0


def test_a_blind_forecast_sends_one_scout_before_the_fleet_returns():
    held = fleet(8, SAFE, "d")
    blind = {A: forecast(A, observed_losses=0)}
    first = HYBRID.decide(job(A), seen(ONE, held, fleet_cost=QUICK), blind)
    assert asked(first, SPOT) == 1
    assert "no loss seen yet" in first.reason
    young = (*held, vm("s0", A, since_ms=10 * H - 10 * S))
    assert asked(HYBRID.decide(job(A), seen(ONE, young, fleet_cost=QUICK), blind), SPOT) == 0
    calm = (*held, vm("s0", A, since_ms=9 * H))
    assert asked(HYBRID.decide(job(A), seen(ONE, calm, fleet_cost=QUICK), blind), SPOT) == 7


def test_an_anchor_is_held_when_losing_everything_would_cost_more_than_it():
    big = job(A, nodes=256)
    slow = CheckpointCost(stall_ms=60_000, persist_ms=900_000, restore_ms=900_000)
    told = {A: forecast(A, 1.0, events_per_h=1.0, event_share=0.9)}
    held = fleet(256)
    with_anchor = HYBRID.decide(big, seen(ONE, held, save_cost=slow, fleet_cost=QUICK), told)
    assert asked(with_anchor, SAFE) == 1
    assert "anchor" in with_anchor.reason
    quick = replace(slow, stall_ms=10, persist_ms=1_000, restore_ms=1_000)
    without = HYBRID.decide(job(A), seen(ONE, fleet(8), save_cost=quick, fleet_cost=QUICK), told)
    assert asked(without, SAFE) == 0


def test_a_budget_is_never_exceeded_by_a_whole_run():
    tight = job(A, limits=Limits(budget_micro_usd=2 * USD))
    world = World(tight, HYBRID, lambda *_: 16, lambda _: ONE).run(3 * H, tick_ms=S)
    assert world.spent <= 2 * USD
    assert world.spent >= 1.6 * USD
    assert len(world.state.fleet) == 0


def test_a_deadline_gang_idles_in_a_drought_with_slack_and_runs_when_it_must():
    terms = dict(nodes=1, floor=0, ceiling=1, work=Work(total_steps=36_000, step_ms=1_000))
    closed = (spot(A, 0.3, available=0), on_demand(A, 1.0))
    told = {A: forecast(A, 0.2, in_drought=True, window_h=0.3, launch_odds=0.1)}
    loose = job(A, limits=Limits(deadline_ms=40 * H), **terms)
    plan = HYBRID.decide(loose, seen(closed, failures={A: 11 * H}), told)
    assert not plan.actions and "idle" in plan.reason and "drought" in plan.reason
    tight = job(A, limits=Limits(deadline_ms=20 * H + 75 * S), **terms)
    told = {A: forecast(A, 0.2, in_drought=True, window_h=5.0, launch_odds=0.1)}
    plan = HYBRID.decide(tight, seen(closed, failures={A: 11 * H}), told)
    assert asked(plan, SAFE) == 1


def test_a_deadline_gang_checkpoints_before_it_idles():
    terms = dict(nodes=1, floor=0, ceiling=1, work=Work(total_steps=36_000, step_ms=1_000))
    closed = (spot(A, 0.3, available=0), on_demand(A, 1.0))
    told = {A: forecast(A, 0.2, in_drought=True, window_h=0.2, launch_odds=0.1)}
    loose = job(A, limits=Limits(deadline_ms=60 * H), **terms)
    held = (vm("d0", A, SAFE),)
    plan = HYBRID.decide(loose, seen(closed, held, failures={A: 11 * H}), told)
    assert let_go(plan) == {"d0"}
    assert type(plan.actions[0]).__name__ == "Checkpoint"
    assert held[0].state is InstanceState.READY
