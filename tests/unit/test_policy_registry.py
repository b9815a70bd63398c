"""Policies are found by name, and the plain ones do what their names say."""

from __future__ import annotations

import pytest
from policy_world import H, S, World, asked, forecast, job, on_demand, pool, seen, spot, vm

from surefoot.core.job import Limits, Work
from surefoot.core.market import Capacity
from surefoot.core.policy import POLICIES, get_policy
from surefoot.core.policy.terms import Curve, curve
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
