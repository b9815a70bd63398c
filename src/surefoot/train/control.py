"""The few numbers in every gradient all-reduce by which all ranks act on the same step."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Control:
    """One rank's slots before the all-reduce; the sums over all ranks after it.

    All are added: a flag that one rank raises is positive everywhere, a flag that all ranks
    raise equals the world. Values must stay exact in float32.
    """

    leave: float = 0.0
    """Ready to leave this group for the next one; it is left when all ranks are."""
    save: float = 0.0
    """Save after this step (rank 0: the interval is over)."""
    urgent: float = 0.0
    """Save after this step because a VM will be taken."""
    left_s: float = 0.0
    """Seconds to the deadline as each `urgent` rank knows it; divide by `urgent`."""
    stop: float = 0.0
    """End the run after this step; save first."""
    drop: float = 0.0
    """End the run after this step without a save."""
    loss: float = 0.0
    """Weighted loss of the step before, so that the sum is the global mean."""
    losses: float = 0.0
    """Weight behind `loss`; 1 when every rank logged one."""
    tokens: float = 0.0
    """Tokens of the step before."""

    def values(self) -> list[float]:
        """Return the slots in order."""
        return [getattr(self, f.name) for f in fields(self)]


SLOTS = len(fields(Control))
