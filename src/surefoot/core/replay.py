"""How a recorded market answers when replayed: what can be held, the price, who is taken when."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.trace import PoolTrace, Reclaim, Step, Trace


class Departure(NamedTuple):
    """One VM that the market takes: told at `notice_ms` (None: silently), gone at `gone_ms`.

    `notice_ms` is the ideal instant (gone - notice, or the launch if that is later); it may lie
    in the past of whoever asks, who then gives the notice at once. `reclaimed`: by a reclaim,
    not for want of supply.
    """

    token: str
    notice_ms: int | None
    gone_ms: int
    reclaimed: bool = False


Held = tuple[str, int]
"""A held spot VM: its token and when it was launched."""


class Series:
    """A step function with its instants apart from its values, so that look-ups are bisections."""

    __slots__ = ("_below", "times", "values")

    def __init__(self, steps: Sequence[Step]) -> None:
        self.times: list[int] = [s.at_ms for s in steps]
        self.values: list[int | None] = [s.value for s in steps]
        self._below: dict[int, list[int]] = {}

    def at(self, at_ms: int) -> int | None:
        """Return the value at an instant; None before the first step and in gaps."""
        index = bisect.bisect_right(self.times, at_ms) - 1
        return self.values[index] if index >= 0 else None

    def next_change_ms(self, after_ms: int) -> int | None:
        """Return the first instant strictly later with a step."""
        index = bisect.bisect_right(self.times, after_ms)
        return self.times[index] if index < len(self.times) else None

    def unknown_ms(self, from_ms: int, to_ms: int) -> int:
        """Return how long within a span the value is unknown."""
        first = bisect.bisect_right(self.times, from_ms)
        last = bisect.bisect_left(self.times, to_ms)
        edges = [from_ms, *self.times[first:last], to_ms]
        values = [self.at(from_ms), *self.values[first:last]]
        spans = zip(edges, edges[1:], values, strict=False)
        return sum(end - begin for begin, end, value in spans if value is None)

    def first_below_ms(self, count: int, from_ms: int) -> int | None:
        """Return the first instant at or after `from_ms` at which the value is under `count`.

        A gap (None) is under nothing: nobody is known to be lost in it.
        """
        now = self.at(from_ms)
        if now is not None and now < count:
            return from_ms
        falls = self._falls(count)
        index = bisect.bisect_right(falls, from_ms)
        return falls[index] if index < len(falls) else None

    def _falls(self, count: int) -> list[int]:
        """Return (cached) the instants of all steps whose value is under `count`."""
        known = self._below.get(count)
        if known is None:
            pairs = zip(self.times, self.values, strict=True)
            known = [t for t, value in pairs if value is not None and value < count]
            self._below[count] = known
        return known


@dataclass(slots=True)
class _PoolReplay:
    record: PoolTrace
    supply: Series = field(init=False)
    spot: Series = field(init=False)
    on_demand: Series = field(init=False)
    reclaims: list[Reclaim] = field(init=False)
    reclaim_times: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.supply = Series(self.record.supply)
        self.spot = Series(self.record.spot)
        self.on_demand = Series(self.record.on_demand)
        self.reclaims = sorted(self.record.reclaims, key=lambda r: r.at_ms)
        self.reclaim_times = [r.at_ms for r in self.reclaims]

    def price(self, capacity: Capacity) -> Series | None:
        return {Capacity.SPOT: self.spot, Capacity.ON_DEMAND: self.on_demand}.get(capacity)


class Replay:
    """A trace made quick to ask. Asking changes nothing (look-ups are cached).

    After the trace's end its last values hold; a shell that must not go on there stops there.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._pools = {pool: _PoolReplay(record) for pool, record in trace.pools.items()}
        self._changes = self._all_changes(prices_only=False)
        self._price_changes = self._all_changes(prices_only=True)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of the trace, sorted."""
        return tuple(sorted(self._pools))

    def record(self, pool: Pool) -> PoolTrace | None:
        """Return the pool's record (boot time, usual notice, speed), None for a pool not in it."""
        known = self._pools.get(pool)
        return known.record if known else None

    def supply(self, pool: Pool, at_ms: int) -> int | None:
        """Return how many spot VMs can be held; None when unknown (a gap, or no such pool)."""
        known = self._pools.get(pool)
        return known.supply.at(at_ms) if known else None

    def price(self, pool: Pool, capacity: Capacity, at_ms: int) -> int | None:
        """Return micro-dollars per VM-hour; None when unknown or not sold."""
        known = self._pools.get(pool)
        series = known.price(capacity) if known else None
        return series.at(at_ms) if series else None

    def offerings(self, at_ms: int) -> tuple[Offering, ...]:
        """Return what is sold at an instant, by pool; nothing without a known price.

        `available` stays None: clouds do not say how many VMs a launch could get.
        """
        found = []
        for pool in self.pools:
            record = self._pools[pool].record
            for capacity in (Capacity.SPOT, Capacity.ON_DEMAND):
                price = self.price(pool, capacity, at_ms)
                if price is not None:
                    terms = (record.speed, record.minimum_billing_ms)
                    found.append(Offering(pool, capacity, price, *terms))
        return tuple(found)

    def grants(self, pool: Pool, capacity: Capacity, at_ms: int, *, taken: int) -> bool:
        """Return whether a launch now succeeds with `taken` spot VMs held or pending there.

        On-demand and reserved VMs are always granted in a pool that sells them.
        """
        if capacity is not Capacity.SPOT:
            return self.price(pool, capacity, at_ms) is not None
        supply = self.supply(pool, at_ms)
        return supply is not None and taken < supply

    def next_change_ms(self, after_ms: int) -> int | None:
        """Return the first instant strictly later at which supply, a price or a reclaim changes."""
        return _after(self._changes, after_ms)

    def unknown_share(self, pools: Sequence[Pool], from_ms: int, to_ms: int) -> float:
        """Return the share of pool-time in a span for which no supply is known (gaps)."""
        if to_ms <= from_ms or not pools:
            return 0.0
        blind = 0
        for pool in pools:
            known = self._pools.get(pool)
            blind += known.supply.unknown_ms(from_ms, to_ms) if known else to_ms - from_ms
        return blind / (len(pools) * (to_ms - from_ms))

    def next_price_ms(self, after_ms: int) -> int | None:
        """Return the first instant strictly later at which some price has a step."""
        return _after(self._price_changes, after_ms)

    def departures(
        self,
        pool: Pool,
        held: Sequence[Held],
        from_ms: int,
        to_ms: int,
        *,
        doomed: Sequence[Departure] = (),
    ) -> list[Departure]:
        """Return who of `held` is taken in [from_ms, to_ms] if nobody joins or leaves meanwhile.

        In order of time. Supply under the number held takes the youngest; a reclaim strictly
        after `from_ms` takes the oldest. `doomed` are departures already announced: they stand,
        are returned again when due in the span, and fill the quota of the loss that they belong
        to; one whose VM has left early (it is not in `held`) still fills its reclaim's quota.
        Equal launch instants are told apart by token.
        """
        known = self._pools.get(pool)
        if known is None:
            return []
        told = {d.token for d in doomed}
        left = sorted((vm for vm in held if vm[0] not in told), key=lambda vm: (vm[1], vm[0]))
        standing = [d for d in doomed if any(d.token == token for token, _ in held)]
        taken = [d for d in standing if from_ms <= d.gone_ms <= to_ms]
        search = _Search(known, left, standing, from_ms, from_ms, quota=doomed)
        while left:
            found = search.next_loss()
            if found is None or found > to_ms:
                break
            taken += search.take(found)
        return sorted(taken, key=lambda d: (d.gone_ms, d.token))

    def _all_changes(self, *, prices_only: bool) -> list[int]:
        instants: set[int] = set()
        for known in self._pools.values():
            instants.update(known.spot.times, known.on_demand.times)
            if not prices_only:
                instants.update(known.supply.times, known.reclaim_times)
        return sorted(instants)


