"""What goes wrong at the provider or in the user's code, and what the controller makes of it."""

from __future__ import annotations

import time

import pytest
from controller_world import (
    MINUTE,
    OTHER,
    POOL,
    START,
    Plain,
    World,
    job_of,
    pool_trace,
    trace_of,
)

from surefoot.controller import Settings
from surefoot.core.event import (
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    LaunchFailed,
    RunEnded,
)
from surefoot.core.fleet import Ending
from surefoot.core.job import Limits
from surefoot.core.market import Capacity
from surefoot.core.trace import Reclaim, Semantics, Step, Trace
from surefoot.core.wire import WorkerExited
from surefoot.errors import AuthError, CapacityError, QuotaError, RetryLaterError, ThrottledError
from surefoot.providers.base import LaunchRequest
from surefoot.testing import Fault, Pace


def launches(world: World) -> list[int]:
    return [at for at, call, _ in world.provider.calls if call == "launch"]


def test_the_intent_is_in_the_journal_before_the_provider_hears_of_it() -> None:
    world = World(trace_of(pool_trace()))
    requested: list[set[str]] = []
    launch = world.provider.launch

    def spy(request):  # type: ignore[no-untyped-def]
        known = {e.token for _, e in world.store.events("r") if isinstance(e, InstanceRequested)}
        requested.append(known)
        assert request.token in known
        return launch(request)

    world.provider.launch = spy  # type: ignore[method-assign]
    world.run_for(1_000)
    assert len(requested) == 2


def test_a_refused_pool_is_asked_less_and_less_often() -> None:
    trace = trace_of(pool_trace(supply=((0, 0),)))
    world = World(trace, settings=Settings(backoff_ms=10_000, backoff_limit_ms=80_000))
    world.run_for(10 * MINUTE)
    gaps = [b - a for a, b in zip(launches(world), launches(world)[1:], strict=False)]
    assert gaps[:4] == [10_000, 20_000, 40_000, 80_000] and set(gaps[4:]) == {80_000}
    assert {e.kind for e in world.of(LaunchFailed)} == {"CapacityError"}


def test_the_back_off_is_known_again_after_a_restart() -> None:
    world = World(trace_of(pool_trace(supply=((0, 0),))))
    world.run_for(3 * MINUTE)
    before = world.controller.record.backoff.pauses
    world.restart()
    assert world.controller.record.backoff.pauses == before and before


def test_a_lost_reply_never_gives_two_vms() -> None:
    world = World(trace_of(pool_trace()), policy=Plain(1))
    world.provider.fail(Fault("launch", RetryLaterError("timed out"), done=True))
    world.run_for(3 * MINUTE)
    assert len(world.provider.machines) == 1
    assert [e.token for e in world.of(InstanceLaunched)] == ["r-1"]
    assert world.of(GroupFormed)


def test_a_launch_that_succeeds_long_after_its_time_out_is_ended_not_forgotten() -> None:
    settings = Settings(request_ms=5_000, slow_down_ms=60_000, list_lag_ms=60_000)
    world = World(trace_of(pool_trace()), policy=Plain(1), settings=settings)
    late = Fault("launch", RetryLaterError("timed out"), done=True, late_ms=150_000)
    world.provider.fail(late)
    world.run_for(10 * MINUTE)
    failed = [e.token for e in world.of(LaunchFailed)]
    assert failed == ["r-1"]
    assert [vm.token for vm in world.provider.running()] == ["r-2"]
    assert world.provider.machines["r-1"].vm.ended_ms is not None  # it came, and was ended


def test_throttling_slows_all_calls_down_and_the_launch_still_happens_once() -> None:
    world = World(trace_of(pool_trace()), policy=Plain(1))
    world.provider.fail(*[Fault("launch", ThrottledError("slow down")) for _ in range(4)])
    world.run_for(3 * MINUTE)
    gaps = [b - a for a, b in zip(launches(world), launches(world)[1:], strict=False)]
    assert gaps == [1_000, 2_000, 4_000, 8_000]
    assert len(world.provider.machines) == 1 and not world.of(LaunchFailed)


def test_throttled_lists_keep_the_last_view() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(2 * MINUTE)
    world.provider.fail(*[Fault("list", ThrottledError("slow down")) for _ in range(3)])
    world.run_for(20_000)
    assert "slow down" in world.controller.view().trouble or not world.provider.faults
    assert len(world.controller.state.fleet) == 2 and not world.of(InstanceGone)
    world.run_for(MINUTE)
    assert world.controller.view().trouble == ""


