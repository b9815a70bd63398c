"""A trace replayed in real time: what time it is in the trace, and which VMs are due to go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.replay import Departure, Replay
from surefoot.core.trace import Trace
from surefoot.providers.local.records import VmRecord
from surefoot.providers.notice import now_ms

HORIZON_MS = 3_600_000
"""How far departures are looked for, beyond the longest notice; the market wakes up that often."""


@dataclass(frozen=True, slots=True)
class Due:
    """What the market does at one instant: tell these VMs, take those, look again at `wake_ms`.

    Tokens name the VMs; `wake_ms` is an instant of the trace.
    """

    told: tuple[Departure, ...]
    taken: tuple[Departure, ...]
    wake_ms: int


class ReplayedMarket:
    """The trace's market, `elapsed_ms` after its start; time stands still until `start`."""

    def __init__(self, trace: Trace, *, elapsed_ms: int = 0) -> None:
        self.trace = trace
        self._replay = Replay(trace)
        self._elapsed_ms = elapsed_ms
        self._started_ns: int | None = None
        # All that was due by this instant of the trace has been handed out by `due`.
        self.settled_ms = trace.start_ms + elapsed_ms
        notices = [record.notice_ms for record in trace.pools.values()]
        for record in trace.pools.values():
            notices += [reclaim.notice_ms or 0 for reclaim in record.reclaims]
        self._horizon_ms = max(notices, default=0) + HORIZON_MS

    def start(self) -> None:
        """Let time run; starting twice is starting once."""
        if self._started_ns is None:
            self._started_ns = time.monotonic_ns()

    @property
    def elapsed_ms(self) -> int:
        """How long the market has run, all controllers of this state folder together."""
        if self._started_ns is None:
            return self._elapsed_ms
        return self._elapsed_ms + (time.monotonic_ns() - self._started_ns) // 1_000_000

    @property
    def now_ms(self) -> int:
        """The present instant of the trace."""
        return self.trace.start_ms + self.elapsed_ms

    def epoch_ms(self, trace_ms: int) -> int:
        """Return when an instant of the trace is, on the wall clock."""
        return now_ms() + trace_ms - self.now_ms

    def offerings(self) -> tuple[Offering, ...]:
        """Return what is sold now."""
        return self._replay.offerings(self.now_ms)

    def price(self, pool: Pool, capacity: Capacity) -> int | None:
        """Return micro-dollars per VM-hour now; None when not sold."""
        return self._replay.price(pool, capacity, self.now_ms)

    def grants(self, pool: Pool, capacity: Capacity, *, taken: int) -> bool:
        """Return whether a launch succeeds now, with `taken` spot VMs held in the pool."""
        return self._replay.grants(pool, capacity, self.now_ms, taken=taken)

    def boot_ms(self, pool: Pool) -> int:
        """Return how long a VM of the pool takes from launch to ready."""
        record = self._replay.record(pool)
        return record.boot_ms if record else 0

    def next_change_ms(self) -> int | None:
        """Return when the market will next change, on the wall clock; None: never again."""
        change = self._replay.next_change_ms(self.now_ms)
        return None if change is None else self.epoch_ms(change)

    def due(self, vms: Sequence[VmRecord], left: Sequence[VmRecord] = ()) -> Due:
        """Return what happens up to now to the running VMs, and settle it: asked again, it is past.

        The caller carries it out, and counts those told as doomed (`VmRecord.doom`) from then on.
        `left` are ended VMs: one that went early after its notice still fills its reclaim's quota.
        """
        now = self.now_ms
        coming = self._coming(vms, left, now)
        taken = [d for d in coming if d.gone_ms <= now]
        ahead = [d for d in coming if d.gone_ms > now]
        known = {vm.token for vm in vms if vm.doom is not None}
        told = [d for d in ahead if d.token not in known and _told_ms(d) <= now]
        known |= {d.token for d in told}
        instants = [d.gone_ms if d.token in known else _told_ms(d) for d in ahead]
        self.settled_ms = now
        return Due(tuple(told), tuple(taken), min(instants, default=now + HORIZON_MS))

    def _coming(
        self, vms: Sequence[VmRecord], left: Sequence[VmRecord], now: int
    ) -> list[Departure]:
        found: list[Departure] = []
        pools = {vm.pool for vm in vms}
        for pool in sorted(pools):
            spot = [v for v in vms if v.pool == pool and v.capacity is Capacity.SPOT]
            found += self._replay.departures(
                pool,
                [(vm.token, vm.launched_trace_ms) for vm in spot],
                self.settled_ms,
                now + self._horizon_ms,
                doomed=[v.doom for v in (*spot, *left) if v.doom is not None and v.pool == pool],
            )
        # Only faults doom VMs that are not spot, and only they are not in the replay.
        return found + [v.doom for v in vms if v.doom and v.capacity is not Capacity.SPOT]


def _told_ms(departure: Departure) -> int:
    """Return when something happens first: the notice, or the end of a VM that gets none."""
    return departure.gone_ms if departure.notice_ms is None else departure.notice_ms
