"""What each event teaches the history."""

from __future__ import annotations

from surefoot.core.event import (
    Event,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    LaunchFailed,
    OfferingsSeen,
    State,
    apply,
)
from surefoot.core.fleet import Ending
from surefoot.core.history import observe
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.trace import History, LaunchTry, LifeEnd

POOL = Pool("local", "r1", "a", "small")


def grown(*events: Event) -> History:
    history, state = History(), State()
    for event in events:
        observe(history, event, state)
        state = apply(state, event)
    return history


def requested(token: str, capacity: Capacity = Capacity.SPOT) -> InstanceRequested:
    return InstanceRequested(0, token, POOL, capacity)


def test_a_spot_launch_is_a_granted_try_and_a_birth() -> None:
    record = grown(requested("a"), InstanceLaunched(5, "a", "i-1")).of(POOL)
    assert record.launches == [LaunchTry(5, 1, 1)]
    assert record.lives["a"].born_ms == 5


def test_a_second_report_of_one_launch_teaches_nothing() -> None:
    launched = InstanceLaunched(5, "a", "i-1")
    record = grown(requested("a"), launched, InstanceLaunched(9, "a", "i-1")).of(POOL)
    assert len(record.launches) == 1
    assert record.lives["a"].born_ms == 5


def test_on_demand_vms_teach_nothing_about_spot() -> None:
    history = grown(
        requested("a", Capacity.ON_DEMAND),
        InstanceLaunched(5, "a", "i-1"),
        InstanceGone(9, "a", Ending.HARDWARE),
    )
    assert POOL not in history.pools


def test_only_a_capacity_failure_counts_as_a_refused_launch() -> None:
    record = grown(
        requested("a"),
        LaunchFailed(5, "a", "CapacityError"),
        requested("b"),
        LaunchFailed(6, "b", "ThrottledError"),
    ).of(POOL)
    assert record.launches == [LaunchTry(5, 1, 0)]


def test_only_preemptions_are_losses_and_all_other_endings_are_censored() -> None:  # case 14
    for ending in Ending:
        record = grown(
            requested("a"), InstanceLaunched(5, "a", "i-1"), InstanceGone(9, "a", ending)
        ).of(POOL)
        expected = LifeEnd.PREEMPTED if ending.is_preemption else LifeEnd.CENSORED
        assert (record.lives["a"].end, record.lives["a"].end_ms) == (expected, 9)


def test_prices_and_told_availability_are_recorded_once_while_unchanged() -> None:
    def seen(at_ms: int, available: int, price: int = 300_000) -> OfferingsSeen:
        return OfferingsSeen(at_ms, (Offering(POOL, Capacity.SPOT, price, available=available),))

    record = grown(seen(0, 4), seen(1_000, 4), seen(2_000, 0), seen(3_000, 0, 310_000)).of(POOL)
    assert record.launches == [LaunchTry(0, 4, 4), LaunchTry(2_000, 1, 0)]
    assert [s.value for s in record.prices] == [300_000, 310_000]


def test_an_unchanged_answer_is_recorded_again_after_a_while() -> None:
    offer = (Offering(POOL, Capacity.SPOT, 300_000, available=4),)
    record = grown(OfferingsSeen(0, offer), OfferingsSeen(400_000, offer)).of(POOL)
    assert len(record.launches) == 2
