"""The controller dies at any write or call, and its successor loses nothing and forgets nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))

from controller_world import MINUTE, START, Plain, World, pool_trace, trace_of

from surefoot.controller import Settings
from surefoot.core.event import (
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    LaunchFailed,
    RunStarted,
    State,
    apply,
)
from surefoot.core.fleet import Ending
from surefoot.core.wire import Generation
from surefoot.errors import FencedError
from surefoot.testing import Odds


class Killed(BaseException):
    """The controller's process is gone."""


def die_at(world: World, call: int) -> None:
    """Let the controller's process die right after its n-th journal write or provider call."""
    left = [call]

    def counted(function):  # type: ignore[no-untyped-def]
        def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
            value = function(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return value

        return wrapped

    journal = world.controller.record.journal
    journal.extend = counted(journal.extend)  # type: ignore[method-assign]
    for name in ("launch", "terminate"):
        setattr(
            world.provider,
            name,
            counted(getattr(type(world.provider), name).__get__(world.provider)),
        )


def check(world: World, why: str) -> None:
    """Assert what must hold once things are quiet."""
    events = [event for _, event in world.store.events("r")]
    launched = [e.token for e in events if isinstance(e, InstanceLaunched)]
    requested = [e.token for e in events if isinstance(e, InstanceRequested)]
    assert len(set(launched)) == len(launched), why
    assert len(set(requested)) == len(requested), why
    running = {vm.token for vm in world.provider.running()}
    owned = {vm.token for vm in world.controller.state.fleet}
    assert running <= owned, f"{why}: nobody owns {running - owned}"
    state = State()
    for event in events:
        state = apply(state, event)
    assert state == world.controller.state, why


def with_plain_calls(world: World) -> None:
    for name in ("launch", "terminate"):
        world.provider.__dict__.pop(name, None)


@pytest.mark.parametrize("call", range(1, 26, 2))
def test_a_crash_at_any_write_or_call_orphans_no_vm_and_the_run_goes_on(call: int) -> None:
    supply = ((0, 2), (3 * MINUTE, 1), (4 * MINUTE, 2))
    settings = Settings(backoff_ms=20_000, backoff_limit_ms=20_000)
    world = World(trace_of(pool_trace(supply=supply)), settings=settings)
    die_at(world, call)
    try:
        world.run_for(5 * MINUTE)
    except Killed:
        with_plain_calls(world)
        world.restart()
    with_plain_calls(world)
    world.run_for(6 * MINUTE)
    check(world, f"call {call}\n{world.show()}")
    assert len(world.provider.running()) == 2, world.show()
    before = world.agents.step
    world.run_for(MINUTE)
    assert world.agents.step > before, world.show()


def test_survivors_go_on_training_through_a_restart_without_a_new_group() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(3 * MINUTE)
    step = world.agents.step
    world.restart()
    world.run_for(MINUTE)
    assert world.agents.step >= step + 59
    assert len([m for _, _, m in world.agents.sent if isinstance(m, Generation)]) == 2
    (resumed,) = [e for e in world.of(RunStarted) if e.resumed]
    assert resumed.at_ms == START + 3 * MINUTE + 1 or resumed.resumed
    assert world.controller.state.progress.members == 2
    assert not world.of(InstanceGone)


def test_a_vm_that_vanished_meanwhile_is_seen_and_replaced() -> None:
    world = World(trace_of(pool_trace(supply=((0, 2),))))
    world.run_for(3 * MINUTE)
    world.provider.terminate("i-00001")
    world.restart()
    world.run_for(5 * MINUTE)
    (gone,) = world.of(InstanceGone)
    assert gone.token == "r-1" and gone.ending is Ending.PREEMPTED_SILENT
    assert len(world.provider.running()) == 2
    assert world.of(GroupFormed)[-1].members[0] == "r-2"


def test_an_agent_that_does_not_come_back_after_a_restart_is_given_up() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(3 * MINUTE)
    world.agents.workers["r-2"].connected = False
    world.restart()
    world.run_for(3 * MINUTE)
    assert [e.token for e in world.of(InstanceGone)] == ["r-2"]
    assert "r-2" not in {vm.token for vm in world.provider.running()}


def test_a_request_without_a_vm_has_failed_and_its_late_vm_is_ended() -> None:
    world = World(trace_of(pool_trace()), policy=Plain(1))
    die_at(world, 4)  # RunStarted, prices, decision, then the intent
    with pytest.raises(Killed):
        world.run_for(MINUTE)
    with_plain_calls(world)
    world.restart()
    world.run_for(2 * MINUTE)
    failed = [e.token for e in world.of(LaunchFailed)]
    assert failed in ([], ["r-1"])
    assert len(world.provider.running()) == 1
    check(world, world.show())


def test_a_deposed_controller_stops_at_its_next_write() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(2 * MINUTE)
    old = world.controller
    world.clock.advance_to(world.clock.now_ms() + 11_000)
    world.restart("second")
    world.run_for(10_000)
    with pytest.raises(FencedError):
        for _ in range(5):
            world.clock.advance_to(world.clock.now_ms() + 4_000)
            old.turn()
    assert len(world.provider.running()) == 2


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_and_crashes_leave_one_owner_for_every_vm(seed: int) -> None:
    """Repeat one with: pytest tests/crash/test_controller_recovery.py -k "random and SEED"."""
    odds = Odds(seed, throttled=0.05, lost_reply=0.1, refused=0.1)
    supply = ((0, 4), (6 * MINUTE, 1), (12 * MINUTE, 3), (20 * MINUTE, 0), (24 * MINUTE, 4))
    world = World(
        trace_of(pool_trace(supply=supply)),
        policy=Plain(3, fallback=True),
        odds=odds,
        list_lag_ms=5_000,
    )
    for round_ in range(4):
        world.run_for((4 + (seed * 7 + round_ * 3) % 5) * MINUTE)
        world.restart()
    world.run_for(10 * MINUTE)
    world.provider._odds = None
    world.run_for(5 * MINUTE)
    check(world, f"seed {seed}\n{world.show()}")
    world.controller.request_stop()
    world.run_for(10 * MINUTE)
    assert world.controller.finished, f"seed {seed}\n{world.show()}"
    assert world.provider.running() == [], f"seed {seed}"
