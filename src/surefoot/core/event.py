"""Facts, in the past tense, and how each changes the state of a run: `apply(state, event)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from surefoot.core.fleet import (
    CheckpointCost,
    Ending,
    Fleet,
    FleetCost,
    Instance,
    InstanceState,
    Progress,
)
from surefoot.core.market import Capacity, Market, Offering, Pool
from surefoot.core.plan import Decision, Memory


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run began, or a controller took it over again (`resumed`)."""

    at_ms: int
    run: str
    resumed: bool = False
    step: int = 0
    """Newest durable step found when it began."""


@dataclass(frozen=True, slots=True)
class OfferingsSeen:
    """The provider told prices (and perhaps availability) of some pools."""

    at_ms: int
    offerings: tuple[Offering, ...]


@dataclass(frozen=True, slots=True)
class Decided:
    """The core decided; recorded before anything is acted on."""

    at_ms: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class InstanceRequested:
    """We intend to launch one VM; `token` is the idempotency token. Written before the call."""

    at_ms: int
    token: str
    pool: Pool
    capacity: Capacity
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class InstanceLaunched:
    """The provider accepted the launch; billing begins."""

    at_ms: int
    token: str
    instance_id: str


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """The provider refused. `kind` is an error class name of `surefoot.errors`."""

    at_ms: int
    token: str
    kind: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """The VM's worker can join the group."""

    at_ms: int
    token: str


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    """The provider will take the VM at `deadline_ms` (or at any moment, if that has passed)."""

    at_ms: int
    token: str
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """We let the VM go; written before anything is asked of it."""

    at_ms: int
    token: str


@dataclass(frozen=True, slots=True)
class InstanceGone:
    """The VM is gone; billing ends at `at_ms` (when it happened, if known, else when seen)."""

    at_ms: int
    token: str
    ending: Ending


@dataclass(frozen=True, slots=True)
class GroupFormed:
    """The members trained their first step together as `generation`, having begun at `step`."""

    at_ms: int
    generation: int
    members: tuple[str, ...]
    step: int
    lost_steps: int = 0
    """Steps that had been computed beyond `step` and are thrown away."""


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """Training paused: a member was lost, or membership is about to change."""

    at_ms: int
    generation: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The user's code failed on a healthy VM: no preemption. `tail`: its last lines.

    `setup`: it never came as far as to be ready.
    """

    at_ms: int
    token: str
    code: int
    tail: str = ""
    setup: bool = False


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Training reached `step`. `step_ms` is the recent time per step; loss where reported."""

    at_ms: int
    step: int
    step_ms: int
    loss: float | None = None
    tokens: int = 0
    """Tokens (or samples) per step, for display."""


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint of `step` became durable; `begun_ms` is when its snapshot was taken."""

    at_ms: int
    step: int
    begun_ms: int
    stall_ms: int
    persist_ms: int
    size_bytes: int = 0
    emergency: bool = False
    margin_ms: int | None = None
    """For an emergency save: time left before the deadline."""


GIVEN_OVER = "given over"
"""How the message of a void save begins whose worker had left the saving to a newer group."""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A save was void; the previous checkpoint stands."""

    at_ms: int
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class RestoreDone:
    """State was loaded from a checkpoint of `step` (a whole group was lost, or a resume)."""

    at_ms: int
    step: int
    restore_ms: int


@dataclass(frozen=True, slots=True)
class CostMeasured:
    """A measured cost of changing the fleet: `name` is a field of FleetCost."""

    at_ms: int
    name: str
    value_ms: int


