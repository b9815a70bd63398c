"""The hybrid policy: the floor at least cost, and the cases that it must get right."""

from __future__ import annotations

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

from surefoot.core.fleet import FleetCost, InstanceState
from surefoot.core.job import Limits, Work
from surefoot.core.market import Capacity
from surefoot.core.plan import Launch
from surefoot.core.policy import get_policy
from surefoot.core.policy.fixed_mix import split

A, B, C = pool("a"), pool("b"), pool("c")
HYBRID = get_policy("hybrid")
SPOT, SAFE = Capacity.SPOT, Capacity.ON_DEMAND
ONE = (spot(A, 0.3), on_demand(A, 1.0))
QUICK = FleetCost(boot_ms=60_000, reform_ms=500, detect_ms=1_000)


def plan_of(the_job, look, *, rate=0.1, **fields):
    return HYBRID.decide(the_job, look, {p: forecast(p, rate, **fields) for p in the_job.pools})


def fleet(count, where=A, capacity=SPOT, state=InstanceState.READY, prefix="s", since_ms=0):
    return tuple(
        vm(f"{prefix}{i}", where, capacity, state, since_ms=since_ms) for i in range(count)
    )


def test_asks_for_spot_when_it_is_cheap_and_to_be_had():
    plan = plan_of(job(A), seen(ONE))
    assert (asked(plan, SPOT), asked(plan, SAFE)) == (8, 0)
    assert "$0.300 against $1.000" in plan.reason


def test_falls_back_to_on_demand_when_spot_is_refused():
    plan = plan_of(job(A), seen(ONE, failures={A: 11 * H}))
    assert (asked(plan, SPOT), asked(plan, SAFE)) == (0, 8)
    assert "set aside" in plan.reason


def test_replaces_a_vm_with_a_notice_before_it_is_gone():
    vms = (*fleet(7), vm("dying", A, state=InstanceState.NOTICED))
    plan = plan_of(job(A), seen(ONE, vms, failures={A: 11 * H}))
    assert asked(plan, SAFE) == 1
    assert not let_go(plan)


def test_case_22_goes_back_to_spot_after_a_drought():
    def supply(_where, t_ms):
        return 0 if H <= t_ms < 1.5 * H else 8

    world = World(job(A), HYBRID, supply, lambda _: ONE).run(3 * H, tick_ms=5 * S)
    assert world.ready(SPOT) == 8
    assert world.ready(SAFE) == 0
    back = next(t for t, s, d, _ in world.log if t > 1.5 * H and s == 8 and d == 0)
    assert back < 1.5 * H + 5 * 60 * S


def test_keeps_the_floor_through_the_whole_drought_except_for_boots():
    def supply(_where, t_ms):
        return 0 if H <= t_ms < 1.5 * H else 8

    world = World(job(A), HYBRID, supply, lambda _: ONE).run(2 * H, tick_ms=5 * S)
    short = [t for t, s, d, _ in world.log if s + d < 8 and t > 70 * S]
    assert all(H <= t <= H + 70 * S for t in short)


def test_case_22_does_not_go_back_when_the_window_would_not_repay_the_switch():
    held = fleet(8, capacity=SAFE, prefix="d")
    stable = plan_of(job(A), seen(ONE, held, fleet_cost=QUICK), rate=0.1)
    shaky = plan_of(job(A), seen(ONE, held, fleet_cost=QUICK), rate=60.0)
    assert asked(stable, SPOT) == 8
    assert asked(shaky, SPOT) == 0


def test_lets_on_demand_go_only_after_the_replacements_are_ready():
    held = fleet(8, capacity=SAFE, prefix="d")
    starting = fleet(8, state=InstanceState.STARTING, since_ms=10 * H - 1)
    assert not let_go(plan_of(job(A), seen(ONE, (*held, *starting))))
    half = (*held, *fleet(5), *fleet(3, state=InstanceState.STARTING, prefix="t", since_ms=10 * H))
    plan = plan_of(job(A), seen(ONE, half))
    assert len(let_go(plan)) == 5
    assert all(token.startswith("d") for token in let_go(plan))


def test_case_23_spreads_over_pools_of_like_price():
    offers = (spot(A, 1.0), spot(B, 1.02), spot(C, 1.05), on_demand(A, 3.0))
    plan = plan_of(job(A, B, C), seen(offers))
    counts = {a.pool: a.count for a in plan.actions if isinstance(a, Launch)}
    assert sum(counts.values()) == 8
    assert max(counts.values()) <= 4
    later = plan_of(job(A, B, C), seen(offers, fleet(4) + fleet(4, B, prefix="b")))
    assert "largest single loss 4 VMs' worth" in later.reason


