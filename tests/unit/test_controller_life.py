"""A run's life in the controller: groups, preemptions, drains, the end."""

from __future__ import annotations

from itertools import pairwise

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

from surefoot.controller import Phase
from surefoot.core.event import (
    CheckpointCommitted,
    Decided,
    DrainStarted,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceReady,
    NoticeReceived,
    RestoreDone,
    RunEnded,
    RunStarted,
    StepsDone,
)
from surefoot.core.fleet import Ending
from surefoot.core.trace import Reclaim
from surefoot.core.wire import Generation, Leave, SaveNow, SetInterval, Stop
from surefoot.testing import Pace


def test_a_calm_run_trains_to_its_last_step_and_leaves_nothing_behind() -> None:
    world = World(trace_of(pool_trace()), total_steps=100)
    world.run_for(20 * MINUTE)
    assert world.controller.finished, world.show()
    assert world.controller.state.outcome == "done"
    assert world.controller.state.progress.steps_safe == 100
    assert world.provider.running() == []
    assert isinstance(world.seen[0], RunStarted) and isinstance(world.seen[-1], RunEnded)
    assert {e.ending for e in world.of(InstanceGone)} == {Ending.RELEASED}
    assert len(world.of(GroupFormed)) == 1


def test_a_notice_is_told_to_all_saved_at_once_and_used_to_the_last_seconds() -> None:  # case 92
    trace = trace_of(pool_trace(supply=((0, 2), (5 * MINUTE, 1))))
    world = World(trace)
    world.run_for(10 * MINUTE)
    (notice,) = world.of(NoticeReceived)
    assert notice.at_ms == START + 3 * MINUTE and notice.deadline_ms == START + 5 * MINUTE
    told = [(t, m) for at, t, m in world.agents.sent if isinstance(m, SaveNow) and m.left_ms]
    assert {t for t, _ in told} == {"r-1", "r-2"}
    (saved,) = [e for e in world.of(CheckpointCommitted) if e.emergency]
    assert saved.at_ms - notice.at_ms < 5_000 and saved.margin_ms > 100_000
    (left,) = [at for at, t, m in world.agents.sent if isinstance(m, Leave)]
    assert notice.deadline_ms - 6_000 < left < notice.deadline_ms - 2_000
    assert world.of(GroupFormed)[-1].members == ("r-1",)
    assert world.controller.state.progress.steps_lost == 0
    (gone,) = world.of(InstanceGone)
    assert (gone.at_ms, gone.ending) == (notice.deadline_ms, Ending.PREEMPTED_NOTICE)


def test_a_silent_loss_makes_an_urgent_generation_of_the_survivors_at_once() -> None:
    reclaim = Reclaim(START + 4 * MINUTE, 1, 0)
    world = World(trace_of(pool_trace(supply=((0, 2),), reclaims=(reclaim,))))
    world.run_for(4 * MINUTE + 20_000)
    (gone,) = world.of(InstanceGone)
    assert gone.ending is Ending.PREEMPTED_SILENT and gone.token == "r-1"
    urgent = [(at, t, m) for at, t, m in world.agents.sent if isinstance(m, Generation)][-1]
    assert urgent[0] == gone.at_ms
    assert urgent[2].urgent and urgent[2].tokens == ("r-2",)
    assert urgent[2].lost == ("10.0.0.2",)
    assert world.of(GroupBroken) and world.of(GroupFormed)[-1].members == ("r-2",)
    assert world.of(GroupFormed)[-1].lost_steps == 0


def test_a_lost_group_goes_on_from_the_newest_durable_checkpoint() -> None:
    reclaims = (Reclaim(START + 4 * MINUTE, 2, 0),)
    world = World(trace_of(pool_trace(supply=((0, 2),), reclaims=reclaims)))
    world.run_for(8 * MINUTE)
    assert len(world.of(InstanceGone)) == 2
    (restored,) = world.of(RestoreDone)
    again = world.of(GroupFormed)[-1]
    assert again.step == restored.step and again.lost_steps > 0
    before = [e for e in world.of(CheckpointCommitted) if e.at_ms < again.at_ms]
    assert again.step == before[-1].step
    assert world.controller.state.progress.steps_done > again.step


