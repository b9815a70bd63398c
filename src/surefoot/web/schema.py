"""The shapes of the API's answers, from which its OpenAPI document is made."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Point = tuple[int, float | None]
"""(epoch ms, value); null where a value is unknown."""


class Error(BaseModel):
    """What went wrong, and what helps."""

    kind: str
    message: str
    hint: str = ""


class Refusal(BaseModel):
    """Every answer that is not the one asked for."""

    error: Error


class RunRow(BaseModel):
    """One run in the list."""

    run: str
    name: str
    state: str
    policy: str
    step: int
    total_steps: int | None
    steps_safe: int
    vms: int
    bill_usd: float | None
    began_ms: int | None
    last_event_ms: int | None
    reason: str = ""


class RunList(BaseModel):
    """All runs of the folder, the newest first."""

    runs: list[RunRow]


class Alert(BaseModel):
    """One line of the story."""

    at_ms: int
    text: str


class Status(BaseModel):
    """How a run stands. `state`: not begun, under way, left (no controller), or its outcome."""

    run: str
    name: str
    state: str
    reason: str
    policy: str
    num_nodes: int
    step: int
    total_steps: int | None
    steps_safe: int
    members: int
    steps_per_s: float | None
    loss: float | None
    eta_ms: int | None
    began_ms: int | None
    last_event_ms: int | None
    last_checkpoint_ms: int | None
    led_by: str | None
    unreadable_events: int
    vms: list[dict[str, Any]]
    figures: dict[str, Any]
    settings: dict[str, str]
    events: list[Alert]


class Vm(BaseModel):
    """One VM; times are epoch ms. `cost_usd` null: no price was known for all of its time."""

    vm: str
    token: str
    instance_id: str
    pool: str
    capacity: str
    state: str
    ending: str | None
    speed: float | None
    requested_ms: int
    launched_ms: int | None
    ready_ms: int | None
    noticed_ms: int | None
    deadline_ms: int | None
    gone_ms: int | None
    cost_usd: float | None
    unknown_price_s: float
    clock_error: bool
    """Its end lies before its start: the time is counted as nothing."""


class VmPage(BaseModel):
    """VMs, the newest first, and how many there are in all."""

    vms: list[Vm]
    total: int


class EventRow(BaseModel):
    """One event of the journal; `body` only where it was asked for."""

    seq: int
    at_ms: int
    kind: str
    tone: str
    text: str
    body: dict[str, Any] | None = None


class EventPage(BaseModel):
    """Events in order. Go on with `after=next_after`; `newest` is the last there is."""

    events: list[EventRow]
    next_after: int
    newest: int


class LogFile(BaseModel):
    """One log file of a VM."""

    vm: str
    instance_id: str
    kind: str
    size_bytes: int


class LogList(BaseModel):
    """The log files there are."""

    logs: list[LogFile]


class LogPage(BaseModel):
    """Whole lines of a log from `offset` on; go on with `offset=next_offset`."""

    lines: list[str]
    offset: int
    next_offset: int
    size_bytes: int


class PoolBill(BaseModel):
    """What one pool has cost."""

    pool: str
    spot_micro_usd: int
    on_demand_micro_usd: int
    unknown_price_s: float


class BillBody(BaseModel):
    """What was spent. `is_estimate`: VMs still run, or some time had no known price."""

    total_micro_usd: int
    total_usd: float
    spot_usd: float
    on_demand_usd: float
    unknown_price_s: float
    is_estimate: bool
    on_demand_usd_same_time: float | None
    on_demand_usd_same_work: float | None
    saving_same_work: float | None
    budget: str
    pools: list[PoolBill]


class ForecastBody(BaseModel):
    """What was forecast when the newest decision was made, and what happened since the start."""

    forecaster: str | None
    hazard_per_h: float | None
    notice_share: float | None
    interval_s: float | None
    interval_reason: str
    pool_events: dict[str, Any]


class Target(BaseModel):
    """How many VMs of one pool and capacity the plan wants."""

    pool: str
    capacity: str
    vms: int


class PlanBody(BaseModel):
    """The newest decision. `actions` are in words."""

    at_ms: int | None
    policy: str | None
    reason: str
    revisit_at_ms: int | None
    actions: list[str]
    targets: list[Target]


class CheckpointRow(BaseModel):
    """One save: durable, or void with the reason."""

    at_ms: int
    step: int
    is_durable: bool
    is_emergency: bool
    stall_ms: int | None
    persist_ms: int | None
    size_bytes: int | None
    margin_ms: int | None
    message: str


class CheckpointPage(BaseModel):
    """Saves, the newest first."""

    checkpoints: list[CheckpointRow]
    total: int


class PriceCourse(BaseModel):
    """US dollars per VM-hour over time."""

    pool: str
    capacity: str
    points: list[Point]


class MarkRow(BaseModel):
    """A preemption: `notice` when it was told, or `silent`."""

    at_ms: int
    kind: str
    pool: str


class Series(BaseModel):
    """Courses over time, each thinned to about the number of points asked for."""

    began_ms: int | None
    now_ms: int
    asked_vms: int
    spot: list[Point]
    on_demand: list[Point]
    training: list[Point]
    spent_usd: list[Point]
    on_demand_usd: list[Point]
    steps: list[Point]
    steps_per_s: list[Point]
    goodput: list[Point]
    interval_s: list[Point]
    hazard_per_h: list[Point]
    losses_forecast: list[Point]
    losses_seen: list[Point]
    loss: list[tuple[int, float | None]]
    """(step, loss), the last attempt of each step."""
    former_loss: list[tuple[int, float | None]]
    """(step, loss) of attempts that were thrown away."""
    marks: list[MarkRow]
    prices: list[PriceCourse]


class StopBody(BaseModel):
    """What was done about a stop."""

    run: str
    did: str
    state: str


class Health(BaseModel):
    """The server answers."""

    ok: bool