def _after(instants: list[int], after_ms: int) -> int | None:
    index = bisect.bisect_right(instants, after_ms)
    return instants[index] if index < len(instants) else None


@dataclass(slots=True)
class _Search:
    """A walk through the losses of one pool: `left` are the VMs (oldest first) not yet taken."""

    known: _PoolReplay
    left: list[Held]
    doomed: Sequence[Departure]
    now_ms: int
    reclaimed_until_ms: int
    quota: Sequence[Departure]

    def standing(self, at_ms: int) -> int:
        """Return how many doomed VMs are still held right after an instant."""
        return sum(d.gone_ms > at_ms for d in self.doomed)

    def next_loss(self) -> int | None:
        """Return the next instant that may take somebody of `left`."""
        at = self.now_ms
        while True:
            held = len(self.left) + self.standing(at)
            fall = self.known.supply.first_below_ms(held, at)
            if fall is None or self.standing(fall) == self.standing(at):
                break
            at = fall  # some doomed VMs are gone by then and have made room: look again
        reclaim = _after(self.known.reclaim_times, self.reclaimed_until_ms)
        instants = [t for t in (reclaim, fall) if t is not None]
        return min(instants) if instants else None

    def take(self, at_ms: int) -> list[Departure]:
        """Remove from `left` and return those whom the reclaims and the supply at `at_ms` take."""
        gone = self._by_reclaims(at_ms)
        supply = self.known.supply.at(at_ms)
        usual = self.known.record.notice_ms
        while self.left and supply is not None and self._held(at_ms) > supply:
            gone.append(_departure(self.left.pop(), usual, at_ms, reclaimed=False))
        self.now_ms = at_ms
        self.reclaimed_until_ms = max(self.reclaimed_until_ms, at_ms)
        return gone

    def _held(self, at_ms: int) -> int:
        return len(self.left) + self.standing(at_ms)

    def _by_reclaims(self, at_ms: int) -> list[Departure]:
        times = self.known.reclaim_times
        first = bisect.bisect_right(times, max(self.reclaimed_until_ms, at_ms - 1))
        last = bisect.bisect_right(times, at_ms)
        filled = sum(d.reclaimed and d.gone_ms == at_ms for d in self.quota)
        gone: list[Departure] = []
        for reclaim in self.known.reclaims[first:last]:
            usual = self.known.record.notice_ms
            notice = usual if reclaim.notice_ms is None else reclaim.notice_ms
            wanted = max(0, reclaim.count - filled)
            filled = max(0, filled - reclaim.count)
            for _ in range(min(wanted, len(self.left))):
                gone.append(_departure(self.left.pop(0), notice, at_ms, reclaimed=True))
        return gone


def _departure(vm: Held, notice_ms: int, gone_ms: int, *, reclaimed: bool) -> Departure:
    token, launched_ms = vm
    told = max(gone_ms - notice_ms, launched_ms) if notice_ms > 0 else None
    return Departure(token, told, gone_ms, reclaimed)
