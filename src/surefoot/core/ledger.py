"""What VMs have cost so far: the price paid, integrated exactly over the time each was held."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from surefoot.core.event import (
    CheckpointCommitted,
    Event,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    LaunchFailed,
    OfferingsSeen,
)
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import MS_PER_HOUR

Key = tuple[Pool, Capacity]


@dataclass(frozen=True, slots=True)
class Bill:
    """What was spent, micro-dollars; `unknown_ms` is VM time without a known price."""

    spot: int = 0
    on_demand: int = 0
    unknown_ms: int = 0
    egress: int = 0
    """State sent to VMs in other regions, by the job's price of it: an estimate."""

    @property
    def total(self) -> int:
        """Everything known, micro-dollars."""
        return self.spot + self.on_demand + self.egress


class PriceLine:
    """The price of one offering over time, with running integrals (micro-dollars/h x ms).

    None, 0 and negative prices are unknown: nothing is free.
    """

    __slots__ = ("_cost", "_prices", "_times", "_unknown")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._prices: list[int | None] = []
        self._cost: list[int] = []
        self._unknown: list[int] = []

    def change(self, at_ms: int, price: int | None) -> None:
        """Take in a price from `at_ms` on; one older than the newest counts from the newest."""
        price = price if price is not None and price > 0 else None
        if not self._times:
            self._append(at_ms, price, 0, at_ms)  # unknown until now, counted from 0
            return
        if self._prices[-1] == price:
            return
        at_ms = max(at_ms, self._times[-1])
        cost, unknown = self.integral(at_ms)
        if at_ms == self._times[-1]:
            self._prices[-1] = price
        else:
            self._append(at_ms, price, cost, unknown)

    def integral(self, at_ms: int) -> tuple[int, int]:
        """Return (price x time, ms without a price) up to an instant.

        Only differences mean anything; before the first price all time is unknown.
        """
        index = bisect.bisect_right(self._times, at_ms) - 1
        if index < 0:
            return 0, at_ms
        span = at_ms - self._times[index]
        price = self._prices[index]
        if price is None:
            return self._cost[index], self._unknown[index] + span
        return self._cost[index] + price * span, self._unknown[index]

    @property
    def first(self) -> tuple[int, int] | None:
        """Return (instant, price) of the first known price."""
        pairs = zip(self._times, self._prices, strict=True)
        return next(((t, p) for t, p in pairs if p is not None), None)

    def price_at(self, at_ms: int) -> int | None:
        """Return the price at an instant, None when unknown."""
        index = bisect.bisect_right(self._times, at_ms) - 1
        return self._prices[index] if index >= 0 else None

    def _append(self, at_ms: int, price: int | None, cost: int, unknown: int) -> None:
        self._times.append(at_ms)
        self._prices.append(price)
        self._cost.append(cost)
        self._unknown.append(unknown)


@dataclass(slots=True)
class _Account:
    """VMs of one pool and capacity: sums over ended ones, and where the running ones began."""

    minimum_ms: int = 0
    ended_cost: int = 0
    ended_unknown: int = 0
    running: dict[str, int] = field(default_factory=dict)
    begun_cost: int = 0
    """Sum of the price line's integral at the launches of the running ones."""
    begun_unknown: int = 0


class Egress:
    """Counts the states that were sent to VMs in a region where the group had no member before."""

    def __init__(self, micro_usd_gb: int) -> None:
        self.size_bytes = 0
        """Size of the newest checkpoint."""
        self._micro_usd_gb = micro_usd_gb
        self._sent_bytes = 0
        self._regions: set[tuple[str, str]] = set()

    @property
    def micro_usd(self) -> int:
        """What it has cost."""
        return round(self._micro_usd_gb * self._sent_bytes / 1e9)

    def formed(self, members: Iterable[str], keys: Mapping[str, Key]) -> None:
        """A group formed: whoever is in a region new to it was sent the state from elsewhere."""
        pools = [keys[token][0] for token in members if token in keys]
        regions = [(pool.provider, pool.region) for pool in pools]
        if self._regions:
            self._sent_bytes += self.size_bytes * sum(r not in self._regions for r in regions)
        if regions:
            self._regions = set(regions)


