"""Replay of a recorded market: who can be held, who is taken, who is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.market import Capacity, Pool
from surefoot.core.replay import Departure, Replay
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace

POOL = Pool("local", "here", "a", "small")


def replay(
    supply: list[tuple[int, int | None]],
    *,
    reclaims: tuple[Reclaim, ...] = (),
    notice_ms: int = 120,
    spot: tuple[tuple[int, int | None], ...] = ((0, 1_000_000),),
) -> Replay:
    record = PoolTrace(
        pool=POOL,
        supply=tuple(Step(t, v) for t, v in supply),
        spot=tuple(Step(t, v) for t, v in spot),
        on_demand=(Step(0, 3_000_000),),
        reclaims=reclaims,
        notice_ms=notice_ms,
        minimum_billing_ms=60_000,
        speed=2.0,
    )
    return Replay(Trace("t", Semantics.SUPPLY, 0, 1_000_000, {POOL: record}))


HELD = (("a", 10), ("b", 20), ("c", 30))


def test_surplus_over_supply_takes_the_youngest_with_the_pools_notice() -> None:
    market = replay([(0, 3), (500, 1)])
    assert market.departures(POOL, HELD, 30, 1000) == [
        Departure("b", 380, 500),
        Departure("c", 380, 500),
    ]


def test_reclaim_takes_the_oldest_even_if_supply_remains() -> None:
    market = replay([(0, 9)], reclaims=(Reclaim(700, 1),))
    assert market.departures(POOL, HELD, 30, 1000) == [Departure("a", 580, 700, reclaimed=True)]


def test_a_vm_that_left_early_after_its_notice_fills_the_quota_of_its_reclaim() -> None:
    market = replay([(0, 9)], reclaims=(Reclaim(700, 1),))
    told = Departure("a", 580, 700, reclaimed=True)
    assert market.departures(POOL, HELD[1:], 650, 1000, doomed=[told]) == []


def test_notice_of_zero_is_a_silent_loss() -> None:
    market = replay([(0, 9)], reclaims=(Reclaim(700, 1, notice_ms=0),))
    assert market.departures(POOL, HELD, 30, 1000)[0].notice_ms is None


def test_notice_never_comes_before_the_launch() -> None:
    market = replay([(0, 3), (100, 2)])
    assert market.departures(POOL, HELD, 30, 1000) == [Departure("c", 30, 100)]


def test_gap_takes_nobody_and_grants_nothing() -> None:
    market = replay([(0, 3), (100, None), (500, 3)])
    assert market.departures(POOL, HELD, 30, 1000) == []
    assert not market.grants(POOL, Capacity.SPOT, 200, taken=0)
    assert market.grants(POOL, Capacity.SPOT, 500, taken=2)
    assert not market.grants(POOL, Capacity.SPOT, 500, taken=3)
    assert market.grants(POOL, Capacity.ON_DEMAND, 200, taken=99)


def test_announced_departure_stands_and_fills_the_quota_of_its_loss() -> None:
    market = replay([(0, 3), (500, 2)], reclaims=(Reclaim(700, 1),))
    first = market.departures(POOL, HELD, 30, 1000)
    again = market.departures(POOL, HELD, 400, 1000, doomed=first)
    assert again == first == [Departure("c", 380, 500), Departure("a", 580, 700, reclaimed=True)]


def test_doomed_vms_make_room_once_they_are_gone() -> None:
    market = replay([(0, 3), (500, 2), (600, 2)])
    doomed = [Departure("a", 380, 500)]
    assert market.departures(POOL, HELD, 400, 1000, doomed=doomed) == doomed


def test_two_hundred_reclaims_on_one_instant_end() -> None:
    market = replay([(0, 9)], reclaims=tuple(Reclaim(700, 1) for _ in range(200)))
    assert {d.token for d in market.departures(POOL, HELD, 30, 1000)} == {"a", "b", "c"}


def test_changes_and_prices_are_found_by_time() -> None:
    market = replay([(0, 3), (500, 1)], spot=((0, 7), (250, 8)), reclaims=(Reclaim(300, 1),))
    assert [market.next_change_ms(t) for t in (0, 250, 300, 500)] == [250, 300, 500, None]
    assert market.next_price_ms(0) == 250
    assert market.price(POOL, Capacity.SPOT, 249) == 7
    assert market.price(POOL, Capacity.RESERVED, 249) is None
    kinds = {(o.capacity, o.price_micro_usd_h, o.speed) for o in market.offerings(250)}
    assert kinds == {(Capacity.SPOT, 8, 2.0), (Capacity.ON_DEMAND, 3_000_000, 2.0)}


def test_unknown_pool_is_unknown_not_empty() -> None:
    other = Pool("local", "here", "b", "small")
    market = replay([(0, 3)])
    assert market.supply(other, 5) is None
    assert market.departures(other, HELD, 0, 10) == []
    assert not market.grants(other, Capacity.ON_DEMAND, 5, taken=0)


steps = st.lists(st.integers(0, 6) | st.none(), min_size=1, max_size=12)
reclaims_at = st.lists(st.tuples(st.integers(1, 120), st.integers(1, 3)), max_size=4)
launches = st.lists(st.integers(0, 3), max_size=6)


@given(steps, reclaims_at, launches, st.integers(3, 129))
def test_asking_in_two_parts_gives_the_same_losses(
    values: list[int | None], reclaims: list[tuple[int, int]], born: list[int], cut: int
) -> None:
    market = replay(
        [(10 * i, v) for i, v in enumerate(values)],
        reclaims=tuple(Reclaim(t, n) for t, n in reclaims),
        notice_ms=7,
    )
    held = tuple((f"v{i}", t) for i, t in enumerate(born))
    whole = market.departures(POOL, held, 3, 130)
    first = market.departures(POOL, held, 3, cut)
    gone = {d.token for d in first}
    rest = market.departures(POOL, [vm for vm in held if vm[0] not in gone], cut, 130)
    assert first + rest == whole


@given(steps, reclaims_at, launches, st.integers(3, 129))
def test_having_been_told_changes_nobodys_fate(
    values: list[int | None], reclaims: list[tuple[int, int]], born: list[int], now: int
) -> None:
    market = replay(
        [(10 * i, v) for i, v in enumerate(values)],
        reclaims=tuple(Reclaim(t, n) for t, n in reclaims),
        notice_ms=25,
    )
    held = tuple((f"v{i}", t) for i, t in enumerate(born))
    whole = market.departures(POOL, held, 3, 130)
    gone = {d.token for d in whole if d.gone_ms <= now}
    left = [vm for vm in held if vm[0] not in gone]
    told = [d for d in whole if d.gone_ms > now and d.notice_ms is not None and d.notice_ms <= now]
    later = market.departures(POOL, left, now, 130, doomed=told)
    assert later == [d for d in whole if d.gone_ms > now]


@given(steps, launches)
def test_what_remains_always_fits_into_the_supply(
    values: list[int | None], born: list[int]
) -> None:
    market = replay([(10 * i, v) for i, v in enumerate(values)])
    held = tuple((f"v{i}", t) for i, t in enumerate(born))
    gone = market.departures(POOL, held, 3, 130)
    for at in range(3, 130, 5):
        left = len(held) - sum(d.gone_ms <= at for d in gone)
        supply = market.supply(POOL, at)
        assert supply is None or left <= supply