def test_no_quota_in_one_place_is_learned_once_and_the_other_place_is_used() -> None:
    world = World(trace_of(pool_trace(), pool_trace(OTHER)), job=job_of(pools=(POOL, OTHER)))
    world.provider.fail(Fault("launch", QuotaError("0 of 32 vCPUs", hint="ask for more")))
    world.run_for(30 * MINUTE)
    (failed,) = world.of(LaunchFailed)
    assert failed.kind == "QuotaError" and "0 of 32 vCPUs ask for more" in failed.message
    assert {vm.pool for vm in world.provider.running()} == {OTHER}


def test_refused_credentials_stop_all_launching_and_say_why() -> None:
    world = World(trace_of(pool_trace(), pool_trace(OTHER)), job=job_of(pools=(POOL, OTHER)))
    world.provider.fail(*[Fault("launch", AuthError("token expired")) for _ in range(10)])
    world.run_for(4 * MINUTE)
    assert len(launches(world)) == 1
    assert any("token expired" in why for why in world.controller.view().refusals)


def test_a_vm_that_boots_but_never_joins_is_ended_at_the_limit_and_its_pool_left_alone() -> None:
    world = World(
        trace_of(pool_trace()), policy=Plain(1), settings=Settings(boot_limit_ms=5 * MINUTE)
    )
    world.agents.never_ready |= {f"i-{n:05d}" for n in range(1, 100)}
    world.run_for(60 * MINUTE)
    gone = world.of(InstanceGone)
    assert {e.ending for e in gone} == {Ending.BOOT_FAILED}
    assert gone[0].at_ms == START + 5 * MINUTE
    assert len(launches(world)) <= 12
    assert len(world.provider.running()) <= 1


def test_a_slow_boot_is_waited_for() -> None:
    world = World(trace_of(pool_trace(boot_ms=8 * MINUTE)))
    world.run_for(10 * MINUTE)
    assert len(world.of(InstanceLaunched)) == 2 and not world.of(InstanceGone)
    assert world.of(GroupFormed)


def test_a_list_that_lags_behind_loses_no_vm() -> None:
    world = World(trace_of(pool_trace()), list_lag_ms=40_000)
    world.run_for(10 * MINUTE)
    assert len(world.of(InstanceLaunched)) == 2 and not world.of(InstanceGone)


def test_pending_launches_count_and_three_losses_bring_three_vms_back() -> None:
    reclaims = (Reclaim(START + 5 * MINUTE, 3, 0),)
    world = World(trace_of(pool_trace(supply=((0, 6),), reclaims=reclaims)), policy=Plain(6))
    world.run_for(10 * MINUTE)
    assert len(world.of(InstanceLaunched)) == 9
    assert len(world.provider.running()) == 6


def test_a_terminate_that_fails_does_not_change_the_outcome_and_is_tried_until_done() -> None:
    world = World(trace_of(pool_trace()), total_steps=60)
    world.provider.fail(*[Fault("terminate", RetryLaterError("busy")) for _ in range(9)])
    world.run_for(4 * MINUTE)
    (ended,) = world.of(RunEnded)
    assert ended.outcome == "done"
    world.run_for(30 * MINUTE)
    assert world.controller.finished and world.provider.running() == []
    assert world.controller.state.outcome == "done"


def test_clean_up_pending_is_told_with_the_ids() -> None:
    world = World(trace_of(pool_trace()), total_steps=60)
    world.provider.fail(*[Fault("terminate", RetryLaterError("busy")) for _ in range(99)])
    world.run_for(5 * MINUTE)
    assert not world.controller.finished
    assert world.controller.view().clean_up == ("i-00001", "i-00002")


def test_a_vm_of_this_run_that_nobody_asked_for_is_ended() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(MINUTE)
    world.provider.launch(LaunchRequest("stray", "r", POOL, Capacity.ON_DEMAND))
    world.provider.launch(LaunchRequest("other", "another-run", POOL, Capacity.ON_DEMAND))
    world.run_for(MINUTE)
    assert {vm.token for vm in world.provider.running()} == {"r-1", "r-2", "other"}


def test_nothing_is_bought_without_a_price() -> None:
    silent = Trace(
        "no prices",
        Semantics.SUPPLY,
        START,
        START + 100 * MINUTE,
        {POOL: pool_trace().__class__(POOL, (Step(START, 8),), (), ())},
    )
    world = World(silent)
    world.run_for(10 * MINUTE)
    assert launches(world) == []
    assert "no price" in world.controller.view().refusals[0]
    assert len(world.of(LaunchFailed)) == 1  # said once, not at every turn


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (Limits(max_vms=1), "may hold 1 VMs"),
        (Limits(max_price_micro_usd_h=999_999), "max_price"),
        (Limits(budget_micro_usd=1_000), "budget"),
    ],
)
def test_a_limit_stops_launches_whatever_the_policy_wants(limits: Limits, word: str) -> None:
    world = World(trace_of(pool_trace()), job=job_of(limits=limits), policy=Plain(3))
    world.run_for(10 * MINUTE)
    assert len(world.provider.machines) == (1 if limits.max_vms else 0)
    assert any(word in why for why in world.controller.view().refusals)
    refused = [e for e in world.of(LaunchFailed) if e.kind == "LimitError"]
    assert 1 <= len(refused) <= 2


