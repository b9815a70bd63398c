"""Whatever happens in whatever order: time adds up to the wall clock and money to the integral."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.account import Account, fold
from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    NoticeReceived,
    OfferingsSeen,
    RestoreDone,
    RunEnded,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Offering, Pool

POOL = Pool("local", "here", "a", "small")

tokens = st.sampled_from("abcd")
steps = st.integers(0, 200)
spans = st.integers(0, 500)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    now, events = 1_000, list[Event]([RunStarted(1_000, "r")])
    for kind in draw(st.lists(st.integers(0, 13), max_size=40)):
        now += draw(spans)
        token = draw(tokens)
        step = draw(steps)
        price = Offering(POOL, Capacity.SPOT, draw(st.integers(-5, 10**6)))
        events.append(
            [
                InstanceRequested(now, token, POOL, Capacity.SPOT),
                InstanceLaunched(now, token, "i"),
                InstanceReady(now, token),
                LaunchFailed(now, token, "CapacityError"),
                NoticeReceived(now, token, now + 5),
                InstanceGone(now - draw(spans), token, draw(st.sampled_from(Ending))),
                GroupFormed(now, 1, tuple("abcd"[: step % 5]), step, step % 7),
                GroupBroken(now, 1),
                StepsDone(now, step, 1 + step % 9),
                CheckpointCommitted(now, step, now, draw(spans), 5),
                RestoreDone(now, step, draw(spans)),
                RunEnded(now, "stopped"),
                RunStarted(now, "r", resumed=True, step=step),
                OfferingsSeen(now, (price,)),
            ][kind]
        )
    return events


@given(histories())
def test_every_millisecond_goes_to_exactly_one_place(events: list[Event]) -> None:
    account = Account()
    for event in events:
        account.add(event)
        goodput = account.goodput
        parts = goodput.badput.as_dict()
        assert min(parts.values()) >= 0, parts
        assert goodput.badput.total_ms <= goodput.wall_ms
        assert goodput.badput.total_ms + account._time.kept_ms == goodput.wall_ms
        assert goodput.share is None or 0 <= goodput.share <= 1


@given(histories())
def test_bill_is_never_negative_and_never_shrinks(events: list[Event]) -> None:
    account, before = Account(), 0
    for event in events:
        account.add(event)
        total = account.bill.total
        late = isinstance(event, InstanceGone)  # told late: the VM had stopped costing before
        assert total >= 0
        assert total >= before or late
        before = total
    assert fold(events)[1] == account.bill


prices_by_ms = st.lists(st.tuples(spans, st.integers(-3, 10**7)), max_size=8)


@given(prices_by_ms, st.integers(0, 2_000), st.integers(0, 3_000))
def test_bill_equals_the_sum_over_every_millisecond(
    changes: list[tuple[int, int]], begun: int, held: int
) -> None:
    line: dict[int, int] = {}
    now = 0
    for wait, price in changes:
        now += wait
        line[now] = price
    events: list[tuple[int, int, Event]] = [
        (at, 0, OfferingsSeen(at, (Offering(POOL, Capacity.SPOT, price),)))
        for at, price in line.items()
    ]
    end = begun + held
    events += [
        (begun, 1, InstanceRequested(begun, "a", POOL, Capacity.SPOT)),
        (begun, 2, InstanceLaunched(begun, "a", "i")),
        (end, 3, InstanceGone(end, "a", Ending.RELEASED)),
    ]
    got = fold(event for _, _, event in sorted(events, key=lambda e: e[:2]))[1]
    total = unknown = 0
    price = None
    for at in range(end):
        price = line.get(at, price)
        if at >= begun:
            total += price if price and price > 0 else 0
            unknown += not (price and price > 0)
    assert got.spot == (2 * total + 3_600_000) // 7_200_000
    assert got.unknown_ms == unknown
