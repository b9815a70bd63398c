"""Policies are found by name, and the plain ones do what their names say."""

from __future__ import annotations

import pytest
from policy_world import H, S, World, asked, forecast, job, on_demand, pool, seen, spot, vm

from surefoot.core.job import Limits, Work
from surefoot.core.market import Capacity
from surefoot.core.policy import POLICIES, get_policy, policy_for
from surefoot.core.policy.terms import Curve, curve
from surefoot.core.trace import PoolTrace, Semantics, Step, Trace
from surefoot.errors import ConfigError

A = pool("a")
ONE = (spot(A, 0.3), on_demand(A, 1.0))


def test_each_policy_is_registered_under_its_own_name():
    assert all(get_policy(name).name == name for name in POLICIES)


def test_an_unknown_name_is_a_config_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'hybrid'"):
        get_policy("hybird")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_says_why_and_when_to_think_again(name):
    plan = get_policy(name).decide(job(A), seen(ONE), {A: forecast(A)})
    assert plan.reason
    assert plan.revisit_at_ms is not None and plan.revisit_at_ms > 10 * H


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_lets_go_of_all_when_the_budget_is_spent(name):
    tight = job(A, limits=Limits(budget_micro_usd=1_000_000))
    look = seen(ONE, (vm("s0", A), vm("d0", A, Capacity.ON_DEMAND)), spent=1_000_000)
    plan = get_policy(name).decide(tight, look, {A: forecast(A)})
    assert len(plan.actions) == 3 and "budget" in plan.reason


def test_on_demand_holds_the_asked_number_and_no_spot():
    plan = get_policy("on-demand").decide(job(A), seen(ONE), {})
    assert (asked(plan, Capacity.SPOT), asked(plan, Capacity.ON_DEMAND)) == (0, 8)


def test_spot_only_waits_when_nothing_can_be_had():
    plan = get_policy("spot-only").decide(job(A), seen(ONE, failures={A: 11 * H}), {})
    assert not plan.actions and "set aside" in plan.reason


def test_greedy_goes_back_and_forth_with_the_supply():
    def supply(_where, t_ms):
        return 0 if 600 * S <= t_ms < 1200 * S else 8

    world = World(job(A), get_policy("greedy"), supply, lambda _: ONE).run(1500 * S)
    assert any(d == 8 for _, _, d, _ in world.log)
    assert world.ready(Capacity.SPOT) == 8 and world.ready(Capacity.ON_DEMAND) == 0


def test_greedy_idles_in_a_drought_while_there_is_slack():
    terms = dict(nodes=1, floor=0, ceiling=1, work=Work(total_steps=3600, step_ms=1_000))
    slack = job(A, limits=Limits(deadline_ms=14 * H), **terms)
    plan = get_policy("greedy").decide(slack, seen(ONE, failures={A: 11 * H}), {})
    assert not plan.actions


def test_a_curve_is_concave_piecewise_linear_and_scaled_to_the_asked_size():
    shape = curve(job(A, nodes=4, work=Work(scaling=((4, 40.0), (8, 60.0)))))
    assert shape.at(4) == pytest.approx(4)
    assert shape.at(8) == pytest.approx(6)
    assert shape.at(12) == pytest.approx(8)
    assert shape.needed(6) == pytest.approx(8)
    assert Curve().at(3) == 3


def record(up_ms: int, total_ms: int) -> Trace:
    """A pool of 8 with one drought in the middle hour."""
    supply = (Step(0, 8), Step(up_ms, 0), Step(2 * up_ms, 8))
    prices = ((Step(0, 300_000),), (Step(0, 1_000_000),))
    return Trace("t", Semantics.SUPPLY, 0, total_ms, {A: PoolTrace(A, supply, *prices)})


def test_the_oracle_needs_a_trace_and_says_so():
    with pytest.raises(ConfigError, match="looks ahead"):
        get_policy("oracle")
    assert policy_for("oracle", record(H, 3 * H)).name == "oracle"
    assert policy_for("hybrid", record(H, 3 * H)).name == "hybrid"


def test_the_oracle_boots_stand_ins_before_the_drought_and_never_breaks_the_floor():
    trace = record(H, 3 * H)
    world = World(
        job(A), policy_for("oracle", trace), lambda _, t: 0 if H <= t < 2 * H else 8, lambda _: ONE
    ).run(3 * H - 1, tick_ms=10 * S)
    ready = [(t, s + d) for t, s, d, _ in world.log if t > 70 * S]
    assert all(count >= 8 for _, count in ready)
    assert world.ready(Capacity.SPOT) == 8 and world.ready(Capacity.ON_DEMAND) == 0


def test_skyserve_holds_on_demand_for_what_is_not_ready():
    held = tuple(vm(f"s{i}", A) for i in range(6))
    plan = get_policy("skyserve").decide(job(A), seen(ONE, held, failures={A: 11 * H}), {})
    assert asked(plan, Capacity.ON_DEMAND) == 3
    assert "dynamic fallback" in plan.reason


def test_liveput_grows_while_re_forming_costs_less_than_it_brings():
    held = tuple(vm(f"s{i}", A) for i in range(8))
    grown = get_policy("liveput").decide(
        job(A, floor=8, ceiling=16), seen(ONE, held), {A: forecast(A)}
    )
    assert asked(grown, Capacity.SPOT) == 8


def test_uniform_progress_idles_when_ahead_and_pays_when_behind():
    terms = dict(nodes=1, floor=0, ceiling=1, work=Work(total_steps=36_000, step_ms=1_000))
    policy = get_policy("uniform-progress")
    loose = job(A, limits=Limits(deadline_ms=40 * H), **terms)
    closed = (spot(A, 0.3, available=0), on_demand(A, 1.0))
    first = policy.decide(loose, seen(closed, failures={A: 11 * H}), {})
    assert "ahead" in first.reason or "behind" in first.reason
    later = seen(closed, failures={A: 21 * H}, now_ms=20 * H, memory=first.memory)
    assert asked(policy.decide(loose, later, {}), Capacity.ON_DEMAND) == 1
