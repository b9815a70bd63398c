"""What must hold for any market: order does not matter, money is bounded, nothing flaps."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from policy_world import (
    USD,
    H,
    S,
    World,
    asked,
    forecast,
    job,
    on_demand,
    pool,
    seen,
    spot,
    vm,
)

from surefoot.core.fleet import InstanceState
from surefoot.core.job import Limits
from surefoot.core.market import Capacity
from surefoot.core.plan import Launch
from surefoot.core.policy import POLICIES, get_policy
from surefoot.core.policy.gang import Problem, solve
from surefoot.core.policy.offline import gang_optimum

SPOT, SAFE = Capacity.SPOT, Capacity.ON_DEMAND
POOLS = tuple(pool(z, r) for r in ("us-east-1", "us-west-2") for z in "abc")

prices = st.floats(0.05, 4.0).map(lambda x: round(x, 3))
states = st.sampled_from([InstanceState.READY, InstanceState.STARTING, InstanceState.NOTICED])


@st.composite
def markets(draw):
    """Offerings, VMs and forecasts over up to six pools in two regions."""
    chosen = draw(st.lists(st.sampled_from(POOLS), min_size=1, max_size=6, unique=True))
    offers, told, vms = [], {}, []
    for where in chosen:
        free = draw(st.one_of(st.none(), st.integers(0, 12)))
        offers += [spot(where, draw(prices), available=free), on_demand(where, draw(prices))]
        told[where] = forecast(
            where,
            draw(st.floats(0.01, 5.0)),
            in_drought=draw(st.booleans()),
            observed_losses=draw(st.integers(0, 3)),
        )
        for index in range(draw(st.integers(0, 3))):
            capacity = draw(st.sampled_from([SPOT, SAFE]))
            name = f"{where.zone}-{index}"
            vms.append(vm(name, where, capacity, draw(states), since_ms=9 * H))
    floor = draw(st.integers(0, 8))
    terms = dict(nodes=max(1, floor), floor=floor, ceiling=floor + draw(st.integers(0, 8)))
    most = draw(st.one_of(st.none(), st.integers(1, 20)))
    limits = Limits(max_vms=most, max_price_micro_usd_h=draw(st.sampled_from([None, USD])))
    return job(*chosen, limits=limits, **terms), offers, vms, told


@settings(max_examples=120, deadline=None)
@given(markets(), st.randoms(use_true_random=False), st.sampled_from(sorted(POLICIES)))
def test_a_plan_does_not_depend_on_the_order_of_pools_or_vms(market, shuffler, name):
    terms, offers, vms, told = market
    policy = get_policy(name)
    first = policy.decide(terms, seen(tuple(offers), tuple(vms)), told)
    mixed_offers, mixed_vms, pools = list(offers), list(vms), list(terms.pools)
    for one in (mixed_offers, mixed_vms, pools):
        shuffler.shuffle(one)
    mixed = dict(sorted(told.items(), reverse=True))
    again = policy.decide(
        replace(terms, pools=tuple(pools)), seen(tuple(mixed_offers), tuple(mixed_vms)), mixed
    )
    assert again == first


@settings(max_examples=120, deadline=None)
@given(markets(), st.sampled_from(sorted(POLICIES)))
def test_limits_on_size_price_and_supply_hold_for_every_policy(market, name):
    terms, offers, vms, told = market
    look = seen(tuple(offers), tuple(vms))
    plan = get_policy(name).decide(terms, look, told)
    launches = [a for a in plan.actions if isinstance(a, Launch)]
    if terms.limits.max_vms is not None:
        room = max(0, terms.limits.max_vms - len(vms))
        assert sum(a.count for a in launches) <= room
    for launch in launches:
        offer = look.state.market.get(launch.pool, launch.capacity)
        assert offer is not None and launch.count > 0
        cap = terms.limits.max_price_micro_usd_h
        assert cap is None or offer.price_micro_usd_h <= cap
        assert offer.available is None or launch.count <= offer.available


def supply_of(seed, up_h, down_h, most=8, hours=24, step_s=60):
    """A stationary pool: exponential windows and droughts."""
    rng = np.random.default_rng(seed)
    edges, t, up = [0.0], 0.0, True
    while t < hours * 3600:
        t += rng.exponential((up_h if up else down_h) * 3600)
        edges.append(t)
        up = not up

    def supply(_where, t_ms):
        return most if np.searchsorted(edges, t_ms / 1000, "right") % 2 else 0

    return supply


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["hybrid", "greedy", "on-demand", "spot-only", "skyserve"])
def test_no_run_ever_costs_more_than_its_budget(seed, name):
    where = pool()
    terms = job(where, nodes=4, limits=Limits(budget_micro_usd=8 * USD))
    market = (spot(where, 0.4), on_demand(where, 1.3))
    world = World(terms, get_policy(name), supply_of(seed, 0.4, 0.3, 4), lambda _: market)
    world.run(6 * H, tick_ms=2 * S)
    assert world.spent <= 8 * USD, f"repeat: pytest -k 'budget and {name}' (seed {seed})"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_flaps_while_prices_only_tremble(seed):
    where = [pool("a"), pool("b")]
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 0.02, (2, 24 * 12 + 1))

    def prices_at(t_ms):
        k = min(t_ms // 300_000, noise.shape[1] - 1)
        cheap = tuple(spot(p, 0.35 * float(np.exp(noise[i, k]))) for i, p in enumerate(where))
        return (*cheap, *(on_demand(p, 1.0) for p in where))

    world = World(job(*where), get_policy("hybrid"), lambda *_: 8, prices_at, rate=0.2)
    world.run(24 * H, tick_ms=60 * S)
    changes = sum(bool(plan.actions) for t, *_, plan in world.log if t > 10 * 60 * S)
    assert changes <= 2, f"{changes} changes on a market that only trembles (seed {seed})"
    assert world.ready(SPOT) == 8


@pytest.mark.parametrize("seed", range(3))
def test_changes_follow_the_market_and_not_more_often(seed):
    where = pool()
    supply = supply_of(seed, 2.0, 0.7)
    market = (spot(where, 0.35), on_demand(where, 1.0))
    world = World(job(where), get_policy("hybrid"), supply, lambda _: market, rate=0.5)
    world.run(24 * H, tick_ms=20 * S)
    turns = sum(supply(where, t) != supply(where, t + 60_000) for t in range(0, 24 * H, 60_000))
    acted = sum(
        asked(plan, SAFE) > 0 or any(type(a).__name__ == "Drain" for a in plan.actions)
        for *_, plan in world.log
    )
    assert acted <= 2 * turns + 4, f"{acted} changes for {turns} turns of the market (seed {seed})"


RATES = st.lists(st.floats(0.05, 3.0), min_size=3, max_size=3)


def problem(window, drought, spot_price, safe_price, *, slack=30, units=60, switch=2):
    odds = [tuple(1 - float(np.exp(-r / 12)) for r in rates) for rates in (window, drought)]
    return Problem(units + slack, units, 1, switch, spot_price, safe_price, *odds, (0.3, 0.1, 0.0))


@settings(max_examples=40, deadline=None)
@given(RATES, RATES, st.floats(0.1, 1.0), st.floats(1.0, 4.0), st.floats(1.0, 2.0))
def test_the_cost_of_a_gang_never_falls_when_prices_rise(window, drought, cheap, dear, factor):
    base = solve(problem(window, drought, cheap, dear)).cost[-1]
    dearer_spot = solve(problem(window, drought, cheap * factor, dear)).cost[-1]
    dearer_safe = solve(problem(window, drought, cheap, dear * factor)).cost[-1]
    assert np.all(dearer_spot >= base - 1e-9)
    assert np.all(dearer_safe >= base - 1e-9)


@settings(max_examples=40, deadline=None)
@given(RATES, RATES, st.integers(0, 10))
def test_more_time_never_costs_more(window, drought, more):
    tight = solve(problem(window, drought, 0.3, 1.0, slack=20)).cost[-1]
    loose = solve(problem(window, drought, 0.3, 1.0, slack=20 + more)).cost[-1]
    assert np.all(loose <= tight + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=30, max_size=60), st.integers(0, 3), st.floats(1.0, 2.0))
def test_the_offline_optimum_is_monotone_in_prices_and_supply(up, switch, factor):
    available = np.array(up)
    terms = dict(units=20, units_per_tick=1, switch_units=switch)
    best = gang_optimum(available, spot=0.3, safe=1.0, **terms)
    dearer = gang_optimum(available, spot=0.3 * factor, safe=1.0, **terms)
    plenty = gang_optimum(np.ones_like(available), spot=0.3, safe=1.0, **terms)
    assert plenty.cost - 1e-9 <= best.cost <= dearer.cost + 1e-9
    assert best.cost <= 20 + switch + 1e-9
    assert sum(bool(m) for m in best.modes) >= 20


def brute(available, work, switch, spot_price, safe_price):
    """Try every course of a short horizon."""
    best = np.inf
    ticks = len(available)

    def go(tick, left, mode, over, cost):
        nonlocal best
        if left == 0:
            best = min(best, cost)
            return
        if tick == ticks or cost >= best:
            return
        for new in (0, 1, 2):
            if new == 1 and not available[tick]:
                continue
            due = over if new == mode else (switch if new else 0)
            if new == 0:
                go(tick + 1, left, 0, 0, cost)
                continue
            price = spot_price if new == 1 else safe_price
            if due > 0:
                go(tick + 1, left, new, due - 1, cost + price)
            else:
                go(tick + 1, left - 1, new, 0, cost + price)

    go(0, work, 0, 0, 0.0)
    return best


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=7, max_size=9), st.integers(0, 2))
def test_the_offline_optimum_equals_brute_force(up, switch):
    available = np.array(up)
    found = gang_optimum(
        available, units=5, units_per_tick=1, switch_units=switch, spot=0.31, safe=1.0
    )
    assert found.cost == pytest.approx(brute(up, 5, switch, 0.31, 1.0))