@dataclass(frozen=True, slots=True)
class MetricSeen:
    """A figure of the user's training, e.g. `val_loss`, for reports only."""

    at_ms: int
    name: str
    value: float
    step: int = 0


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over: `outcome` is done, stopped, failed or refused."""

    at_ms: int
    outcome: str
    message: str = ""


Event = (
    RunStarted
    | OfferingsSeen
    | Decided
    | InstanceRequested
    | InstanceLaunched
    | LaunchFailed
    | InstanceReady
    | NoticeReceived
    | DrainStarted
    | InstanceGone
    | GroupFormed
    | GroupBroken
    | WorkerFailed
    | StepsDone
    | CheckpointCommitted
    | CheckpointFailed
    | RestoreDone
    | CostMeasured
    | MetricSeen
    | RunEnded
)


@dataclass(frozen=True, slots=True)
class State:
    """Everything about a run that events determine. Start from `State()`."""

    run: str = ""
    now_ms: int = 0
    market: Market = Market(0)
    fleet: Fleet = Fleet()
    progress: Progress = Progress()
    save_cost: CheckpointCost = CheckpointCost()
    fleet_cost: FleetCost = FleetCost()
    notices: tuple[int, int] = (0, 0)
    """(preemptions whose emergency save was durable in time, all preemptions)."""
    memory: Memory = field(default_factory=dict)
    outcome: str | None = None


def apply(state: State, event: Event) -> State:
    """Return the state after `event`. Pure; events about unknown or gone VMs change nothing."""
    now_ms = max(state.now_ms, event.at_ms)
    if isinstance(event, TRAINING):  # by far the most, so their state is made anew only once
        progress, cost = _apply_training(state, event)
        return _told(state, now_ms, progress, cost, state.memory)
    if isinstance(event, Decided):
        memory = event.decision.plan.memory
        return _told(state, now_ms, state.progress, state.save_cost, memory)
    if now_ms != state.now_ms:
        state = _told(state, now_ms, state.progress, state.save_cost, state.memory)
    match event:
        case RunStarted():
            progress = replace(state.progress, members=0)
            if event.step:
                progress = replace(progress, steps_done=event.step, steps_safe=event.step)
            return replace(state, run=event.run, outcome=None, progress=progress)
        case OfferingsSeen():
            market = state.market.updated(event.offerings, at_ms=event.at_ms)
            return _held(state, market, state.fleet)
        case InstanceRequested():
            return _with(state, _requested(event))
        case (
            InstanceLaunched()
            | LaunchFailed()
            | InstanceReady()
            | NoticeReceived()
            | DrainStarted()
            | InstanceGone()
        ):
            return _apply_instance(state, event)
        case CostMeasured():
            return replace(state, fleet_cost=_smoothed(state.fleet_cost, event))
        case MetricSeen() | WorkerFailed():
            return state
        case RunEnded():
            return replace(state, outcome=event.outcome)
        case _:
            assert_never(event)


def _told(
    s: State, now_ms: int, progress: Progress, save_cost: CheckpointCost, memory: Memory
) -> State:
    """Return the state with these parts, in half of the time that `replace` takes."""
    rest = (save_cost, s.fleet_cost, s.notices, memory, s.outcome)
    return State(s.run, now_ms, s.market, s.fleet, progress, *rest)


def _held(s: State, market: Market, fleet: Fleet) -> State:
    """Return the state with this market and fleet, as fast as `_told`."""
    rest = (s.progress, s.save_cost, s.fleet_cost, s.notices, s.memory, s.outcome)
    return State(s.run, s.now_ms, market, fleet, *rest)


def _requested(event: InstanceRequested) -> Instance:
    return Instance(
        token=event.token,
        pool=event.pool,
        capacity=event.capacity,
        state=InstanceState.REQUESTED,
        requested_ms=event.at_ms,
        speed=event.speed,
    )


def _with(state: State, instance: Instance) -> State:
    return _held(state, state.market, state.fleet.with_instance(instance))


InstanceEvent = (
    InstanceLaunched | LaunchFailed | InstanceReady | NoticeReceived | DrainStarted | InstanceGone
)


def _apply_instance(state: State, event: InstanceEvent) -> State:
    vm = state.fleet.get(event.token)
    if vm is None:
        return state
    match event:
        case InstanceLaunched():
            if vm.state is not InstanceState.REQUESTED:
                return state
            vm = replace(
                vm.moved(InstanceState.STARTING),
                instance_id=event.instance_id,
                launched_ms=event.at_ms,
            )
            if vm.notice_deadline_ms is not None:  # warned before we knew that it exists
                vm = replace(vm.moved(InstanceState.NOTICED), noticed_ms=event.at_ms)
        case LaunchFailed():
            vm = replace(vm, state=InstanceState.GONE, ending=Ending.LAUNCH_FAILED)
        case InstanceReady():
            if vm.state is not InstanceState.STARTING:
                return state
            vm = replace(vm.moved(InstanceState.READY), ready_ms=event.at_ms)
        case NoticeReceived():
            if vm.state in (InstanceState.NOTICED, InstanceState.DRAINING, InstanceState.REQUESTED):
                return _with(state, replace(vm, notice_deadline_ms=event.deadline_ms))
            vm = replace(
                vm.moved(InstanceState.NOTICED),
                noticed_ms=event.at_ms,
                notice_deadline_ms=event.deadline_ms,
            )
        case DrainStarted():
            if vm.state in (InstanceState.DRAINING, InstanceState.REQUESTED):
                return state
            vm = vm.moved(InstanceState.DRAINING)
        case InstanceGone():
            state = _count_preemption(state, vm, event)
            vm = replace(vm, state=InstanceState.GONE, gone_ms=event.at_ms, ending=event.ending)
        case _:
            assert_never(event)
    return _with(state, vm)


def _count_preemption(state: State, vm: Instance, event: InstanceGone) -> State:
    """Count a preemption, and whether it was harmless: a save was begun after the notice and
    durable before the end. A VM that never trained had nothing to save."""
    if not event.ending.is_preemption:
        return state
    saved, total = state.notices
    if event.ending is Ending.PREEMPTED_NOTICE:
        since = vm.noticed_ms if vm.noticed_ms is not None else event.at_ms
        saved += vm.ready_ms is None or state.progress.last_save_ms >= since
    return replace(state, notices=(saved, total + 1))


TrainingEvent = (
    GroupFormed | GroupBroken | StepsDone | CheckpointCommitted | CheckpointFailed | RestoreDone
)


TRAINING = (
    StepsDone,
    CheckpointCommitted,
    GroupFormed,
    GroupBroken,
    CheckpointFailed,
    RestoreDone,
)


def _apply_training(state: State, event: TrainingEvent) -> tuple[Progress, CheckpointCost]:
    progress, cost = state.progress, state.save_cost
    match event:
        case GroupFormed():
            progress = replace(
                progress,
                members=len(event.members),
                generation=event.generation,
                steps_done=event.step,
                steps_lost=progress.steps_lost + event.lost_steps,
            )
        case GroupBroken():
            progress = replace(progress, members=0)
        case StepsDone():
            p = progress
            rest = (p.members, p.generation, p.last_save_ms)
            progress = Progress(event.step, p.steps_safe, p.steps_lost, event.step_ms, *rest)
        case CheckpointCommitted():
            progress = replace(
                progress,
                steps_safe=max(progress.steps_safe, event.step),
                last_save_ms=max(progress.last_save_ms, event.begun_ms),
            )
            cost = _learned(cost, event)
        case CheckpointFailed():
            pass
        case RestoreDone():
            cost = replace(cost, restore_ms=event.restore_ms)
        case _:
            assert_never(event)
    return progress, cost


NEWS = 0.25
"""Weight of a new measurement of a save: the last dozen count, older ones fade."""


def _learned(cost: CheckpointCost, event: CheckpointCommitted) -> CheckpointCost:
    """Take a measured save in: the first replaces the prior, later ones are blended in.

    One outlier moves the estimate by at most `NEWS` of four times itself, so a single stalled
    disk does not stretch the interval, and a lasting change is followed within a dozen saves.
    """
    return replace(
        cost,
        stall_ms=_blended(cost.stall_ms, event.stall_ms, cost.saves),
        persist_ms=_blended(cost.persist_ms, event.persist_ms, cost.saves),
        saves=cost.saves + 1,
        size_bytes=event.size_bytes or cost.size_bytes,
    )


def _blended(old_ms: int, new_ms: int, seen: int) -> int:
    if not seen:
        return new_ms
    bounded = min(max(new_ms, old_ms // 4), 4 * old_ms + 1)
    return round(old_ms + NEWS * (bounded - old_ms))


def _smoothed(cost: FleetCost, event: CostMeasured) -> FleetCost:
    """Blend a new measurement in with weight one half, so that one outlier fades quickly."""
    values: Mapping[str, int] = {
        "boot_ms": cost.boot_ms,
        "reform_ms": cost.reform_ms,
        "detect_ms": cost.detect_ms,
    }
    if event.name not in values:
        return cost
    blended = (values[event.name] + event.value_ms + 1) // 2
    return FleetCost(**{**values, event.name: blended})