def test_survivors_keep_their_ranks_and_joiners_come_behind_them() -> None:
    trace = trace_of(pool_trace(supply=((0, 3), (5 * MINUTE, 2), (7 * MINUTE, 3))))
    world = World(trace, policy=Plain(3))
    world.run_for(12 * MINUTE)
    groups = [e.members for e in world.of(GroupFormed)]
    assert groups[:2] == [("r-1", "r-2", "r-3"), ("r-1", "r-2")]
    assert groups[-1][:2] == ("r-1", "r-2") and len(groups[-1]) == 3


def test_vms_that_come_up_together_make_one_interruption() -> None:
    world = World(trace_of(pool_trace()), policy=Plain(6))
    world.run_for(5 * MINUTE)
    assert [len(e.members) for e in world.of(GroupFormed)] == [6]
    numbers = {m.number for _, _, m in world.agents.sent if isinstance(m, Generation)}
    assert numbers == {1}


def test_stand_ins_leave_only_when_spot_has_taken_over_and_no_step_is_lost() -> None:
    trace = trace_of(pool_trace(supply=((0, 0), (6 * MINUTE, 2))))
    world = World(trace, policy=Plain(fallback=True))
    world.run_for(15 * MINUTE)
    drained = [e.token for e in world.of(DrainStarted)]
    groups = world.of(GroupFormed)
    spot = groups[-1].members
    assert len(drained) == 2 and set(groups[0].members) == set(drained)
    assert not set(spot) & set(drained)
    assert world.controller.state.progress.steps_lost == 0
    released = [e for e in world.of(InstanceGone) if e.token in drained]
    assert all(e.ending is Ending.RELEASED for e in released) and len(released) == 2
    # The live state is handed from memory to memory: some group holds both generations of VMs.
    assert not world.of(RestoreDone), world.show()


def test_a_stop_saves_first_and_then_no_vm_is_left() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(3 * MINUTE)
    world.controller.request_stop()
    world.run_for(2 * MINUTE)
    state = world.controller.state
    assert world.controller.finished and state.outcome == "stopped"
    assert state.progress.steps_safe == state.progress.steps_done == world.agents.durable > 0
    assert any(isinstance(m, Stop) and m.save for _, _, m in world.agents.sent)
    assert world.provider.running() == []


def test_a_stop_before_anything_runs_ends_the_launches_at_once() -> None:
    world = World(trace_of(pool_trace(boot_ms=10 * MINUTE)))
    world.run_for(10_000)
    world.controller.request_stop()
    world.run_for(1_000)
    assert world.controller.finished and world.provider.running() == []
    assert world.controller.state.outcome == "stopped"


def test_a_stop_is_not_held_up_by_workers_that_do_not_answer() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(3 * MINUTE)
    world.agents.total_steps = -1
    world.agents._group = None  # the workers hang: nothing is said any more
    world.agents._due.clear()
    world.controller.request_stop()
    world.run_for(world.settings.stop_limit_ms + world.settings.leave_limit_ms + 1_000)
    assert world.controller.finished and world.provider.running() == []


def test_a_new_interval_reaches_all_members_at_once() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(2 * MINUTE)
    told = [(t, m.interval_ms) for _, t, m in world.agents.sent if isinstance(m, SetInterval)]
    assert {t for t, _ in told} == {"r-1", "r-2"}
    assert world.controller.decision is not None
    assert told[-1][1] == world.controller.decision.interval.interval_ms


def test_the_journal_does_not_grow_by_a_row_per_heartbeat() -> None:
    world = World(trace_of(pool_trace()))
    world.run_for(30 * MINUTE)
    steps, decided = world.of(StepsDone), world.of(Decided)
    assert len(steps) <= 30 * 60 + 2
    assert len(decided) <= 4, [e.decision.plan.reason for e in decided]


