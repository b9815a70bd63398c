"""What stands between a plan and the user's money: limits that no policy can talk its way past."""

from __future__ import annotations

from dataclasses import dataclass, field

from surefoot.controller.record import Record
from surefoot.controller.settings import Settings
from surefoot.core.fleet import HELD, InstanceState
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import charge_micro_usd, usd
from surefoot.errors import LimitError

WIND_DOWN_MS = 30_000
"""Time to save and end a fleet that a budget must still pay for."""


@dataclass(slots=True)
class Guard:
    """Checks every single launch against the job's limits and the newest confirmed prices."""

    job: Job
    settings: Settings
    confirmed: dict[tuple[Pool, Capacity], Offering] = field(default_factory=dict)
    confirmed_ms: int = 0

    def saw(self, offerings: tuple[Offering, ...], at_ms: int) -> None:
        """Note the provider's newest answer; what is not in it is not for sale."""
        self.confirmed = {(o.pool, o.capacity): o for o in offerings}
        self.confirmed_ms = at_ms

    def check(self, record: Record, pool: Pool, capacity: Capacity, now_ms: int) -> Offering:
        """Return the offering that one more VM would be bought on.

        Raises LimitError, saying why, when it may not be bought.
        """
        offer = self.confirmed.get((pool, capacity))
        where = f"{pool} {capacity.value}"
        if offer is None:
            raise LimitError(f"no price is known for {where}: nothing is bought blindly")
        if now_ms - self.confirmed_ms > self.settings.stale_price_ms:
            raise LimitError(f"the price of {where} is older than the limit for stale prices")
        self._check_terms(record, offer, where)
        self._check_budget(record, offer, now_ms)
        return offer

    def _check_terms(self, record: Record, offer: Offering, where: str) -> None:
        limits = self.job.limits
        if offer.capacity not in self.job.capacities:
            raise LimitError(f"the job does not allow {offer.capacity.value} VMs")
        cap = limits.max_price_micro_usd_h
        if cap is not None and offer.price_micro_usd_h > cap:
            raise LimitError(
                f"{where} is above max_price (${usd(cap):g}/h)",
                hint="raise budget.max_price, or allow other pools",
            )
        if limits.max_vms is not None and self._vms(record) >= limits.max_vms:
            raise LimitError(f"the job may hold {limits.max_vms} VMs, and does")

    def _check_budget(self, record: Record, offer: Offering, now_ms: int) -> None:
        budget = self.job.limits.budget_micro_usd
        if budget is None:
            return
        horizon = max(record.state.fleet_cost.boot_ms + WIND_DOWN_MS, offer.minimum_billing_ms)
        burn = self.burn(record) + offer.price_micro_usd_h
        spent = self.spent(record, now_ms)
        if spent + charge_micro_usd(burn, horizon) > budget:
            raise LimitError(
                f"one more {offer.pool} {offer.capacity.value} VM would exceed the budget of "
                f"${usd(budget):g}",
                hint="raise budget.total",
            )

    def exhausted(self, record: Record, now_ms: int) -> bool:
        """Return whether what is left is needed to save and end the fleet."""
        budget = self.job.limits.budget_micro_usd
        if budget is None:
            return False
        closing = charge_micro_usd(self.burn(record), WIND_DOWN_MS)
        return self.spent(record, now_ms) + closing >= budget

    def exhausted_ms(self, record: Record, now_ms: int) -> int | None:
        """Return when the budget will be exhausted at the present burn; None when it will not."""
        budget, burn = self.job.limits.budget_micro_usd, self.burn(record)
        if budget is None or burn == 0:
            return None
        left = budget - self.spent(record, now_ms) - charge_micro_usd(burn, WIND_DOWN_MS)
        return now_ms + max(0, left) * 3_600_000 // burn + 1

    def burn(self, record: Record) -> int:
        """Return what the fleet costs now, micro-dollars per hour, requested VMs included."""
        total = 0
        for vm in record.state.fleet.select(*HELD, InstanceState.REQUESTED):
            offer = record.state.market.get(vm.pool, vm.capacity)
            total += offer.price_micro_usd_h if offer else 0
        return total

    def spent(self, record: Record, now_ms: int) -> int:
        """Return the bill up to an instant, micro-dollars."""
        return record.account.bill_at(now_ms).total

    def _vms(self, record: Record) -> int:
        return len(record.state.fleet)
