"""The checkpoint interval: published cases, limits, and what it does with bad numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from surefoot.core import interval as theory
from surefoot.core.event import State
from surefoot.core.fleet import CheckpointCost, Fleet, Instance, InstanceState
from surefoot.core.forecast.port import Forecast, constant_hazard
from surefoot.core.interval import choose_interval
from surefoot.core.job import IntervalRule
from surefoot.core.market import Capacity, Pool

POOL = Pool("local", "here", "a", "small")
OTHER = Pool("local", "here", "b", "small")
SAVE = CheckpointCost(stall_ms=20_000, persist_ms=0)
RULE = IntervalRule(min_ms=1_000, max_ms=7_200_000)


def forecast(pool: Pool = POOL, *, rate: float = 0.5, share: float = 1.0) -> Forecast:
    return Forecast(
        pool=pool,
        at_ms=0,
        hazard=constant_hazard(rate),
        hazard_low=rate / 2,
        hazard_high=rate * 2,
        launch_odds=0.9,
        window_h=2.0,
        in_drought=False,
        holdable=8.0,
        events_per_h=rate,
        event_share=share,
        observed_losses=3,
    )


def state(
    *pools: Pool,
    capacity: Capacity = Capacity.SPOT,
    cost: CheckpointCost = SAVE,
    notices: tuple[int, int] = (0, 0),
) -> State:
    vms = {
        f"v{i}": Instance(f"v{i}", pool, capacity, InstanceState.READY, 0, launched_ms=0)
        for i, pool in enumerate(pools)
    }
    return State(now_ms=3_600_000, fleet=Fleet(vms), save_cost=cost, notices=notices)


@pytest.mark.parametrize(
    ("mtbf_min", "published_min", "higher", "exact"),
    [(24 * 60, 117, 116.69, 116.69), (6 * 60, 57, 56.71, 56.71), (15, 9.1, 9.14, 9.17)],
)
def test_daly_published_cases_come_out(
    mtbf_min: float, published_min: float, higher: float, exact: float
) -> None:
    assert theory.daly_higher_order(5, mtbf_min) == pytest.approx(higher, abs=0.005)
    assert theory.exact(5, mtbf_min) == pytest.approx(exact, abs=0.005)
    assert theory.daly_higher_order(5, mtbf_min) == pytest.approx(published_min, rel=0.006)


def test_young_is_a_third_too_long_where_losses_are_frequent() -> None:
    assert theory.young(5, 15) == pytest.approx(12.25, abs=0.005)
    assert theory.daly_first_order(5, 360, 10) == pytest.approx(math.sqrt(3700) - 5)


@pytest.mark.parametrize(("cost", "mtbf"), [(5.0, 1440.0), (5.0, 15.0), (60.0, 30.0), (1e-3, 9e4)])
def test_exact_form_is_the_best_of_all_intervals(cost: float, mtbf: float) -> None:
    best = theory.exact(cost, mtbf)
    at_best = theory.efficiency(best, cost, mtbf, 10, 0)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert theory.efficiency(best * factor, cost, mtbf, 10, 0) < at_best


def test_daly_gives_up_at_costs_of_twice_the_mean_life() -> None:
    assert theory.daly_higher_order(30, 15) == 15
    assert theory.exact(30, 15) < 15


def test_persist_time_is_a_floor_and_not_a_cost() -> None:
    plain = theory.asynchronous(1, 1 / 3600)
    assert theory.asynchronous(1, 1 / 3600, persist=20) == plain
    assert theory.asynchronous(1, 1 / 3600, persist=300) == 300
    assert theory.asynchronous(1, 1 / 3600, persist=300, slots=2) == 150


def test_notice_share_stretches_the_interval_by_its_root() -> None:
    plain = theory.asynchronous(1, 1 / 36_000)
    assert theory.asynchronous(1, 1 / 36_000, notice_share=0.75) == pytest.approx(
        2 * plain, rel=0.01
    )
    assert theory.asynchronous(1, 1 / 36_000, notice_share=1.0) == math.inf


def test_weibull_interval_grows_with_age_when_the_young_die_first() -> None:
    # Theory notes B.4: k = .6, mean life 2.26 h, C = 60 s.
    scale = 2.26 * 3600 / math.gamma(1 + 1 / 0.6)
    ages = (600, 3600, 6 * 3600)
    got = [theory.weibull(60, a, shape=0.6, scale=scale) for a in ages]
    assert got == pytest.approx([670, 958, 1371], rel=0.01)


def test_each_level_has_its_own_interval_and_cheap_ones_come_no_rarer() -> None:
    hour = 3600
    assert theory.multi_level([(1, 1 / hour), (60, 0.1 / hour)]) == pytest.approx(
        [math.sqrt(2 * hour), math.sqrt(120 * 10 * hour)]
    )
    assert theory.multi_level([(1, 0.0), (60, 1 / hour)]) == pytest.approx(
        [math.sqrt(120 * hour)] * 2
    )


@pytest.mark.parametrize("rate", [0.0, 1e-12])
def test_rate_of_zero_gives_the_longest_interval_and_valid_json(rate: float) -> None:  # case 12
    calm = state(POOL, capacity=Capacity.ON_DEMAND)
    assert theory.fluid(20, 0.0) == math.inf
    rule = replace(RULE, max_ms=600_000)
    choice = choose_interval(rule, calm, {POOL: forecast(rate=rate)})
    assert choice.interval_ms == 600_000
    body = {"interval_ms": choice.interval_ms, "hazard_per_h": choice.hazard_per_h}
    assert json.loads(json.dumps(body, allow_nan=False)) == body


def test_without_any_vm_the_interval_is_the_longest() -> None:
    assert choose_interval(RULE, state(), {}).interval_ms == RULE.max_ms


@pytest.mark.parametrize("rate", [math.nan, -1.0, math.inf])
def test_bad_rate_is_refused_by_name(rate: float) -> None:  # case 12
    with pytest.raises(ValueError, match="hazard of local/here/a/small must be a finite number"):
        choose_interval(RULE, state(POOL), {POOL: forecast(rate=rate)})
    with pytest.raises(ValueError, match="rate must be a finite number"):
        theory.asynchronous(1, rate)


@pytest.mark.parametrize("bad", [0, -5])
def test_interval_bounds_of_zero_or_less_are_refused_by_name(bad: int) -> None:  # case 13
    for name in ("min_ms", "max_ms", "fixed_ms"):
        with pytest.raises(ValueError, match=name):
            choose_interval(replace(RULE, **{name: bad}), state(POOL), {POOL: forecast()})
    with pytest.raises(ValueError, match="over max_ms"):
        choose_interval(IntervalRule(min_ms=9, max_ms=8), state(POOL), {POOL: forecast()})


def test_pool_lost_as_a_whole_counts_once_however_many_vms_it_holds() -> None:
    one = choose_interval(RULE, state(POOL), {POOL: forecast(share=1.0)})
    many = choose_interval(RULE, state(*[POOL] * 16), {POOL: forecast(share=1.0)})
    assert many.interval_ms == pytest.approx(one.interval_ms, rel=0.02)


def test_independent_losses_add_up() -> None:
    one = theory.exposure(state(POOL), {POOL: forecast(share=0.01)})
    many = theory.exposure(state(*[POOL] * 16), {POOL: forecast(share=0.01)})
    assert many.preemptions_per_h == pytest.approx(16 * one.preemptions_per_h)
    both = theory.exposure(state(POOL, OTHER), {POOL: forecast(), OTHER: forecast(OTHER)})
    assert both.preemptions_per_h == pytest.approx(2 * one.preemptions_per_h)


def test_on_demand_vms_fail_only_with_their_hardware() -> None:
    threat = theory.exposure(state(POOL, capacity=Capacity.ON_DEMAND), {POOL: forecast()})
    assert threat.preemptions_per_h == 0
    assert threat.failures_per_h == theory.HARDWARE_PER_VM_H


def test_interval_stretches_to_the_measured_time_of_a_save() -> None:  # case 19
    slow = CheckpointCost(stall_ms=10, persist_ms=120_000)
    quick = CheckpointCost(stall_ms=10, persist_ms=12_000)
    assert choose_interval(RULE, state(POOL, cost=slow), {POOL: forecast()}).interval_ms >= 120_000
    assert choose_interval(RULE, state(POOL, cost=quick), {POOL: forecast()}).interval_ms < 30_000


def test_notices_that_worked_make_periodic_saves_rarer() -> None:
    never = choose_interval(RULE, state(POOL, notices=(0, 50)), {POOL: forecast()})
    always = choose_interval(RULE, state(POOL, notices=(50, 50)), {POOL: forecast()})
    assert always.interval_ms > 4 * never.interval_ms
    assert always.notice_share > 0.97


def test_fixed_interval_is_obeyed_and_explained() -> None:
    choice = choose_interval(replace(RULE, fixed_ms=42_000), state(POOL), {POOL: forecast()})
    assert choice.interval_ms == 42_000
    assert "as the job says" in choice.reason


def test_reason_states_the_figures_it_rests_on() -> None:
    reason = choose_interval(RULE, state(POOL), {POOL: forecast()}).reason
    assert "0.5 losses/h" in reason
    assert "1 spot pools" in reason or "1 spot pool" in reason
    assert "20 s" in reason
