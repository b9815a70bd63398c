"""What the fake cloud sells: capacity and prices by pool, refusals to come, and its own record."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.core.market import Capacity, Pool
from surefoot.core.units import MS_PER_HOUR

MINIMUM_MS = 60_000
FREE_MS = 3_600_000
"""A VM that AWS takes back in its first hour costs nothing."""


@dataclass(frozen=True, slots=True)
class Sale:
    """What one pool sells. None: without limit. Prices in micro-dollars per VM-hour."""

    spot: int | None
    spot_micro_usd_h: int
    on_demand_micro_usd_h: int
    on_demand: int | None = None


@dataclass(slots=True)
class Refusal:
    """Answers of one API action that fail: the next `times`, once `after` have passed.

    `match`: text that must stand in the request. `status`: the HTTP status. `done`: the action
    is carried out all the same, only its answer is lost.
    """

    action: str
    code: str = "InternalError"
    times: int = 1
    after: int = 0
    match: str = ""
    status: int = 400
    done: bool = False

    def hits(self, action: str, text: str) -> bool:
        """Return whether this request is to be refused; counts it."""
        if self.action != action or self.match not in text or self.times <= 0:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class Held:
    """One VM in the cloud's own record; `*_ms` are epoch."""

    instance_id: str
    token: str
    run: str
    pool: Pool
    capacity: Capacity
    launched_ms: int
    request_id: str = ""
    ended_ms: int | None = None
    taken: bool = False


@dataclass(slots=True)
class Books:
    """Every VM that was ever held and every price there was: what the cloud would charge."""

    vms: dict[str, Held] = field(default_factory=dict)
    _prices: dict[tuple[Pool, Capacity], list[tuple[int, int]]] = field(default_factory=dict)

    def price(self, pool: Pool, capacity: Capacity, micro_usd_h: int, at_ms: int) -> None:
        """Note a price from an instant on."""
        self._prices.setdefault((pool, capacity), []).append((at_ms, micro_usd_h))

    def running(self, pool: Pool, capacity: Capacity) -> int:
        """Return how many VMs of a kind are held."""
        kinds = [(vm.pool, vm.capacity) for vm in self.vms.values() if vm.ended_ms is None]
        return kinds.count((pool, capacity))

    def bill(self, now_ms: int, run: str = "", *, first_hour_free: bool = False) -> int:
        """Return what the VMs (of one run) cost up to an instant, micro-dollars.

        By the millisecond, a minute at least. With `first_hour_free`, those that the cloud took
        back within an hour cost nothing, as on AWS.
        """
        chosen = [vm for vm in self.vms.values() if run in ("", vm.run)]
        paid = [vm for vm in chosen if not (first_hour_free and _is_free(vm))]
        return round(sum(self._cost(vm, now_ms) for vm in paid) / MS_PER_HOUR)

    def _cost(self, vm: Held, now_ms: int) -> int:
        """Return price x time of one VM, in micro-dollars/h x ms."""
        end_ms = now_ms if vm.ended_ms is None else vm.ended_ms
        end_ms = max(end_ms, vm.launched_ms + MINIMUM_MS)
        line = sorted(self._prices[vm.pool, vm.capacity])
        starts = [max(at, vm.launched_ms) for at, _ in line]
        ends = [min(at, end_ms) for at, _ in line[1:]] + [end_ms]
        spans = zip(starts, ends, line, strict=True)
        return sum(max(0, end - start) * price for start, end, (_, price) in spans)


def _is_free(vm: Held) -> bool:
    ended = vm.ended_ms is not None and vm.ended_ms - vm.launched_ms < FREE_MS
    return vm.taken and ended
