"""Events told in words, for the live view, the status line and the report."""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from surefoot.core.event import (
    GIVEN_OVER,
    CheckpointCommitted,
    CheckpointFailed,
    CostMeasured,
    Decided,
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
    State,
    StepsDone,
    WorkerFailed,
)
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Pool
from surefoot.report.clean import clean


class Tone(Enum):
    """How a line should look."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    QUIET = "quiet"


Line = tuple[Tone, str]

CAPACITY = {Capacity.SPOT: "spot", Capacity.ON_DEMAND: "on-demand", Capacity.RESERVED: "reserved"}

ENDINGS = {
    Ending.PREEMPTED_NOTICE: (Tone.WARN, "was taken, as announced"),
    Ending.PREEMPTED_SILENT: (Tone.BAD, "was taken without warning"),
    Ending.RELEASED: (Tone.QUIET, "was let go"),
    Ending.LAUNCH_FAILED: (Tone.QUIET, "did not start"),
    Ending.BOOT_FAILED: (Tone.BAD, "did not come up"),
    Ending.USER_CODE: (Tone.BAD, "ended: the training script failed"),
    Ending.HARDWARE: (Tone.BAD, "ended: its hardware failed"),
}


def say(state: State, event: Event) -> Line | None:
    """Tell an event, given the state before it; None for what is not worth a line."""
    match event:
        case RunStarted() | RunEnded():
            return _run(event)
        case (
            InstanceLaunched()
            | LaunchFailed()
            | InstanceReady()
            | NoticeReceived()
            | DrainStarted()
            | InstanceGone()
        ):
            return _instance(state, event)
        case GroupFormed() | GroupBroken() | RestoreDone():
            return _group(state, event)
        case CheckpointCommitted() | CheckpointFailed():
            return _checkpoint(event)
        case WorkerFailed():
            return Tone.BAD, _worker_failed(state, event)
        case MetricSeen():
            return Tone.PLAIN, f"{clean(event.name)} = {event.value:.4g} at step {event.step}"
        case OfferingsSeen() | Decided() | InstanceRequested() | StepsDone() | CostMeasured():
            return None
        case _:
            assert_never(event)


def short(token: str) -> str:
    """Return the tail of a VM's token, enough to tell it apart on one screen."""
    return clean(token.rsplit("-", 1)[-1][-8:])


def place(pool: Pool) -> str:
    """Return a pool as zone and type."""
    return clean(f"{pool.zone} {pool.instance_type}")


def vm(state: State, token: str) -> str:
    """Name a VM: `spot VM 7 (east-a p3.2xlarge)`."""
    known = state.fleet.get(token)
    if known is None:
        return f"VM {short(token)}"
    return f"{CAPACITY[known.capacity]} VM {short(token)} ({place(known.pool)})"


def _run(event: RunStarted | RunEnded) -> Line:
    if isinstance(event, RunStarted):
        verb = "was taken up again" if event.resumed else "began"
        at = f" at step {event.step}" if event.step else ""
        return Tone.PLAIN, f"run {clean(event.run)} {verb}{at}"
    tone = {"done": Tone.GOOD, "stopped": Tone.WARN}.get(event.outcome, Tone.BAD)
    why = f": {clean(event.message)}" if event.message else ""
    return tone, f"run {clean(event.outcome)}{why}"


def _instance(
    state: State,
    event: InstanceLaunched
    | LaunchFailed
    | InstanceReady
    | NoticeReceived
    | DrainStarted
    | InstanceGone,
) -> Line | None:
    name = vm(state, event.token)
    match event:
        case InstanceLaunched():
            return Tone.PLAIN, f"{name} starts"
        case LaunchFailed():
            return Tone.QUIET, f"{name} refused: {clean(event.message or event.kind, limit=120)}"
        case InstanceReady():
            return Tone.GOOD, f"{name} is ready"
        case NoticeReceived():
            left = max(0, event.deadline_ms - event.at_ms) / 1000
            return Tone.WARN, f"NOTICE: {name} will be taken in {left:.1f} s"
        case DrainStarted():
            return Tone.QUIET, f"{name} hands over its work"
        case InstanceGone():
            if state.fleet.get(event.token) is None:
                return None
            tone, what = ENDINGS[event.ending]
            return tone, f"{name} {what}"
        case _:
            assert_never(event)


def _group(state: State, event: GroupFormed | GroupBroken | RestoreDone) -> Line:
    match event:
        case GroupFormed():
            lost = f", {event.lost_steps} steps lost" if event.lost_steps else ", nothing lost"
            lost = lost if state.progress.generation else ""
            count = len(event.members)
            many = f"{count} VMs train" if count != 1 else "1 VM trains"
            tone = Tone.WARN if event.lost_steps else Tone.GOOD
            return tone, f"{many} from step {event.step}{lost}"
        case GroupBroken():
            why = f": {clean(event.reason, limit=120)}" if event.reason else ""
            return Tone.WARN, f"training pauses{why}"
        case RestoreDone():
            took = event.restore_ms / 1000
            return Tone.PLAIN, f"step {event.step} loaded from its checkpoint in {took:.1f} s"
        case _:
            assert_never(event)


def _worker_failed(state: State, event: WorkerFailed) -> str:
    what = "set-up" if event.setup else "the training script"
    last = clean(event.tail.splitlines()[-1], limit=120) if event.tail else ""
    return f"{what} failed on {vm(state, event.token)}, exit code {event.code}: {last}".rstrip(": ")


def _checkpoint(event: CheckpointCommitted | CheckpointFailed) -> Line:
    if isinstance(event, CheckpointFailed):
        what = clean(event.message, limit=160)
        if what.startswith(GIVEN_OVER):  # as planned: somebody else saves the same work
            return Tone.QUIET, f"checkpoint of step {event.step} was {what}"
        return Tone.BAD, f"checkpoint of step {event.step} is void: {what}"
    took = event.persist_ms / 1000
    if not event.emergency:
        stall = event.stall_ms
        return Tone.QUIET, f"step {event.step} is safe ({took:.1f} s, {stall} ms of training)"
    left = f", {event.margin_ms / 1000:.1f} s to spare" if event.margin_ms is not None else ""
    return Tone.GOOD, f"emergency checkpoint of step {event.step} in {took:.1f} s{left}"
