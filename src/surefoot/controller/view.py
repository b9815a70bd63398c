"""What a person wants to see of a live run, at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from surefoot.core.event import State
from surefoot.core.plan import Decision
from surefoot.core.wire import Stepped


class Phase(Enum):
    """Where the run is on its way to its end."""

    RUNNING = "running"
    STOPPING = "stopping"
    """The workers were asked for a final checkpoint."""
    ENDING = "ending"
    """The VMs are being ended."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class View:
    """The figures of a run now. `trouble`: what keeps it from seeing the cloud, if anything."""

    now_ms: int
    phase: Phase
    state: State
    newest: Stepped | None
    decision: Decision | None
    spent_micro_usd: int
    burn_micro_usd_h: int
    refusals: tuple[str, ...]
    """Why launches that the policy wants are not made."""
    trouble: str
    clean_up: tuple[str, ...]
    """Ids of VMs whose end has not worked yet."""
    crashes: int
    preemptions: int
