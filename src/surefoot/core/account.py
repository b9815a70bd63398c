"""Goodput, badput and the bill, as folds over events: the same for a live run and a simulated one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from surefoot.core.event import Event


@dataclass(frozen=True, slots=True)
class Badput:
    """Wall-clock time of the run that did not become kept training, in ms, by cause."""

    lost_work: int = 0
    recovery: int = 0
    checkpoint_stall: int = 0
    restore: int = 0
    waiting: int = 0
    startup: int = 0
    reconfiguration: int = 0
    idle: int = 0

    @property
    def total_ms(self) -> int:
        """Sum over causes."""
        return (
            self.lost_work
            + self.recovery
            + self.checkpoint_stall
            + self.restore
            + self.waiting
            + self.startup
            + self.reconfiguration
            + self.idle
        )


@dataclass(frozen=True, slots=True)
class Goodput:
    """Share of the run's wall-clock time that became kept training."""

    wall_ms: int = 0
    badput: Badput = Badput()

    @property
    def share(self) -> float | None:
        """Useful share in [0, 1]; None for a run of no length."""
        if self.wall_ms <= 0:
            return None
        return max(0.0, 1.0 - self.badput.total_ms / self.wall_ms)


@dataclass(frozen=True, slots=True)
class Bill:
    """What was spent, micro-dollars; `unknown_ms` is VM time without a known price."""

    spot: int = 0
    on_demand: int = 0
    unknown_ms: int = 0

    @property
    def total(self) -> int:
        """Everything known, micro-dollars."""
        return self.spot + self.on_demand
