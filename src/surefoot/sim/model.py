"""What things cost in a simulated run: boots, re-forming, saves, loads, and how far they vary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from surefoot.core.event import (
    CheckpointCommitted,
    CostMeasured,
    Event,
    GroupFormed,
    RestoreDone,
    State,
)
from surefoot.core.fleet import CheckpointCost, FleetCost


@dataclass(frozen=True, slots=True)
class CostModel:
    """Times in milliseconds. Raises ValueError, naming the field, for values under 0 or NaN.

    `boot_ms` None takes each pool's own from the trace. `replicated`: every VM holds the whole
    state (data-parallel), so survivors of a loss go on from it; otherwise (sharded) any loss
    goes back to the last checkpoint. `jitter`: relative spread of boots, re-forming and
    loads. `hardware_per_vm_h`: failures of VMs beside preemptions. `lost_notices`: share of
    notices that never arrive.
    """

    boot_ms: int | None = None
    reform_ms: int = 2_000
    reform_alone_ms: int | None = None
    """A group of one has nobody to meet: what its re-forming takes; None: as long as any."""
    detect_ms: int = 500
    stall_ms: int = 50
    persist_ms: int = 2_000
    slowdown: float = 0.0
    restore_ms: int = 5_000
    size_bytes: int = 0
    replicated: bool = True
    jitter: float = 0.05
    hardware_per_vm_h: float = 0.0
    lost_notices: float = 0.0
    batch_ms: int = 300
    """VMs that become ready within this time join together."""
    leave_margin_ms: int = 2_000
    """A VM with a notice leaves the group this long, plus the re-forming, before its end."""
    backoff_ms: int = 15_000
    """How long a pool is left alone after a refusal; doubles with each further one."""
    backoff_limit_ms: int = 600_000

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{f.name} must be a finite number, 0 or more, got {value!r}")
        if self.lost_notices > 1:
            raise ValueError(f"lost_notices must be at most 1, got {self.lost_notices!r}")

    @property
    def save_cost(self) -> CheckpointCost:
        """The costs of a save as a run would measure them."""
        return CheckpointCost(
            self.stall_ms,
            self.persist_ms,
            self.restore_ms,
            self.slowdown,
            size_bytes=self.size_bytes,
        )

    def pause_ms(self, members: int) -> int:
        """Return how long it takes to form a group of that many."""
        if members == 1 and self.reform_alone_ms is not None:
            return self.reform_alone_ms
        return self.reform_ms

    def state(self, boot_ms: int) -> State:
        """Return the state of a run that has measured these costs before."""
        return State(save_cost=self.save_cost, fleet_cost=self.fleet_cost(boot_ms))

    def fleet_cost(self, boot_ms: int) -> FleetCost:
        """The costs of changing the fleet as a run would measure them."""
        return FleetCost(boot_ms, self.reform_ms, self.detect_ms)


def measured(events: Iterable[Event], *, otherwise: CostModel) -> CostModel:
    """Return the costs that a run's journal shows: means, but for stalls and persists medians.

    What it does not show is `otherwise`'s.
    """
    found: dict[str, list[int]] = {}
    members = 0
    for event in events:
        match event:
            case GroupFormed():
                members = len(event.members)
            case CostMeasured(name="reform_ms"):
                name = "reform_alone_ms" if members == 1 else "reform_ms"
                found.setdefault(name, []).append(event.value_ms)
            case CostMeasured():
                found.setdefault(event.name, []).append(event.value_ms)
            case CheckpointCommitted():
                found.setdefault("stall_ms", []).append(event.stall_ms)
                found.setdefault("persist_ms", []).append(event.persist_ms)
            case RestoreDone():
                found.setdefault("restore_ms", []).append(event.restore_ms)
            case _:
                pass
    typical = {"stall_ms": statistics.median, "persist_ms": statistics.median}
    known = {f.name for f in fields(CostModel)}
    costs = {k: round(typical.get(k, statistics.fmean)(v)) for k, v in found.items() if k in known}
    return replace(otherwise, **costs)  # type: ignore[arg-type]


class Dice:
    """All randomness of one simulated run, from one seed."""

    def __init__(self, seed: int, model: CostModel) -> None:
        self._random = np.random.default_rng(seed)
        self._model = model

    def spread(self, value_ms: int) -> int:
        """Return a duration varied by the model's jitter, never under 0."""
        if not self._model.jitter or not value_ms:
            return value_ms
        factor = math.exp(self._model.jitter * float(self._random.standard_normal()))
        return max(1, round(value_ms * factor))

    def notice_arrives(self) -> bool:
        """Return whether one notice reaches us."""
        share = self._model.lost_notices
        return not share or float(self._random.random()) >= share

    def life_ms(self) -> int | None:
        """Return when the hardware of a VM fails, counted from its launch; None: never."""
        rate = self._model.hardware_per_vm_h
        if not rate:
            return None
        return max(1, round(float(self._random.exponential(1 / rate)) * 3_600_000))
