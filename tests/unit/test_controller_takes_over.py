"""A controller that takes over amid a loss, and VMs that go because they were told to."""

from __future__ import annotations

from controller_world import MINUTE, Plain, World, pool_trace, trace_of

from surefoot.controller.observe import Watch
from surefoot.core.event import GroupBroken, GroupFormed
from surefoot.core.fleet import Ending, Instance, InstanceState
from surefoot.core.market import Capacity, Pool
from surefoot.core.wire import Generation
from surefoot.providers.base import Vm, VmState


def generations(world: World) -> list[Generation]:
    return [m for _, _, m in world.agents.sent if isinstance(m, Generation)]


def test_whoever_waits_for_a_dead_member_is_cut_loose_by_the_next_controller() -> None:
    """The former one wrote that the group broke, and died before it said so to anybody."""
    world = World(trace_of(pool_trace()), policy=Plain(2))
    world.run_for(5 * MINUTE)
    (formed,) = world.of(GroupFormed)[-1:]
    assert not generations(world)[0].urgent, "the first group of all has nobody to cut loose"
    broken = GroupBroken(world.clock.now_ms(), formed.generation, "lost somebody")
    world.controller.record.add(broken)
    world.agents.sent.clear()
    world.restart()
    world.run_for(MINUTE)
    first = generations(world)[0]
    assert first.number > formed.generation
    assert first.urgent, "it cannot name the dead: all of the old group must be cut"


def gone(told: set[str], *, preempted: bool, noticed: bool = False) -> Ending:
    pool = Pool("p", "r", "z", "t")
    watch = Watch(None, "run", None, None, told=told)  # type: ignore[arg-type]
    known = Instance(
        "t1", pool, Capacity.SPOT, InstanceState.READY, 0, "i-1", 0,
        notice_deadline_ms=5 if noticed else None,
    )  # fmt: skip
    vm = Vm("i-1", "t1", "run", pool, Capacity.SPOT, VmState.ENDED, 0, preempted=preempted)
    return watch._ending(known, vm)


def test_a_vm_that_ended_itself_after_it_was_told_to_go_was_let_go() -> None:
    assert gone({"t1"}, preempted=False) is Ending.RELEASED
    assert gone({"t1"}, preempted=True) is Ending.PREEMPTED_SILENT
    assert gone({"t1"}, preempted=False, noticed=True) is Ending.PREEMPTED_NOTICE
    assert gone(set(), preempted=False) is Ending.PREEMPTED_SILENT
