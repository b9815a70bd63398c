"""The simulated crew: the training group, how it forms, saves, loses members and goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.core.account import Account
from surefoot.core.attention import matters
from surefoot.core.backoff import Backoff
from surefoot.core.event import (
    CheckpointCommitted,
    CheckpointFailed,
    CostMeasured,
    Decided,
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceReady,
    NoticeReceived,
    OfferingsSeen,
    RestoreDone,
    State,
    StepsDone,
    apply,
)
from surefoot.core.fleet import Ending, Instance, InstanceState
from surefoot.core.floor import FloorWatch
from surefoot.core.history import observe
from surefoot.core.job import Job
from surefoot.core.market import Pool
from surefoot.core.trace import History
from surefoot.core.wave import wave_ms
from surefoot.sim.model import CostModel, Dice
from surefoot.sim.training import Save, Training, step_ms
from surefoot.sim.world import World


@dataclass(slots=True)
class Group:
    """The training group. `forming_ms` is when its first step will be done, None once it is."""

    number: int = 0
    members: tuple[str, ...] = ()
    forming_ms: int | None = None
    restore_ms: int = 0
    pause_ms: int = 0
    lost_steps: int = 0
    live: bool = False
    """Whether some member holds the state of `Training.step`."""
    loss_seen_ms: int | None = None
    """When the loss of a member will be noticed."""

    @property
    def formed(self) -> bool:
        """Whether it trains."""
        return bool(self.members) and self.forming_ms is None and self.loss_seen_ms is None


QUIET = frozenset({StepsDone, CheckpointCommitted, CostMeasured, Decided, OfferingsSeen})
"""Events after which the group need not be looked at."""


GOING = (InstanceState.NOTICED, InstanceState.DRAINING)


@dataclass(slots=True)
class Books:
    """Everything folded from the events of the run so far, and the present instant."""

    account: Account
    history: History
    floor: FloorWatch
    state: State
    backoff: Backoff
    now_ms: int
    keep: bool
    events: list[Event] = field(default_factory=list)
    seen: int = 0
    changes: int = 0
    """Count of events that may call for a change of the group."""
    dirty: bool = True

    def add(self, event: Event) -> None:
        """Take in one event, in the order of the live controller."""
        observe(self.history, event, self.state)
        self.backoff.observe(event, self.state)
        self.account.add(event)
        self.state = apply(self.state, event)
        self.floor.see(event, self.state)
        self.dirty = self.dirty or matters(event)
        self.seen += 1
        self.changes += type(event) not in QUIET
        if self.keep:
            self.events.append(event)


class Crew:
    """The VMs of a run as a training group. Every method acts at `books.now_ms`."""

    def __init__(self, job: Job, model: CostModel, dice: Dice, world: World, books: Books) -> None:
        self.job, self.model, self.dice = job, model, dice
        self.world, self.books = world, books
        self.training = Training(job.work.total_steps, interval_ms=job.interval.max_ms)
        self.group = Group()
        self.done = False
        """Whether the last step is done and durable."""
        self.fruitless = 0
        """VMs granted since a step was last done."""
        self.boots: dict[str, int] = {}
        """VMs that boot: token -> when they will be ready."""
        self.kept_out: frozenset[str] = frozenset()
        self._ready_ms: dict[str, int] = {}
        self._reported = 0
        self._final_ms: int | None = None
        self._last_save_asked = False
        self._looked_at = -1
        """Count of changes when the group was last looked at."""
        self._look_ms: int | None = None

    # -- what befalls VMs ------------------------------------------------------------------------

    def come_up(self, token: str) -> None:
        """A VM has booted: its worker may join."""
        vm = self.books.state.fleet.get(token)
        if vm is None or vm.launched_ms is None:
            return
        if vm.state not in (InstanceState.STARTING, InstanceState.NOTICED):
            return
        self._ready_ms[token] = self.books.now_ms
        self.books.add(InstanceReady(self.books.now_ms, token))
        boot_ms = self.books.now_ms - vm.launched_ms
        self.books.add(CostMeasured(self.books.now_ms, "boot_ms", boot_ms))

    def told(self, token: str, gone_ms: int) -> None:
        """A VM was given notice."""
        self.books.add(NoticeReceived(self.books.now_ms, token, gone_ms))
        if token in self.group.members:
            self.want_save(gone_ms)

    def lose(self, token: str, pool: Pool, ending: Ending) -> None:
        """A VM is gone without our doing; its group stands still until that is noticed."""
        now = self.books.now_ms
        self.world.drop(token, pool)
        self.boots.pop(token, None)
        self._ready_ms.pop(token, None)
        vm = self.books.state.fleet.get(token)
        if vm is None:
            return
        if ending is Ending.PREEMPTED_NOTICE and vm.notice_deadline_ms is None:
            ending = Ending.PREEMPTED_SILENT
        if token in self.group.members:
            self.report()
            self.training.freeze(now)
            self.group.forming_ms = None
            if self.group.loss_seen_ms is None:
                self.group.loss_seen_ms = now + self.model.detect_ms
            self._writer_lost(token)
        self.books.add(InstanceGone(now, token, ending))

    def want_save(self, deadline_ms: int | None) -> None:
        """Save at the next step boundary, if anything is new."""
        train = self.training
        train.wanted = True
        if deadline_ms is not None:
            known = train.deadline_ms
            train.deadline_ms = deadline_ms if known is None else min(known, deadline_ms)

    def _writer_lost(self, token: str) -> None:
        save = self.training.saving
        if save is not None and (save.writer == token or not self.model.replicated):
            self.training.saving, self._final_ms = None, None
            self.books.add(
                CheckpointFailed(self.books.now_ms, save.step, f"{token} was lost while it saved")
            )

    # -- training ------------------------------------------------------------------------------

    def next_training_ms(self) -> int | None:
        """Return when training next does something: begins or ends a save, or is done."""
        train = self.training
        instants = [self._final_ms, train.save_ms(self.books.now_ms)]
        if self._final_ms is None:
            instants.append(train.finish_ms())
        if train.saving is not None:
            instants.append(train.saving.commit_ms)
        return min((t for t in instants if t is not None), default=None)

    def train(self) -> None:
        """Do what is due in training: commit, form, finish, save."""
        train, now = self.training, self.books.now_ms
        if train.saving is not None and train.saving.commit_ms <= now:
            self._commit()
        if self.group.forming_ms is not None and self.group.forming_ms <= now:
            self._formed()
        if train.total is not None and train.step_at(now) >= train.total:
            self._finish()
            return
        if train.save_ms(now) == now:
            self._begin_save()

    def skip_saves(self, until_ms: int) -> None:
        """Let the periodic saves that begin and end before an instant pass without their events.

        Only the last of them is told, so that a quiet year costs no more than its changes; all
        of them are accounted for.
        """
        train, model = self.training, self.model
        if train.wanted or not self.group.formed or self._final_ms is not None:
            return
        if self.books.state.fleet.select(*GOING):
            return  # those who go may wait for a save to be durable
        count, last = train.pass_saves(
            self.books.now_ms,
            until_ms,
            stall_ms=model.stall_ms,
            persist_ms=model.persist_ms,
            hold_ms=model.stall_ms + model.slowdown * model.persist_ms,
        )
        if last is None:
            return
        self.books.now_ms = max(self.books.now_ms, last.begun_ms)
        stalls = (count - 1) * model.stall_ms
        self.books.account.quiet_saves(count - 1, at_ms=self.books.now_ms, stall_ms=stalls)
        self.report()
        self.books.now_ms = last.commit_ms
        self._tell_commit(last)

    def _start_save(self, at_ms: int) -> None:
        train, model = self.training, self.model
        save = train.begin_save(
            at_ms, self.group.members[0], stall_ms=model.stall_ms, persist_ms=model.persist_ms
        )
        if save is not None:
            train.hold(at_ms, model.stall_ms + model.slowdown * model.persist_ms)

    def _begin_save(self) -> None:
        self.report()  # the stall comes after this step, and counts from there
        self._start_save(self.books.now_ms)
        save = self.training.saving
        if save is not None and save.commit_ms <= self.books.now_ms:
            self._commit()

    def _commit(self) -> None:
        save = self.training.saving
        if save is not None:
            train = self.training
            train.committed()
            self._tell_commit(save)
            self.done = self.done or (train.total is not None and train.safe >= train.total)
            self.books.changes += 1  # those who wait for it to hand over may go

    def _tell_commit(self, save: Save) -> None:
        self.report()
        now = self.books.now_ms
        margin = None if save.deadline_ms is None else save.deadline_ms - now
        self.books.add(
            CheckpointCommitted(
                at_ms=now,
                step=save.step,
                begun_ms=save.begun_ms,
                stall_ms=save.stall_ms,
                persist_ms=save.persist_ms,
                size_bytes=self.model.size_bytes,
                emergency=margin is not None,
                margin_ms=margin,
            )
        )

    def _finish(self) -> None:
        """The last step is done: make it durable, then end."""
        train = self.training
        if train.running:
            self.report()
            train.freeze(self.books.now_ms)
        if train.safe >= train.step:
            self.done = True
        elif train.saving is None:
            writer = self.group.members[0] if self.group.members else ""
            model = self.model
            train.begin_save(
                self.books.now_ms, writer, stall_ms=model.stall_ms, persist_ms=model.persist_ms
            )
        if train.saving is not None:
            self._final_ms = train.saving.commit_ms

    def report(self) -> None:
        """Say how far training is, if it has moved."""
        step = self.training.step_at(self.books.now_ms)
        if step > self._reported and self.group.formed:
            self._reported = step
            self.fruitless = 0
            self.books.add(StepsDone(self.books.now_ms, step, max(1, round(self.training.pace_ms))))

    # -- the group -----------------------------------------------------------------------------

    def next_group_ms(self) -> int | None:
        """Return when the group is to be looked at next."""
        if self._looked_at != self.books.changes:
            return self.books.now_ms + 1
        return self._look_ms

    def _group_ms(self) -> int | None:
        group = self.group
        instants = [group.forming_ms, group.loss_seen_ms]
        waiting = [self._ready_ms[t] for t in self._joiners()]
        if waiting and (group.formed or not group.members) and group.loss_seen_ms is None:
            instants.append(min(waiting) + self._batch_ms())
        if group.formed:
            noticed = self.books.state.fleet.select(InstanceState.NOTICED)
            leaves = [self._leave_ms(vm) for vm in noticed if vm.token in group.members]
            instants += [t for t in leaves if t > self.books.now_ms]
        found = [t for t in instants if t is not None]
        return max(min(found), self.books.now_ms + 1) if found else None

    def _leave_ms(self, vm: Instance) -> int:
        state = self.books.state
        margin = self.model.leave_margin_ms + state.fleet_cost.reform_ms
        margin += state.progress.step_ms
        return (vm.notice_deadline_ms or 0) - margin

    def _leaving(self, token: str) -> bool:
        vm = self.books.state.fleet.get(token)
        if vm is None:
            return True
        if vm.state is InstanceState.DRAINING:
            return True
        if vm.notice_deadline_ms is None:
            return False
        return token not in self.group.members or self._leave_ms(vm) <= self.books.now_ms

    def _joiners(self) -> list[str]:
        """Return the ready VMs that wait to join, oldest first."""
        inside = {*self.group.members, *self.kept_out}
        ready = self.books.state.fleet.select(InstanceState.READY)
        return [vm.token for vm in ready if vm.token not in inside]

    def lead(self) -> None:
        """Change the group where it is due, by the rules of the live controller."""
        now = self.books.now_ms
        if self._looked_at == self.books.changes and (self._look_ms is None or now < self._look_ms):
            return
        if not self.done:
            self._change()
        self._looked_at = self.books.changes
        self._look_ms = self._group_ms()

    def _change(self) -> None:
        group, now = self.group, self.books.now_ms
        if group.loss_seen_ms is not None:
            if now >= group.loss_seen_ms:
                self._recover()
            return
        if self._final_ms is not None and self.training.saving is not None:
            return  # nobody goes before the last checkpoint is durable
        here = [t for t in group.members if self.books.state.fleet.get(t) is not None]
        stay = [t for t in here if not self._leaving(t)]
        keep = set(stay)
        going = [t for t in here if t not in keep]
        join = self._may_join()
        if going and stay and group.formed:
            self._regroup([*stay, *self._joiners()], going, planned=True)
        elif join:  # leavers that alone hold the state stay until the joiners have it
            self._regroup([*(stay or going), *join], [], planned=bool(stay or going))
        elif going and not stay and group.formed and not self._joiners():
            self._hand_over(going)
        self._release_drained()

    def _may_join(self) -> list[str]:
        if self.group.forming_ms is not None:
            return []
        join = self._joiners()
        if join and self.books.now_ms - min(self._ready_ms[t] for t in join) >= self._batch_ms():
            return join
        return []

    def _batch_ms(self) -> int:
        """Return how long the joiners wait for others, as in the live controller."""
        group = len(self.group.members)
        wave = wave_ms(self.books.state.fleet, self._joiners(), members=group)
        return max(self.model.batch_ms, wave)

    def _recover(self) -> None:
        """A loss was noticed: the survivors re-form at once, with whoever waits to join."""
        group = self.group
        group.loss_seen_ms = None
        self.books.add(GroupBroken(self.books.now_ms, group.number, "a member was lost"))
        here = [t for t in group.members if self.books.state.fleet.get(t) is not None]
        stay = [t for t in here if not self._leaving(t)] or here
        group.live = group.live and bool(here) and self.model.replicated
        group.members = ()
        members = [*stay, *(t for t in self._joiners() if t not in stay)]
        if members:
            self._regroup(members, [], planned=False)
        self._release_drained()

    def _regroup(self, members: list[str], left: list[str], *, planned: bool) -> None:
        """Form the next generation over `members`; a planned change waits for the step's end."""
        group, train, model = self.group, self.training, self.model
        begin = (
            train.boundary_ms(self.books.now_ms) if train.running and planned else self.books.now_ms
        )
        if group.members and group.formed:
            self.report()
        done = train.step_at(begin)
        train.freeze(begin)
        reform = self.dice.spread(model.pause_ms(len(members)))
        group.restore_ms, group.lost_steps, self._final_ms = 0, 0, None
        if not group.live:
            group.lost_steps = max(0, max(done, self._reported) - train.safe)
            if train.safe:
                group.restore_ms = self.dice.spread(model.restore_ms)
            train.loaded(train.safe)
        pace = step_ms(self.job, self._worth(members))
        group.number += 1
        group.members = tuple(members)
        group.pause_ms = reform
        group.forming_ms = begin + reform + group.restore_ms + max(1, round(pace))
        train.pace_ms = pace
        for token in left:
            vm = self.books.state.fleet.get(token)
            if vm is not None and vm.state is InstanceState.DRAINING:
                self.release(vm)

    def _formed(self) -> None:
        group, train, now = self.group, self.training, self.books.now_ms
        first = train.step
        group.forming_ms, group.live = None, True
        if group.restore_ms:
            self.books.add(RestoreDone(now, first, group.restore_ms))
        self.books.add(GroupFormed(now, group.number, group.members, first, group.lost_steps))
        self.books.add(CostMeasured(now, "reform_ms", group.pause_ms))
        self._reported = first
        train.start(now, first, train.pace_ms)
        train.step += train.total is None or first < train.total
        self._last_save_asked = False
        self.fruitless = 0

    def _worth(self, members: list[str]) -> float:
        fleet = self.books.state.fleet
        return sum(vm.speed for t in members if (vm := fleet.get(t)) is not None)

    def _hand_over(self, last: list[str]) -> None:
        """All members leave and nobody takes over: save, then dissolve."""
        train = self.training
        if train.running and train.step_at(self.books.now_ms) > train.safe:
            if train.saving is None and not self._last_save_asked:
                self._last_save_asked = True
                self.want_save(self._deadline(last))
                if train.save_ms(self.books.now_ms) == self.books.now_ms:
                    self._begin_save()
            if train.saving is not None or train.wanted:
                return
        self.report()
        train.freeze(self.books.now_ms)
        if self.group.formed:
            self.books.add(
                GroupBroken(self.books.now_ms, self.group.number, "nobody is left to go on")
            )
        self.group.members, self.group.forming_ms, self.group.live = (), None, False

    def _deadline(self, tokens: list[str]) -> int | None:
        found = [self.books.state.fleet.get(t) for t in tokens]
        times = [vm.notice_deadline_ms for vm in found if vm is not None]
        return min((t for t in times if t is not None), default=None)

    def _release_drained(self) -> None:
        for vm in self.books.state.fleet.select(InstanceState.DRAINING):
            if vm.token not in self.group.members:
                self.release(vm)

    def release(self, vm: Instance) -> None:
        """End a VM of our own will."""
        self.world.drop(vm.token, vm.pool)
        self.boots.pop(vm.token, None)
        self._ready_ms.pop(vm.token, None)
        self.books.add(InstanceGone(self.books.now_ms, vm.token, Ending.RELEASED))
