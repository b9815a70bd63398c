"""Units, the transition table and `apply`: what every other part stands on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core import units
from surefoot.core.event import (
    CheckpointCommitted,
    DrainStarted,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    NoticeReceived,
    OfferingsSeen,
    State,
    StepsDone,
    apply,
)
from surefoot.core.fleet import ALLOWED, Ending, Instance, InstanceState
from surefoot.core.market import Capacity, Market, Offering, Pool

POOL = Pool("local", "r", "a", "small")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_refuses_to_round_what_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        units.ms(bad)
    with pytest.raises(ValueError, match="finite"):
        units.micro_usd(bad)


@given(st.integers(0, 10**12), st.integers(0, 10**9), st.integers(0, 10**9))
def test_charging_in_two_parts_differs_by_at_most_one_micro_dollar(
    rate: int, first_ms: int, second_ms: int
) -> None:
    whole = units.charge_micro_usd(rate, first_ms + second_ms)
    parts = units.charge_micro_usd(rate, first_ms) + units.charge_micro_usd(rate, second_ms)
    assert abs(whole - parts) <= 1


def test_an_hour_costs_the_hourly_rate() -> None:
    assert units.charge_micro_usd(970_000, units.MS_PER_HOUR) == 970_000


def test_gone_is_final_and_every_state_can_reach_it() -> None:
    assert ALLOWED[InstanceState.GONE] == frozenset()
    assert all(
        InstanceState.GONE in nexts
        for state, nexts in ALLOWED.items()
        if state is not InstanceState.GONE
    )


def test_moving_against_the_table_is_refused() -> None:
    vm = Instance("t", POOL, Capacity.SPOT, InstanceState.READY, 0)
    with pytest.raises(ValueError, match="ready -> requested"):
        vm.moved(InstanceState.REQUESTED)


def started(*events: object) -> State:
    state = State()
    for event in (InstanceRequested(1, "t", POOL, Capacity.SPOT), *events):
        state = apply(state, event)  # type: ignore[arg-type]
    return state


def test_a_vm_lives_from_request_to_gone() -> None:
    state = started(InstanceLaunched(2, "t", "i-1"), InstanceReady(3, "t"))
    vm = state.fleet.get("t")
    assert vm is not None and vm.state is InstanceState.READY and vm.ready_ms == 3
    state = apply(state, NoticeReceived(4, "t", 9))
    assert state.fleet.select(InstanceState.NOTICED)[0].notice_deadline_ms == 9
    state = apply(state, CheckpointCommitted(6, 30, 5, 5, 700, emergency=True))
    state = apply(state, InstanceGone(9, "t", Ending.PREEMPTED_NOTICE))
    assert len(state.fleet) == 0 and state.notices == (1, 1)


def test_a_notice_without_a_save_in_time_does_not_count_as_harmless() -> None:
    ready = started(InstanceLaunched(2, "t", "i-1"), InstanceReady(3, "t"))
    saved_before = apply(ready, CheckpointCommitted(4, 30, 3, 5, 700))
    noticed = apply(saved_before, NoticeReceived(5, "t", 9))
    assert apply(noticed, InstanceGone(9, "t", Ending.PREEMPTED_NOTICE)).notices == (0, 1)
    booting = apply(started(InstanceLaunched(2, "t", "i-1")), NoticeReceived(5, "t", 9))
    assert apply(booting, InstanceGone(9, "t", Ending.PREEMPTED_NOTICE)).notices == (1, 1)


def test_one_stalled_save_moves_the_cost_little_and_a_lasting_change_is_followed() -> None:
    state = State()
    for at in range(10):
        state = apply(state, CheckpointCommitted(at, at, at, 10, 700))
    assert state.save_cost.persist_ms == 700
    once = apply(state, CheckpointCommitted(11, 11, 11, 10, 90_000))
    assert once.save_cost.persist_ms < 2 * 700
    for at in range(12, 32):
        state = apply(state, CheckpointCommitted(at, at, at, 10, 7_000))
    assert state.save_cost.persist_ms == pytest.approx(7_000, rel=0.02)


def test_stale_and_unknown_reports_change_nothing() -> None:
    state = started(InstanceLaunched(2, "t", "i-1"), InstanceReady(3, "t"))
    for event in (
        InstanceReady(4, "t"),
        InstanceReady(4, "nobody"),
        InstanceLaunched(4, "t", "i-2"),
        DrainStarted(4, "nobody"),
        InstanceGone(4, "nobody", Ending.RELEASED),
    ):
        assert apply(state, event).fleet == state.fleet


def test_a_failed_launch_leaves_no_instance() -> None:
    assert len(started(LaunchFailed(2, "t", "CapacityError")).fleet) == 0


def test_a_release_is_not_counted_as_a_preemption() -> None:
    state = started(InstanceLaunched(2, "t", "i"), InstanceGone(3, "t", Ending.RELEASED))
    assert state.notices == (0, 0)


def test_progress_follows_groups_steps_and_checkpoints() -> None:
    state = State()
    for event in (
        GroupFormed(1, 1, ("a", "b"), 0),
        StepsDone(2, 40, 10),
        CheckpointCommitted(3, 30, 2, 5, 700),
        GroupBroken(4, 1),
        GroupFormed(5, 2, ("a",), 38, lost_steps=2),
    ):
        state = apply(state, event)  # type: ignore[arg-type]
    p = state.progress
    assert (p.steps_done, p.steps_safe, p.steps_lost, p.members, p.generation) == (38, 30, 2, 1, 2)
    assert (state.save_cost.stall_ms, state.save_cost.persist_ms) == (5, 700)


def test_a_partial_price_update_keeps_the_other_pools() -> None:
    other = Pool("local", "r", "b", "small")
    market = Market(0, (Offering(POOL, Capacity.SPOT, 5), Offering(other, Capacity.SPOT, 6)))
    state = apply(State(market=market), OfferingsSeen(9, (Offering(POOL, Capacity.SPOT, 7),)))
    prices = {o.pool: o.price_micro_usd_h for o in state.market.offerings}
    assert prices == {POOL: 7, other: 6}


def test_two_offerings_for_one_pool_and_capacity_are_refused() -> None:
    with pytest.raises(ValueError, match="two offerings"):
        Market(0, (Offering(POOL, Capacity.SPOT, 5), Offering(POOL, Capacity.SPOT, 6)))


def test_a_pool_is_read_back_from_its_text() -> None:
    assert Pool.parse(str(POOL)) == POOL
    with pytest.raises(ValueError, match="provider/region/zone/type"):
        Pool.parse("aws/us-east-1")