def test_case_24_price_cap_starts_nothing_dearer_of_any_capacity():
    capped = job(A, limits=Limits(max_price_micro_usd_h=10_000))
    plan = plan_of(capped, seen(ONE))
    assert not plan.actions
    assert "price cap" in plan.reason


def test_case_25_skips_a_pool_over_the_cap_and_says_so():
    capped = job(A, B, C, limits=Limits(max_price_micro_usd_h=USD))
    plan = plan_of(capped, seen((spot(A, 1.5), spot(B, 0.9), spot(C, 0.95))))
    assert {a.pool for a in plan.actions} <= {B, C}
    assert asked(plan, SPOT) == 8
    assert "1 offerings over the price cap" in plan.reason


def test_case_26_takes_on_demand_when_spot_is_dearer_and_logs_both_prices():
    plan = plan_of(job(A), seen((spot(A, 1.2), on_demand(A, 1.0))), rate=0.05)
    assert (asked(plan, SPOT), asked(plan, SAFE)) == (0, 8)
    assert "$1.200" in plan.reason and "$1.000" in plan.reason


def test_case_26_replaces_held_spot_that_has_become_dearer():
    dear = (spot(A, 1.5), on_demand(A, 1.0))
    plan = plan_of(job(A), seen(dear, fleet(8)))
    assert asked(plan, SAFE) == 8 and not let_go(plan)
    both = (*fleet(8), *fleet(8, capacity=SAFE, prefix="d"))
    assert let_go(plan_of(job(A), seen(dear, both))) == {f"s{i}" for i in range(8)}


@pytest.mark.parametrize(
    ("nodes", "base", "share", "expected"),
    [
        (10, 2, 0.5, (6, 4)),
        (1, 0, 0.5, (1, 0)),
        (1, 1, 0.0, (1, 0)),
        (3, 0, 0.33, (1, 2)),
        (3, 5, 0.0, (3, 0)),
        (0, 2, 0.5, (0, 0)),
        (7, 2, 1.0, (7, 0)),
    ],
)
def test_case_27_base_and_percentage_are_whole_and_add_up(nodes, base, share, expected):
    assert split(nodes, base, share) == expected


def test_case_27_holds_the_on_demand_base_beside_spot():
    plan = plan_of(job(A, on_demand_base=2), seen(ONE))
    assert asked(plan, SAFE) == 2
    kept = (*fleet(8), *fleet(2, capacity=SAFE, prefix="d"))
    assert not any(
        t.startswith("d") for t in let_go(plan_of(job(A, on_demand_base=2), seen(ONE, kept)))
    )


@pytest.mark.parametrize(
    ("ready", "starting", "stand_ins"), [(0, 2, 0), (1, 1, 0), (2, 0, 0), (1, 0, 1)]
)
def test_case_28_stand_ins_are_the_floor_less_spot_ready_or_soon_ready(ready, starting, stand_ins):
    vms = fleet(ready) + fleet(starting, state=InstanceState.STARTING, prefix="t", since_ms=10 * H)
    plan = plan_of(job(A, nodes=2), seen(ONE, vms, failures={A: 11 * H}))
    assert asked(plan, SAFE) == stand_ins


def test_case_28_a_spot_vm_that_is_overdue_no_longer_counts():
    late = fleet(2, state=InstanceState.STARTING, since_ms=10 * H - 200 * S)
    plan = plan_of(job(A, nodes=2), seen(ONE, late, failures={A: 11 * H}))
    assert asked(plan, SAFE) == 2


def test_case_29_cools_off_on_demand_after_repeated_preemptions_then_tries_again():
    def supply(_where, t_ms):
        return 7 if any(a <= t_ms / S < a + 10 for a in (600, 760, 920)) else 8

    world = World(job(A), HYBRID, supply, lambda _: ONE).run(1800 * S, tick_ms=5 * S)
    after = [p for t, _, _, p in world.log if 920 * S <= t < 1200 * S and p.actions]
    assert "cooling off" in after[0].reason
    assert asked(after[0], SAFE) == 1
    assert asked(after[0], SPOT) == 0
    assert world.ready(SPOT) == 8 and world.ready(SAFE) == 0


