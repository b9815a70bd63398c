"""The messages between controller, agent and worker: one JSON object a line, typed both ways.

controller <-> agent: TCP to the controller's hub, agent connects, first line is `Hello`.
agent <-> worker: a socket in the VM (path or port in the environment), worker connects.
The agent relays what is marked `relay`; unknown kinds and unknown keys are ignored by readers,
so that an older agent can talk to a newer controller.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all messages; `kind` names the class on the wire."""

    kind: ClassVar[str] = ""


# -- agent -> controller ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First line of an agent. `secret` is its pass (or the run's secret, where there are none)."""

    kind: ClassVar[str] = "hello"
    token: str
    """The instance's own token (LaunchRequest.token)."""
    secret: str
    address: str
    """Where the VM's workers can be reached by their peers."""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """Heartbeat of an agent, a few times a second; liveness is judged by time of receipt."""

    kind: ClassVar[str] = "beat"
    worker_alive: bool = True


@dataclass(frozen=True, slots=True)
class Noticed(Message):
    """The VM was told that it will be taken in `left_ms` (0: now); relay to the worker too.

    The agent sends it to the controller and to its own worker. `source` names the watcher.
    """

    kind: ClassVar[str] = "noticed"
    left_ms: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class WorkerExited(Message):
    """The training process ended: exit code, and the tail of its output when it failed.

    `generation` is set for a command that is started anew for each one: then all VMs of the group
    report one and the same failure, and all are ready for the next start.
    """

    kind: ClassVar[str] = "worker_exited"
    code: int
    tail: str = ""
    generation: int = 0


# -- worker -> agent -> controller (relay) -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """The worker is warm (imports done, model built) and waits for a group."""

    kind: ClassVar[str] = "ready"
    boot_ms: int = 0
    newest_step: int = 0
    """Newest durable step that it can load."""
    path_generation: int = 0
    """Highest generation that has claimed its checkpoint path: only a higher one may write."""


@dataclass(frozen=True, slots=True)
class StoreUp(Message):
    """Rank 0 of `generation` serves the group's TCPStore at host:port; relay to all members."""

    kind: ClassVar[str] = "store_up"
    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Formed(Message):
    """The group of `generation` agreed to go on from `step` (sent by rank 0).

    `lost_steps`: computed beyond `step` and thrown away. `source`: live | checkpoint | fresh.
    `reform_ms`: pause of the survivors. `restore_ms`: load time where a checkpoint was loaded.
    """

    kind: ClassVar[str] = "formed"
    generation: int
    step: int
    world: int
    lost_steps: int = 0
    source: str = "live"
    reform_ms: int = 0
    restore_ms: int = 0


@dataclass(frozen=True, slots=True)
class Broken(Message):
    """A collective failed or was left on purpose; the worker waits for a newer generation."""

    kind: ClassVar[str] = "broken"
    generation: int
    step: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stepped(Message):
    """Progress, from rank 0, at most a few times a second."""

    kind: ClassVar[str] = "stepped"
    step: int
    step_ms: int
    loss: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Saved(Message):
    """A checkpoint of `step` is durable (`error` empty) or void (`error` says why)."""

    kind: ClassVar[str] = "saved"
    step: int
    stall_ms: int = 0
    persist_ms: int = 0
    size_bytes: int = 0
    emergency: bool = False
    margin_ms: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Metric(Message):
    """A figure of the user's own, e.g. val_loss."""

    kind: ClassVar[str] = "metric"
    name: str
    value: float
    step: int = 0


@dataclass(frozen=True, slots=True)
class Finished(Message):
    """The loop reached its last step and the final checkpoint is durable (sent by rank 0)."""

    kind: ClassVar[str] = "finished"
    step: int


# -- controller -> agent -> worker (relay) -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation(Message):
    """The group's new membership, in rank order. A worker not named leaves or waits.

    `tokens` and `addresses` have one entry a VM. `lost` are addresses of members that are
    believed dead: connections to them are to be cut at once. `urgent` False means: finish
    the present step, then re-form. `former` is the generation that trains until this one stands,
    0 when none does.
    """

    kind: ClassVar[str] = "generation"
    number: int
    tokens: tuple[str, ...]
    addresses: tuple[str, ...]
    lost: tuple[str, ...] = ()
    urgent: bool = False
    former: int = 0


@dataclass(frozen=True, slots=True)
class SetInterval(Message):
    """Checkpoint after this much work since the last save; takes effect at once."""

    kind: ClassVar[str] = "set_interval"
    interval_ms: int


@dataclass(frozen=True, slots=True)
class SaveNow(Message):
    """Save at the next step boundary; `left_ms` is the time to the deadline, if there is one."""

    kind: ClassVar[str] = "save_now"
    reason: str = ""
    left_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Pass(Message):
    """What the agent shall show in its next Hello, instead of what it had."""

    kind: ClassVar[str] = "pass"
    word: str = field(repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class Secrets(Message):
    """Variables of the worker that stand in no user data, file or record: over the hub only."""

    kind: ClassVar[str] = "secrets"
    values: dict[str, str]

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self.values))})"


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """Hand over: the worker is no longer needed; it exits cleanly, then the agent does."""

    kind: ClassVar[str] = "leave"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """End the run: final checkpoint at the next step boundary (`save`), then exit."""

    kind: ClassVar[str] = "stop"
    save: bool = True


KINDS: dict[str, type[Message]] = {
    cls.kind: cls
    for cls in (
        Hello,
        Beat,
        Noticed,
        WorkerExited,
        Ready,
        StoreUp,
        Formed,
        Broken,
        Stepped,
        Saved,
        Metric,
        Finished,
        Generation,
        SetInterval,
        SaveNow,
        Pass,
        Secrets,
        Leave,
        Stop,
    )
}


def encode(message: Message) -> bytes:
    """Return the message as one line of JSON, newline included. NaN and infinity become null."""
    body: dict[str, Any] = {"kind": message.kind}
    for key, value in asdict(message).items():
        bad = isinstance(value, float) and not math.isfinite(value)
        body[key] = None if bad else value
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """Return the message of one line, or None for a kind this version does not know.

    Raises ValueError for a line that is not a JSON object or lacks a required key.
    """
    body = json.loads(line)
    if not isinstance(body, dict):
        raise ValueError("a message must be a JSON object")
    cls = KINDS.get(str(body.pop("kind", "")))
    if cls is None:
        return None
    known = {f.name for f in fields(cls)}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items() if k in known}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"bad {cls.kind} message: {error}") from error