def test_a_spent_budget_saves_ends_all_vms_and_refuses_to_go_on() -> None:
    budget = 500_000  # two VMs at $1/h: a quarter of an hour
    world = World(trace_of(pool_trace()), job=job_of(limits=Limits(budget_micro_usd=budget)))
    world.run_for(30 * MINUTE)
    assert world.controller.finished and world.controller.state.outcome == "refused"
    assert world.provider.running() == []
    assert world.controller.state.progress.steps_safe == world.agents.step
    bill = world.controller.record.account.bill.total
    assert 0.9 * budget < bill <= budget


def test_preemptions_do_not_use_up_the_budget_for_crashes() -> None:
    reclaims = tuple(Reclaim(START + n * 2 * MINUTE, 1, 0) for n in range(1, 11))
    world = World(trace_of(pool_trace(supply=((0, 2),), reclaims=reclaims)))
    world.run_for(25 * MINUTE)
    view = world.controller.view()
    assert (view.preemptions, view.crashes) == (10, 0)
    for _ in range(4):
        token = world.of(GroupFormed)[-1].members[0]
        world.agents.say(token, WorkerExited(1, "ZeroDivisionError: division by zero"))
        world.run_for(10_000)
    assert world.controller.state.outcome == "failed"
    (ended,) = world.of(RunEnded)
    assert "ZeroDivisionError" in ended.message
    world.run_for(MINUTE)
    assert world.provider.running() == []


def test_a_worker_that_exits_badly_after_a_notice_is_no_crash() -> None:
    world = World(trace_of(pool_trace(supply=((0, 2), (5 * MINUTE, 1)))))
    world.run_for(4 * MINUTE)
    world.agents.say("r-2", WorkerExited(137, "killed"))
    world.run_for(3 * MINUTE)
    assert world.controller.view().crashes == 0
    assert world.controller.state.outcome is None


def test_a_set_up_that_fails_on_two_vms_stops_the_run_with_its_own_output() -> None:
    world = World(trace_of(pool_trace(boot_ms=5 * MINUTE)), policy=Plain(8))
    world.run_for(MINUTE)
    world.agents.say("r-1", WorkerExited(1, "pip: no such package"))
    world.run_for(1_000)
    assert world.controller.state.outcome is None
    world.agents.say("r-2", WorkerExited(1, "pip: no such package"))
    world.run_for(MINUTE)
    assert world.controller.state.outcome == "failed"
    assert "no such package" in world.of(RunEnded)[0].message
    assert world.provider.running() == [] and len(world.provider.machines) == 8


def test_a_preemption_in_the_middle_of_set_up_is_just_replaced() -> None:
    reclaims = (Reclaim(START + MINUTE, 1, 0),)
    world = World(trace_of(pool_trace(supply=((0, 2),), boot_ms=3 * MINUTE, reclaims=reclaims)))
    world.run_for(6 * MINUTE)
    assert len(world.of(InstanceLaunched)) == 3 and world.of(GroupFormed)
    assert world.controller.state.outcome is None


def test_fifty_losses_among_three_hundred_vms_are_handled_in_one_turn() -> None:
    reclaims = (Reclaim(START + 5 * MINUTE, 50, 0),)
    trace = trace_of(pool_trace(supply=((0, 300),), reclaims=reclaims))
    world = World(trace, policy=Plain(300), pace=Pace(num_nodes=300))
    world.run_for(4 * MINUTE)
    began = time.process_time()
    world.clock.advance_to(START + 5 * MINUTE)
    world.controller.turn()
    assert len(world.of(InstanceGone)) == 50
    assert time.process_time() - began < 3.0


def test_a_capacity_error_makes_room_for_the_next_pool_in_the_same_turn() -> None:
    world = World(trace_of(pool_trace(), pool_trace(OTHER)), job=job_of(pools=(POOL, OTHER)))
    world.provider.fail(Fault("launch", CapacityError("none")))
    world.controller.turn()
    assert {vm.pool for vm in world.provider.running()} == {OTHER}