def test_case_123_pending_launches_count_as_capacity():
    pending = fleet(8, state=InstanceState.REQUESTED, since_ms=10 * H)
    plan = plan_of(job(A), seen(ONE, pending))
    assert not plan.actions


def test_grows_beyond_the_floor_when_spot_is_plentiful_and_cheap():
    plan = plan_of(job(A, floor=8, ceiling=16), seen(ONE, fleet(8)))
    assert asked(plan, SPOT) == 8


def test_does_not_grow_when_the_curve_makes_more_vms_worse_value_than_on_demand():
    flat = Work(scaling=((1, 1.0), (8, 8.0), (16, 8.8)))
    plan = plan_of(job(A, floor=8, ceiling=16, work=flat), seen(ONE, fleet(8)))
    assert asked(plan, SPOT) == 0


def test_never_asks_for_more_than_the_size_limit():
    plan = plan_of(job(A, floor=8, ceiling=16, limits=Limits(max_vms=10)), seen(ONE, fleet(8)))
    assert asked(plan, SPOT) == 2


def test_ends_the_fleet_in_good_order_when_the_budget_is_spent():
    tight = job(A, limits=Limits(budget_micro_usd=USD))
    plan = plan_of(tight, seen(ONE, fleet(8), spent=USD - 1_000))
    assert let_go(plan) == {f"s{i}" for i in range(8)}
    assert "budget" in plan.reason


def test_lets_everything_go_when_the_work_is_done():
    plan = plan_of(job(A, work=Work(total_steps=0)), seen(ONE, fleet(8)))
    assert len(let_go(plan)) == 8


def test_runs_on_demand_when_the_slack_before_the_deadline_is_gone():
    terms = dict(nodes=1, floor=0, ceiling=1, work=Work(total_steps=3600, step_ms=1_000))
    tight = job(A, limits=Limits(deadline_ms=11 * H + 60 * S), **terms)
    plan = plan_of(tight, seen(ONE))
    assert asked(plan, SAFE) == 1


def test_asks_for_one_where_a_drought_is_believed_and_doubles_with_each_grant():
    plan = plan_of(job(A), seen(ONE), in_drought=True)
    assert asked(plan, SPOT) == 1
    assert asked(plan, SAFE) == 7
    two = fleet(2, state=InstanceState.STARTING, since_ms=10 * H)
    assert asked(plan_of(job(A), seen(ONE, two), in_drought=True), SPOT) == 4


def test_lives_in_one_region_unless_the_job_may_span():
    far = pool("a", "us-east-1")
    offers = (
        spot(A, 0.3, available=4),
        spot(far, 0.31, available=4),
        on_demand(A, 1.0),
        on_demand(far, 1.0),
    )
    one = plan_of(job(A, far), seen(offers))
    assert len({a.pool for a in one.actions}) == 1
    assert (asked(one, SPOT), asked(one, SAFE)) == (4, 4)
    spanning = plan_of(job(A, far, one_region=False), seen(offers))
    assert asked(spanning, SPOT) == 8


def test_moves_to_a_region_with_spot_and_lets_the_old_fleet_go_once_the_new_is_ready():
    far = pool("a", "us-east-1")
    offers = (
        spot(A, 0.3, available=0),
        spot(far, 0.31, available=8),
        on_demand(A, 1.0),
        on_demand(far, 1.0),
    )
    home = fleet(8, capacity=SAFE, prefix="d")
    first = plan_of(job(A, far), seen(offers, home, fleet_cost=QUICK))
    assert {a.pool for a in first.actions} == {far}
    assert asked(first, SPOT) == 8 and not let_go(first)
    assert "move us-west-2 -> us-east-1" in first.reason
    arrived = (*home, *fleet(8, far, prefix="f"))
    later = plan_of(job(A, far), seen(offers, arrived, fleet_cost=QUICK))
    assert let_go(later) == {f"d{i}" for i in range(8)}


def test_stays_where_it_is_when_the_move_would_not_repay():
    far = pool("a", "us-east-1")
    offers = (spot(A, 0.31), spot(far, 0.30), on_demand(A, 1.0), on_demand(far, 1.0))
    plan = plan_of(job(A, far), seen(offers, fleet(8), fleet_cost=QUICK), rate=2.0)
    assert not plan.actions


def test_every_plan_has_a_reason_and_a_time_to_think_again():
    plan = plan_of(job(A), seen(ONE, fleet(8)))
    assert plan.reason and plan.revisit_at_ms > 10 * H