class Ledger:
    """An incremental bill. Feed it every event in order; ask for the bill at any instant."""

    def __init__(self, egress_micro_usd_gb: int = 0) -> None:
        self._egress = Egress(egress_micro_usd_gb)
        self._lines: dict[Key, PriceLine] = {}
        self._accounts: dict[Key, _Account] = {}
        self._used: dict[Key, _Account] = {}
        self._keys: dict[str, Key] = {}
        self._now_ms = 0
        self.speeds: dict[Pool, float] = {}
        """Speed of one VM of each pool, relative to the reference VM."""

    def add(self, event: Event) -> None:
        """Take in one event; those that cost nothing only move the clock."""
        self._now_ms = max(self._now_ms, event.at_ms)
        match event:
            case OfferingsSeen():
                self._priced(event.offerings, event.at_ms)
            case InstanceRequested():
                self._keys[event.token] = (event.pool, event.capacity)
            case InstanceLaunched():
                self._launched(event)
            case LaunchFailed():
                self._keys.pop(event.token, None)
            case InstanceGone():
                self._gone(event)
            case CheckpointCommitted():
                self._egress.size_bytes = event.size_bytes or self._egress.size_bytes
            case GroupFormed():
                self._egress.formed(event.members, self._keys)
            case _:
                pass

    def bill(self, now_ms: int | None = None) -> Bill:
        """Return what was spent up to an instant (default: the newest event), running VMs too.

        A running VM owes its minimum from the start. Rounded once per capacity.
        """
        at_ms = self._now_ms if now_ms is None else now_ms
        return _sum(((key, self._owed(key, at_ms)) for key in self._used), self._egress.micro_usd)

    def by_pool(self, now_ms: int | None = None) -> Mapping[Pool, Bill]:
        """Return the bill split by pool."""
        at_ms = self._now_ms if now_ms is None else now_ms
        split: dict[Pool, list[tuple[Key, tuple[int, int]]]] = {}
        for key in self._used:
            split.setdefault(key[0], []).append((key, self._owed(key, at_ms)))
        return {pool: _sum(rows) for pool, rows in split.items()}

    def held_cost(self, key: Key, from_ms: int, to_ms: int) -> int | None:
        """Return micro-dollars for one VM of an offering held over a span.

        The first known price stands for the time before it was seen; None when never known.
        """
        line = self._lines.get(key)
        first = line.first if line else None
        if line is None or first is None or to_ms <= from_ms:
            return None if first is None else 0
        seen_ms, price = first
        early = max(0, min(seen_ms, to_ms) - from_ms)
        begin = max(from_ms, seen_ms)
        late = line.integral(max(to_ms, begin))[0] - line.integral(begin)[0]
        return _rounded(early * price + late)

    def cost_of(self, key: Key, begun_ms: int, end_ms: int | None = None) -> tuple[int, int]:
        """Return (micro-dollars, ms without a price) of one VM held from `begun_ms` on.

        Up to `end_ms`, or to the newest event; its minimum billing included.
        """
        cost, unknown = self._span(key, begun_ms, max(begun_ms, end_ms or self._now_ms))
        return _rounded(cost), unknown

    def _priced(self, offerings: Iterable[Offering], at_ms: int) -> None:
        for offering in offerings:
            key = (offering.pool, offering.capacity)
            self._line(key).change(at_ms, offering.price_micro_usd_h)
            self._account(key).minimum_ms = max(0, offering.minimum_billing_ms)
            self.speeds[offering.pool] = offering.speed

    def _launched(self, event: InstanceLaunched) -> None:
        key = self._keys.get(event.token)
        if key is None:
            return
        account = self._account(key)
        if event.token in account.running:
            return
        account.running[event.token] = event.at_ms
        self._used[key] = account
        cost, unknown = self._line(key).integral(event.at_ms)
        account.begun_cost += cost
        account.begun_unknown += unknown

    def _gone(self, event: InstanceGone) -> None:
        key = self._keys.pop(event.token, None)
        account = self._accounts.get(key) if key is not None else None
        begun_ms = account.running.pop(event.token, None) if account else None
        if key is None or account is None or begun_ms is None:
            return
        before, blind_before = self._line(key).integral(begun_ms)
        account.begun_cost -= before
        account.begun_unknown -= blind_before
        cost, unknown = self._span(key, begun_ms, max(event.at_ms, begun_ms))
        account.ended_cost += cost
        account.ended_unknown += unknown

    def _owed(self, key: Key, at_ms: int) -> tuple[int, int]:
        account = self._accounts[key]
        cost, unknown = account.ended_cost, account.ended_unknown
        if not account.running:
            return cost, unknown
        newest = max(account.running.values())
        if newest + account.minimum_ms <= at_ms:  # nobody owes a minimum: sums are enough
            held, blind = self._line(key).integral(at_ms)
            count = len(account.running)
            cost += count * held - account.begun_cost
            return cost, unknown + count * blind - account.begun_unknown
        for begun_ms in account.running.values():
            more, blind = self._span(key, begun_ms, max(at_ms, begun_ms))
            cost += more
            unknown += blind
        return cost, unknown

    def _span(self, key: Key, begun_ms: int, end_ms: int) -> tuple[int, int]:
        """Return (price x time, ms without a price) of one VM, its minimum billing included."""
        line = self._line(key)
        before, blind_before = line.integral(begun_ms)
        after, blind_after = line.integral(end_ms)
        cost, unknown = after - before, blind_after - blind_before
        owed_ms = max(0, self._account(key).minimum_ms - (end_ms - begun_ms))
        price = line.price_at(end_ms)
        return (cost, unknown + owed_ms) if price is None else (cost + price * owed_ms, unknown)

    def _line(self, key: Key) -> PriceLine:
        return self._lines.setdefault(key, PriceLine())

    def _account(self, key: Key) -> _Account:
        return self._accounts.setdefault(key, _Account())


def _sum(rows: Iterable[tuple[Key, tuple[int, int]]], egress: int = 0) -> Bill:
    spot = on_demand = unknown = 0
    for (_, capacity), (cost, blind) in rows:
        unknown += blind
        if capacity is Capacity.SPOT:
            spot += cost
        else:
            on_demand += cost
    return Bill(_rounded(spot), _rounded(on_demand), unknown, egress)


def _rounded(cost: int) -> int:
    """Return price x time as whole micro-dollars, rounded half up."""
    return (2 * cost + MS_PER_HOUR) // (2 * MS_PER_HOUR)
