"""What can be bought: pools of VMs, their capacity kinds, offerings and prices at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Capacity(Enum):
    """How a VM is bought, which decides whether it can be taken away."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"

    __hash__ = object.__hash__  # members are single, and looked up hundreds of times a decision


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """VMs that are preempted together: one instance type in one zone of one provider."""

    provider: str
    region: str
    zone: str
    instance_type: str

    def __str__(self) -> str:
        return "/".join((self.provider, self.region, self.zone, self.instance_type))

    @classmethod
    def parse(cls, text: str) -> Pool:
        """Read `provider/region/zone/type`. Raises ValueError when a part is missing."""
        parts = text.split("/")
        if len(parts) != 4 or not all(parts):
            raise ValueError(f"a pool is provider/region/zone/type, got {text!r}")
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to buy a VM now: pool, capacity kind, price, and what its hardware is worth."""

    pool: Pool
    capacity: Capacity
    price_micro_usd_h: int
    speed: float = 1.0
    """Training speed of one VM relative to the job's reference VM (1.0)."""
    minimum_billing_ms: int = 0
    available: int | None = None
    """VMs a launch could get right now, where the provider tells; None when unknown."""


@dataclass(frozen=True, slots=True)
class Market:
    """All offerings at one moment, looked up by pool and capacity."""

    at_ms: int
    offerings: tuple[Offering, ...] = ()
    _by_key: Mapping[tuple[Pool, Capacity], Offering] = field(init=False, repr=False, compare=False)
    _sorted: dict[Capacity, tuple[Offering, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        table = {(o.pool, o.capacity): o for o in self.offerings}
        if len(table) != len(self.offerings):
            raise ValueError("two offerings for one pool and capacity")
        object.__setattr__(self, "_by_key", table)

    def get(self, pool: Pool, capacity: Capacity) -> Offering | None:
        """Return the offering of `pool` with `capacity`, or None when it is not sold."""
        return self._by_key.get((pool, capacity))

    def of(self, capacity: Capacity) -> Iterator[Offering]:
        """Yield the offerings of one capacity kind, in pool order (never in list order)."""
        known = self._sorted.get(capacity)
        if known is None:
            fit = (o for o in self.offerings if o.capacity is capacity)
            known = self._sorted[capacity] = tuple(sorted(fit, key=lambda o: o.pool))
        yield from known

    def updated(self, offerings: Iterable[Offering], *, at_ms: int) -> Market:
        """Merge newer offerings into this market; pools not named keep their last price."""
        table = dict(self._by_key)
        table.update({(o.pool, o.capacity): o for o in offerings})
        return Market(at_ms, tuple(table.values()))
