"""What the agents say, turned into facts; and what is known of each worker beside the facts."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.controller.agents import Said
from surefoot.controller.record import Record
from surefoot.controller.settings import Settings
from surefoot.core.event import (
    CheckpointCommitted,
    CheckpointFailed,
    CostMeasured,
    Event,
    GroupBroken,
    GroupFormed,
    InstanceReady,
    MetricSeen,
    NoticeReceived,
    RestoreDone,
    StepsDone,
    WorkerFailed,
)
from surefoot.core.fleet import Instance, InstanceState
from surefoot.core.wire import (
    Broken,
    Finished,
    Formed,
    Hello,
    Metric,
    Noticed,
    Ready,
    Saved,
    Stepped,
    WorkerExited,
)

TAIL_LINES = 20


@dataclass(slots=True)
class Ears:
    """Takes in messages; keeps per VM what the group's rules need to know."""

    record: Record
    settings: Settings
    generation: int = 0
    """The newest announced generation."""
    path_generation: int = 0
    """The newest number under which the checkpoint path was claimed, as workers found it."""
    members: dict[int, tuple[str, ...]] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    """Since when a worker is warm and heard."""
    exited: set[str] = field(default_factory=set)
    """VMs whose worker has left for good."""
    told: set[str] = field(default_factory=set)
    """VMs that were sent Leave or Stop: that they go is no loss."""
    broken: dict[str, int] = field(default_factory=dict)
    """How often a member reported the newest generation as broken."""
    notices: list[str] = field(default_factory=list)
    """VMs noticed since the controller last looked."""
    newest: Stepped | None = None
    saved_ms: int = 0
    finished: int | None = None
    _failed: int = 0
    """The newest generation whose start of the command failed by itself."""
    _journaled_ms: int = 0
    _pending: StepsDone | None = None

    def take(self, said: Said, now_ms: int) -> list[Event]:
        """Return the facts in one message of a VM that is in the fleet."""
        vm = self.record.state.fleet.get(said.token)
        if vm is None:
            return []
        match said.message:
            case Hello():
                return self._hello(vm, now_ms)
            case Ready() as ready:
                return self._ready(vm, ready, now_ms)
            case Noticed() as noticed:
                return self._noticed(vm, noticed, now_ms)
            case WorkerExited() as exited:
                return self._exited(vm, exited, now_ms)
            case Stepped() as stepped:
                return self._stepped(stepped, now_ms)
            case Formed() as formed:
                return self._formed(formed, now_ms)
            case Broken() as broken:
                return self._broken(vm, broken, now_ms)
            case Saved() as saved:
                return self._saved(saved, now_ms)
            case Metric() as metric:
                return [MetricSeen(now_ms, metric.name, metric.value, metric.step)]
            case Finished() as finished:
                self.finished = finished.step
                return [*self.flush(), *self._reached(finished.step, now_ms)]
            case _:
                return []

    def forget(self, token: str) -> None:
        """Drop what is kept of a VM that is gone."""
        self.ready.pop(token, None)
        self.broken.pop(token, None)

    def announced(self, number: int, members: tuple[str, ...]) -> None:
        """Note a new generation, so that its Formed can be told from older ones."""
        self.generation = number
        self.members[number] = members
        self.broken.clear()
        for old in sorted(self.members)[:-8]:
            del self.members[old]

    def flush(self) -> list[Event]:
        """Return the progress that was held back, if any, as a fact."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        self._journaled_ms = pending.at_ms
        return [pending]

    def _reached(self, step: int, now_ms: int) -> list[Event]:
        """Return the fact that training got to `step`, where no report has said so: steps that
        were done within a second of the end are not reported one by one."""
        progress = self.record.state.progress
        known = max(progress.steps_done, self.newest.step if self.newest else 0)
        if step <= known:
            return []
        step_ms = self.newest.step_ms if self.newest else progress.step_ms
        return [StepsDone(now_ms, step, step_ms)]

    def _hello(self, vm: Instance, now_ms: int) -> list[Event]:
        """An agent that comes back after a controller's restart has a worker that is warm."""
        if vm.state not in (InstanceState.REQUESTED, InstanceState.STARTING):
            self.ready.setdefault(vm.token, now_ms)
        return []

    def _ready(self, vm: Instance, ready: Ready, now_ms: int) -> list[Event]:
        self.ready[vm.token] = now_ms
        self.exited.discard(vm.token)
        self.path_generation = max(self.path_generation, ready.path_generation)
        booting = vm.state in (InstanceState.STARTING, InstanceState.NOTICED)
        if not booting or vm.ready_ms is not None:
            return []
        facts: list[Event] = [InstanceReady(now_ms, vm.token)]
        if vm.launched_ms is not None:
            facts.append(CostMeasured(now_ms, "boot_ms", now_ms - vm.launched_ms))
        return facts

    def _noticed(self, vm: Instance, noticed: Noticed, now_ms: int) -> list[Event]:
        deadline_ms = now_ms + max(0, noticed.left_ms)
        known = vm.notice_deadline_ms
        if known is not None and abs(known - deadline_ms) < self.settings.progress_ms:
            return []  # the same notice again
        self.notices.append(vm.token)
        return [NoticeReceived(now_ms, vm.token, deadline_ms)]

    def _exited(self, vm: Instance, exited: WorkerExited, now_ms: int) -> list[Event]:
        going = (InstanceState.NOTICED, InstanceState.DRAINING)
        if vm.token in self.told or vm.state in going or exited.code == 0:
            # One that ends well keeps its seat: the others are about to end as well.
            self.exited.add(vm.token)
            self.told.add(vm.token)
            return []
        if exited.generation:
            if exited.generation == self._failed:
                return []  # another VM of the group has reported it
            self._failed, was_ready = exited.generation, True
        else:
            was_ready = self.ready.pop(vm.token, None) is not None
        setup = not was_ready and vm.state is not InstanceState.READY
        tail = "\n".join(exited.tail.splitlines()[-TAIL_LINES:])
        facts = self.flush()
        facts.append(WorkerFailed(now_ms, vm.token, exited.code, tail, setup=setup))
        formed = self.record.formed
        if formed is not None and vm.token in formed.members:
            reason = f"the training script failed on {vm.token}"
            facts.append(GroupBroken(now_ms, formed.generation, reason))
        return facts

    def _stepped(self, stepped: Stepped, now_ms: int) -> list[Event]:
        self.newest = stepped
        self._pending = StepsDone(
            now_ms, stepped.step, stepped.step_ms, stepped.loss, stepped.tokens
        )
        if now_ms - self._journaled_ms < self.settings.progress_ms:
            return []
        return self.flush()

    def _formed(self, formed: Formed, now_ms: int) -> list[Event]:
        members = self.members.get(formed.generation)
        if members is None:
            return []
        facts = self.flush()
        if formed.source == "checkpoint" and formed.restore_ms:
            facts.append(RestoreDone(now_ms, formed.step, formed.restore_ms))
        facts.append(
            GroupFormed(now_ms, formed.generation, members, formed.step, self._lost(formed))
        )
        if formed.reform_ms:
            facts.append(CostMeasured(now_ms, "reform_ms", formed.reform_ms))
        return facts

    def _lost(self, formed: Formed) -> int:
        """Return the steps thrown away: a new rank 0 cannot know how far the old one was."""
        reported = self.newest.step if self.newest is not None else 0
        return max(formed.lost_steps, reported - formed.step)

    def _broken(self, vm: Instance, broken: Broken, now_ms: int) -> list[Event]:
        if broken.generation != self.generation:
            return []
        self.broken[vm.token] = self.broken.get(vm.token, 0) + 1
        formed = self.record.formed
        if formed is None:
            return []
        return [*self.flush(), GroupBroken(now_ms, formed.generation, broken.reason)]

    def _saved(self, saved: Saved, now_ms: int) -> list[Event]:
        if saved.error:
            return [*self.flush(), CheckpointFailed(now_ms, saved.step, saved.error)]
        self.saved_ms = now_ms
        return [
            *self.flush(),
            CheckpointCommitted(
                at_ms=now_ms,
                step=saved.step,
                begun_ms=now_ms - saved.persist_ms - saved.stall_ms,
                stall_ms=saved.stall_ms,
                persist_ms=saved.persist_ms,
                size_bytes=saved.size_bytes,
                emergency=saved.emergency,
                margin_ms=saved.margin_ms,
            ),
        ]
