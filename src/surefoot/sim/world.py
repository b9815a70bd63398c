"""The simulated market: the VMs that it lets us hold, whom it warns and whom it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.core.market import Capacity, Pool
from surefoot.core.replay import Departure, Replay


@dataclass(slots=True)
class World:
    """A replayed trace with our VMs in it; departures are worked out when the holding changes."""

    replay: Replay
    end_ms: int
    held: dict[Pool, dict[str, int]] = field(default_factory=dict)
    """Spot VMs by pool: token -> when launched."""
    doomed: dict[str, Departure] = field(default_factory=dict)
    """Those that were told."""
    failing: dict[str, int] = field(default_factory=dict)
    """VMs whose hardware will fail: token -> when."""
    left: dict[Pool, list[Departure]] = field(default_factory=dict)
    """Announced reclaims of VMs that have left before their end: nobody is taken in their stead."""
    _coming: dict[Pool, list[Departure]] = field(default_factory=dict)

    def launch(self, token: str, pool: Pool, capacity: Capacity, at_ms: int) -> bool:
        """Return whether the launch is granted; the VM is then held."""
        mine = self.held.setdefault(pool, {})
        if not self.replay.grants(pool, capacity, at_ms, taken=len(mine)):
            return False
        if capacity is Capacity.SPOT:
            mine[token] = at_ms
            self._coming.pop(pool, None)
        return True

    def drop(self, token: str, pool: Pool) -> None:
        """Forget a VM that is gone; if it went early after its notice, its reclaim is filled."""
        self.failing.pop(token, None)
        doom = self.doomed.pop(token, None)
        if doom is not None and doom.reclaimed:
            self.left.setdefault(pool, []).append(doom)
        if self.held.get(pool, {}).pop(token, None) is not None:
            self._coming.pop(pool, None)

    def tell(self, departure: Departure) -> None:
        """Note that a VM was told: its fate stands."""
        self.doomed[departure.token] = departure

    def next_ms(self, now_ms: int) -> int | None:
        """Return the next instant at which the market tells or takes a VM."""
        first: int | None = min(self.failing.values(), default=None)
        for pool, mine in self.held.items():
            if not mine:
                continue
            for departure in self._departures(pool, now_ms):
                at = departure.gone_ms
                if departure.notice_ms is not None and departure.token not in self.doomed:
                    at = departure.notice_ms
                if first is None or at < first:
                    first = at
        return first

    def due(self, now_ms: int) -> tuple[list[tuple[Pool, Departure]], list[tuple[Pool, Departure]]]:
        """Return (to be told, to be taken) up to now, in order of pool and token."""
        told, taken = [], []
        for pool in sorted(pool for pool, mine in self.held.items() if mine):
            for departure in self._departures(pool, now_ms):
                if departure.gone_ms <= now_ms:
                    taken.append((pool, departure))
                elif (
                    departure.notice_ms is not None
                    and departure.notice_ms <= now_ms
                    and departure.token not in self.doomed
                ):
                    told.append((pool, departure))
        return told, taken

    def _departures(self, pool: Pool, now_ms: int) -> list[Departure]:
        known = self._coming.get(pool)
        if known is None:
            mine = self.held[pool]
            doomed = [self.doomed[t] for t in mine if t in self.doomed]
            if pool in self.left:
                self.left[pool] = [d for d in self.left[pool] if d.gone_ms > now_ms]
                doomed += self.left[pool]
            held = list(mine.items())
            known = self.replay.departures(pool, held, now_ms, self.end_ms, doomed=doomed)
            self._coming[pool] = known
        return known
