"""What a policy may ask for: actions, a plan with its reason, and the decision as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.core.market import Capacity, Pool


@dataclass(frozen=True, slots=True)
class Launch:
    """Ask for `count` VMs of one pool and capacity."""

    pool: Pool
    capacity: Capacity
    count: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Let one VM hand over its work and leave at the next step boundary, then end it."""

    token: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """End one VM at once."""

    token: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save now (at the next step boundary)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Re-form the training group over exactly these VMs (tokens)."""

    members: tuple[str, ...]


Action = Launch | Drain | Terminate | Checkpoint | Resize

Memory = Mapping[str, float]
"""What a policy remembers between decisions: flat, JSON-able, journaled in the plan."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions now, why, and when to think again even if nothing happens.

    `target` says the wanted number of VMs by (pool, capacity) after all actions; for display
    and for tests of stability, not for acting.
    """

    actions: tuple[Action, ...]
    reason: str
    revisit_at_ms: int | None = None
    memory: Memory = field(default_factory=dict)
    target: Mapping[tuple[Pool, Capacity], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IntervalChoice:
    """The chosen work between checkpoints, and the figures it follows from."""

    interval_ms: int
    reason: str
    hazard_per_h: float
    """Rate of pool events that hit the group, per hour (losses within 3 min are one)."""
    notice_share: float
    cost_ms: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything decided at one instant: plan and interval. This is what the journal keeps."""

    at_ms: int
    plan: Plan
    interval: IntervalChoice
    policy: str
    forecaster: str
