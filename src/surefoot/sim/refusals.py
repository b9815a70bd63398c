"""Which pools a simulated run leaves alone after a refusal, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.core.market import Capacity, Pool

Key = tuple[Pool, Capacity]


@dataclass(slots=True)
class Refusals:
    """Refusals in a row by (pool, capacity); each doubles the pause, a grant ends it."""

    first_ms: int
    limit_ms: int
    pauses: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """(refusals in a row, until when)."""

    def refused(self, key: Key, at_ms: int) -> None:
        """Count a refusal; several within one pause count once."""
        count, until = self.pauses.get(key, (0, 0))
        if until > at_ms:
            return
        wait = min(self.first_ms * 2 ** min(count, 20), self.limit_ms)
        self.pauses[key] = (count + 1, at_ms + wait)

    def granted(self, key: Key) -> None:
        """Forget the refusals: the pool gives again."""
        self.pauses.pop(key, None)

    def barred(self, key: Key, at_ms: int) -> bool:
        """Return whether nothing is asked of the pool now."""
        pause = self.pauses.get(key)
        return pause is not None and pause[1] > at_ms

    def spot(self, at_ms: int) -> Mapping[Pool, int]:
        """Return the spot pools to leave alone now, with the instant until which."""
        return {
            pool: until
            for (pool, capacity), (_, until) in self.pauses.items()
            if capacity is Capacity.SPOT and until > at_ms
        }
