"""Goodput, the bill and the counts, against calculations by hand."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.core.account import Account, fold, summary
from surefoot.core.event import (
    CheckpointCommitted,
    DrainStarted,
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    LaunchFailed,
    MetricSeen,
    NoticeReceived,
    OfferingsSeen,
    RestoreDone,
    RunEnded,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.job import Job, Throughput, Work
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import MS_PER_HOUR

POOL = Pool("local", "here", "a", "small")
DEAR = Pool("local", "here", "b", "small")
MIN = 60_000


def job(num_nodes: int = 2, **terms: Any) -> Job:
    return Job("j", num_nodes, (POOL, DEAR), Throughput(0, num_nodes), **terms)


def prices(at: int, spot: int, on_demand: int, *, pool: Pool = POOL, minimum: int = 0) -> Event:
    return OfferingsSeen(
        at,
        (
            Offering(pool, Capacity.SPOT, spot, minimum_billing_ms=minimum),
            Offering(pool, Capacity.ON_DEMAND, on_demand, minimum_billing_ms=minimum),
        ),
    )


def launch(
    at: int, token: str, capacity: Capacity = Capacity.SPOT, *, boot: int = 0
) -> list[Event]:
    return [
        InstanceRequested(at, token, POOL, capacity),
        InstanceLaunched(at, token, f"i-{token}"),
        InstanceReady(at + boot, token),
    ]


def test_bill_integrates_the_price_paid_over_the_time_held_to_the_micro_dollar() -> None:
    hour = MS_PER_HOUR
    events: list[Event] = [
        prices(0, 200_000, 1_000_000),
        *launch(0, "a"),
        prices(8 * hour, 370_000, 1_000_000),
        InstanceGone(10 * hour, "a", Ending.RELEASED),
        prices(20 * hour, 900_000, 1_000_000),
    ]
    _, bill = fold(events)
    assert bill.spot == 8 * 200_000 + 2 * 370_000
    assert (bill.on_demand, bill.unknown_ms) == (0, 0)


def test_stopped_vm_costs_nothing_however_long_one_waits() -> None:
    account = Account()
    for event in (
        prices(0, 600_000, 1_000_000),
        *launch(0, "a"),
        InstanceGone(7 * MIN, "a", Ending.RELEASED),
    ):
        account.add(event)
    assert account.bill_at(14 * MS_PER_HOUR) == account.bill
    assert account.bill.spot == 70_000


def test_running_vms_are_billed_up_to_now_and_capacities_kept_apart() -> None:
    account = Account()
    for event in [
        prices(0, 360_000, 720_000),
        *launch(0, "a"),
        *launch(0, "b", Capacity.ON_DEMAND),
    ]:
        account.add(event)
    bill = account.bill_at(10_000)
    assert (bill.spot, bill.on_demand) == (1_000, 2_000)
    assert account.bill_by_pool()[POOL].total == 0


def test_unknown_price_is_unknown_time_and_never_free() -> None:
    events: list[Event] = [
        *launch(0, "a"),
        prices(60_000, 360_000, 720_000),
        InstanceGone(100_000, "a", Ending.RELEASED),
        prices(100_000, 0, -5),
        *launch(100_000, "b"),
        InstanceGone(150_000, "b", Ending.RELEASED),
    ]
    _, bill = fold(events)
    assert bill.unknown_ms == 60_000 + 50_000
    assert bill.spot == 4_000


def test_minimum_billing_is_owed_from_the_launch() -> None:
    account = Account()
    for event in [prices(0, 360_000, 720_000, minimum=60_000), *launch(0, "a")]:
        account.add(event)
    assert account.bill_at(10).spot == 6_000
    account.add(InstanceGone(20_000, "a", Ending.RELEASED))
    assert account.bill.spot == 6_000


def test_vm_that_ended_before_it_began_costs_nothing_and_never_less() -> None:
    events = [prices(0, 360_000, 1), *launch(5_000, "a"), InstanceGone(1_000, "a", Ending.RELEASED)]
    assert fold(events)[1].total == 0


def test_loss_reported_late_ends_the_bill_when_it_happened() -> None:
    events: list[Event] = [
        prices(0, 360_000, 1),
        *launch(0, "a"),
        prices(20_000, 720_000, 1),
        StepsDone(60_000, 1, 10),
        InstanceGone(30_000, "a", Ending.PREEMPTED_SILENT),
    ]
    assert fold(events)[1].spot == 2_000 + 2_000


def training() -> list[Event]:
    """Start at 0, first step at 10 s, then steps of 1 s."""
    return [
        RunStarted(0, "r"),
        prices(0, 1_000_000, 4_000_000),
        *launch(1_000, "a", boot=5_000),
        *launch(1_000, "b", boot=5_000),
        GroupFormed(10_000, 1, ("a", "b"), 0),
        StepsDone(30_000, 20, 1_000),
    ]


def test_time_before_the_first_step_is_startup_and_the_rest_is_kept() -> None:
    goodput, _ = fold(training())
    assert (goodput.wall_ms, goodput.badput.startup) == (30_000, 10_000)
    assert goodput.badput.total_ms == 10_000
    assert goodput.share == pytest.approx(2 / 3)


def test_stall_of_a_save_is_taken_out_of_training_time() -> None:
    events = [*training(), CheckpointCommitted(31_000, 20, 30_000, 400, 800)]
    goodput, _ = fold(events)
    assert goodput.badput.checkpoint_stall == 400
    assert goodput.badput.total_ms == 10_400


def test_silent_loss_costs_lost_work_and_recovery() -> None:
    events = [
        *training(),
        CheckpointCommitted(30_000, 20, 30_000, 0, 0),
        StepsDone(40_000, 30, 1_000),
        GroupBroken(40_500, 1, "a member is silent"),
        InstanceGone(40_500, "b", Ending.PREEMPTED_SILENT),
        RestoreDone(43_500, 20, 2_000),
        GroupFormed(43_500, 2, ("a",), 20, lost_steps=10),
        StepsDone(50_000, 26, 1_000),
    ]
    account = Account(job())
    for event in events:
        account.add(event)
    badput = account.goodput.badput
    assert (badput.lost_work, badput.recovery, badput.restore) == (10_500, 1_000, 2_000)
    assert account.counts.silent == 1
    assert account.counts.lost_steps == 10
    assert account.recovery_s == [3.0]


def test_notice_survived_loses_nothing_and_counts_as_planned_change() -> None:
    events = [
        *training(),
        NoticeReceived(31_000, "b", 60_000),
        StepsDone(50_000, 40, 1_000),
        GroupBroken(50_000, 1, "b leaves"),
        GroupFormed(51_000, 2, ("a",), 40),
        InstanceGone(60_000, "b", Ending.PREEMPTED_NOTICE),
    ]
    account = Account(job())
    for event in events:
        account.add(event)
    badput = account.goodput.badput
    assert (badput.lost_work, badput.recovery, badput.reconfiguration) == (0, 0, 1_000)
    assert (account.counts.notice, account.counts.lost_steps) == (1, 0)
    assert account.recovery_s == [1.0]


def test_time_without_a_ready_vm_is_waiting() -> None:
    events = [
        *training(),
        GroupBroken(30_000, 1),
        InstanceGone(30_000, "a", Ending.PREEMPTED_SILENT),
        InstanceGone(30_000, "b", Ending.PREEMPTED_SILENT),
        *launch(40_000, "c", boot=60_000),
        RestoreDone(105_000, 20, 3_000),
        GroupFormed(105_000, 2, ("c",), 20),
    ]
    badput = fold(events)[0].badput
    assert (badput.waiting, badput.restore, badput.recovery) == (70_000, 3_000, 2_000)


def test_refused_start_is_waiting_and_not_startup() -> None:
    events: list[Event] = [
        RunStarted(0, "r"),
        InstanceRequested(0, "a", POOL, Capacity.SPOT),
        LaunchFailed(1_000, "a", "CapacityError"),
        RunEnded(61_000, "stopped"),
    ]
    badput = fold(events)[0].badput
    assert (badput.startup, badput.waiting) == (1_000, 60_000)


def test_time_between_stop_and_resumption_is_idle_and_repeated_steps_are_lost() -> None:
    events = [
        *training(),
        CheckpointCommitted(30_000, 20, 30_000, 0, 0),
        StepsDone(32_000, 22, 1_000),
        RunEnded(32_000, "failed"),
        InstanceGone(33_000, "a", Ending.RELEASED),
        InstanceGone(33_000, "b", Ending.RELEASED),
        RunStarted(132_000, "r", resumed=True, step=20),
        *launch(132_000, "c", boot=1_000),
        GroupFormed(134_000, 2, ("c",), 20),
        StepsDone(140_000, 26, 1_000),
    ]
    account = Account(job())
    for event in events:
        account.add(event)
    assert account.goodput.badput.idle == 100_000
    assert account.goodput.badput.lost_work == 2_000
    assert account.counts.lost_steps == 2
    assert account.goodput.wall_ms == 140_000


def test_fallback_return_and_growth_are_counted_once_each() -> None:
    events = [
        *training(),
        InstanceGone(31_000, "a", Ending.PREEMPTED_SILENT),
        *launch(31_000, "d", Capacity.ON_DEMAND),
        *launch(32_000, "e", Capacity.ON_DEMAND),
        GroupFormed(33_000, 2, ("b", "d", "e"), 20),
        *launch(40_000, "f"),
        GroupFormed(41_000, 3, ("b", "d", "e", "f"), 25),
        DrainStarted(50_000, "d"),
        DrainStarted(50_000, "e"),
        GroupFormed(51_000, 4, ("b", "f"), 35),
        InstanceGone(52_000, "d", Ending.RELEASED),
        InstanceGone(52_000, "e", Ending.RELEASED),
        StepsDone(60_000, 44, 1_000),
    ]
    account = Account(job())
    for event in events:
        account.add(event)
    counts = account.counts
    assert counts.on_demand_fallbacks == counts.returns_to_spot == counts.scale_ups == 1


def test_letting_everything_go_at_the_end_is_no_return_to_spot() -> None:
    events = [
        *training(),
        *launch(31_000, "d", Capacity.ON_DEMAND),
        InstanceGone(50_000, "d", Ending.RELEASED),
        InstanceGone(50_000, "a", Ending.RELEASED),
        InstanceGone(50_000, "b", Ending.RELEASED),
        RunEnded(50_001, "done"),
    ]
    account = Account(job())
    for event in events:
        account.add(event)
    assert (account.counts.on_demand_fallbacks, account.counts.returns_to_spot) == (1, 0)


def test_on_demand_from_the_start_is_no_fallback() -> None:
    account = Account(job())
    for event in [RunStarted(0, "r"), *launch(0, "a", Capacity.ON_DEMAND)]:
        account.add(event)
    assert account.counts.on_demand_fallbacks == 0


def test_savings_compare_with_the_asked_size_in_the_cheapest_allowed_pool() -> None:
    events = [prices(0, 9, 8_000_000, pool=DEAR), *training(), RunEnded(30_000, "done")]
    got = summary(job(), events)
    # 30 s of wall time and 20 steps of 1 s, two VMs at 4 USD/h.
    assert got["on_demand_usd_same_time"] == pytest.approx(2 * 4 * 30 / 3600, abs=1e-6)
    assert got["on_demand_usd_same_work"] == pytest.approx(2 * 4 * 20 / 3600, abs=1e-6)
    assert got["bill_usd"] == pytest.approx(2 * 1 * 29 / 3600, abs=1e-6)
    assert got["saving_same_work"] == pytest.approx(1 - 58 / 160, abs=1e-4)


def test_step_time_of_another_size_is_carried_over_by_the_scaling_curve() -> None:
    curve = ((1.0, 1.0), (2.0, 1.5), (4.0, 2.0))
    asked = job(4, work=Work(step_ms=9, scaling=curve))
    got = summary(asked, training())
    assert got["on_demand_usd_same_work"] == pytest.approx(
        4 * 4 * 20 * (1.5 / 2.0) / 3600, abs=1e-5
    )


def test_summary_has_exactly_the_promised_keys_and_null_where_undefined() -> None:
    got = summary(job(), [])
    assert list(got) == [
        "steps",
        "lost_steps",
        "preemptions",
        "on_demand_fallbacks",
        "returns_to_spot",
        "scale_ups",
        "recovery_s",
        "checkpoints",
        "goodput",
        "badput",
        "bill_usd",
        "on_demand_usd_same_time",
        "on_demand_usd_same_work",
        "saving_same_work",
        "val_loss_before",
        "val_loss_after",
    ]
    assert got["goodput"] is None
    assert got["saving_same_work"] is None
    assert got["bill_usd"] == 0


def test_validation_loss_is_reported_from_first_to_last() -> None:
    values = (5.5, 4.0, 3.25)
    events = [MetricSeen(i, "val_loss", v) for i, v in enumerate(values)]
    got = summary(job(), events)
    assert (got["val_loss_before"], got["val_loss_after"]) == (5.5, 3.25)