def test_progress_is_journaled_once_a_second_and_the_newest_is_kept_for_display() -> None:
    world = World(trace_of(pool_trace()), pace=Pace(step_ms=50, num_nodes=2))
    world.run_for(2 * MINUTE)
    steps = world.of(StepsDone)
    gaps = [b.at_ms - a.at_ms for a, b in pairwise(steps)]
    assert len(steps) < 2 * 60 * 1.2 and sorted(gaps)[len(gaps) // 2] >= 1_000
    newest = world.controller.view().newest
    assert newest is not None and newest.step >= steps[-1].step
    assert newest.step > world.controller.state.progress.steps_done - 1


def test_one_loss_keeps_the_others_when_only_one_more_can_be_had() -> None:
    supply = ((0, 8), (5 * MINUTE, 7), (5 * MINUTE + 1, 8))
    world = World(trace_of(pool_trace(supply=supply, notice_ms=0)), policy=Plain(8))
    world.run_for(12 * MINUTE)
    first, last = world.of(GroupFormed)[0], world.of(GroupFormed)[-1]
    assert len(last.members) == 8 and len(set(first.members) & set(last.members)) == 7
    assert len(world.of(InstanceLaunched)) == 9
    assert len(world.of(InstanceGone)) == 1


def test_losses_while_recovering_leave_one_live_set() -> None:
    at = 5 * MINUTE
    reclaims = tuple(Reclaim(START + at + extra, 1, 0) for extra in (0, 1_000, 31_500, 33_000))
    world = World(trace_of(pool_trace(supply=((0, 3),), reclaims=reclaims)), policy=Plain(3))
    world.run_for(12 * MINUTE)
    running = {vm.token for vm in world.provider.running()}
    assert set(world.of(GroupFormed)[-1].members) == running and len(running) == 3
    tokens = [e.token for e in world.of(InstanceLaunched)]
    assert len(tokens) == len(set(tokens))


def test_a_pool_that_dries_up_sends_the_job_to_the_other_pool() -> None:
    trace = trace_of(pool_trace(supply=((0, 0),)), pool_trace(OTHER))
    world = World(trace, job=job_of(pools=(POOL, OTHER)))
    world.run_for(3 * MINUTE)
    assert {vm.pool for vm in world.provider.running()} == {OTHER}
    assert len(world.of(InstanceReady)) == 2


def test_members_that_are_let_go_are_told_to_leave() -> None:
    world = World(trace_of(pool_trace(supply=((0, 2), (5 * MINUTE, 1)))))
    world.run_for(6 * MINUTE)
    assert [t for _, t, m in world.agents.sent if isinstance(m, Leave)] == ["r-2"]
    assert world.controller.phase is Phase.RUNNING


def test_the_first_group_waits_for_those_launched_with_it() -> None:
    slower = pool_trace(OTHER, boot_ms=33_000)
    trace = trace_of(pool_trace(supply=((0, 1),), boot_ms=30_000), slower)
    world = World(trace, job=job_of(pools=(POOL, OTHER)))
    world.run_for(3 * MINUTE)
    assert [len(e.members) for e in world.of(GroupFormed)] == [2], world.show()


def test_the_first_group_does_not_wait_for_a_straggler() -> None:
    slower = pool_trace(OTHER, boot_ms=60_000)
    trace = trace_of(pool_trace(supply=((0, 1),), boot_ms=30_000), slower)
    world = World(trace, job=job_of(pools=(POOL, OTHER)))
    world.run_for(3 * MINUTE)
    first, second = world.of(GroupFormed)
    assert (len(first.members), len(second.members)) == (1, 2), world.show()
    ready = world.of(InstanceReady)[0]
    assert first.at_ms - ready.at_ms <= 4_000 + 2_000 + 2_000, world.show()
