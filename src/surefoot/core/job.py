"""What the user asked for: the terms of one training job, and nothing about how it is going."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from surefoot.core.market import Capacity, Pool


class FloorKind(Enum):
    """How the throughput floor is meant."""

    INSTANT = "instant"
    AVERAGE = "average"
    """On average over `Throughput.window_ms`: the surplus of good hours pays for bad ones."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Wanted training speed, in VMs' worth of the reference VM.

    Raises ValueError unless 0 <= floor <= ceiling.
    """

    floor: float
    ceiling: float
    kind: FloorKind = FloorKind.INSTANT
    window_ms: int = 24 * 3_600_000

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= self.ceiling:
            raise ValueError(f"floor {self.floor} must be within 0 and ceiling {self.ceiling}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on money, time and fleet; None is no bound."""

    budget_micro_usd: int | None = None
    max_price_micro_usd_h: int | None = None
    """Highest price of one VM-hour."""
    deadline_ms: int | None = None
    """Instant (not duration) by which the work should be done."""
    max_vms: int | None = None
    egress_micro_usd_gb: int = 0
    """Price of sending 10^9 bytes to another region, as a state goes to a VM there."""


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """Bounds on the checkpoint interval; `fixed_ms` switches the tuning off."""

    fixed_ms: int | None = None
    min_ms: int = 1_000
    max_ms: int = 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class Work:
    """How much is to be done and how fast the reference fleet does it, as far as known.

    `total_steps` None is open-ended. `step_ms` is the prior for the time of one step with
    `num_nodes` reference VMs; the measured value replaces it.
    """

    total_steps: int | None = None
    step_ms: int = 1_000
    scaling: tuple[tuple[float, float], ...] = ()
    """Prior throughput curve: (VMs' worth, relative speed) points; empty is linear."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training job's terms. Order of `pools` carries no meaning."""

    name: str
    num_nodes: int
    pools: tuple[Pool, ...]
    throughput: Throughput
    limits: Limits = Limits()
    interval: IntervalRule = IntervalRule()
    work: Work = Work()
    policy: str = "hybrid"
    forecaster: str = "mixture"
    capacities: frozenset[Capacity] = frozenset({Capacity.SPOT, Capacity.ON_DEMAND})
    one_region: bool = True
    """A gang lives in one region at a time unless the job says otherwise."""
    on_demand_base: int = 0
    """On-demand VMs always held, before anything else."""
    labels: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        if self.num_nodes < 0:
            raise ValueError(f"num_nodes must be 0 or more, got {self.num_nodes}")
