"""The baseline that autoscalers offer: a fixed on-demand base and a percentage of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.fill import at_home, fill, settle
from surefoot.core.policy.greedy import surplus
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.terms import allowed, revisit_ms, soon, target, whole, worth


def split(nodes: int, base: int, on_demand_share: float) -> tuple[int, int]:
    """Return (on-demand, spot) counts that add up to `nodes`.

    The base is filled first and capped at `nodes`; of the rest the share is on-demand, rounded
    up, so that rounding never makes the fleet less safe than asked.
    """
    fixed = min(nodes, max(0, base))
    more = whole((nodes - fixed) * min(1.0, max(0.0, on_demand_share)))
    return fixed + more, nodes - fixed - more


@dataclass(frozen=True, slots=True)
class FixedMix:
    """Hold `num_nodes` VMs split by `split(num_nodes, job.on_demand_base, on_demand_share)`."""

    on_demand_share: float = 0.5
    name: str = "fixed-mix"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts are not used."""
        if (end := overruled(job, seen)) is not None:
            return end
        safe, cheap = split(job.num_nodes, job.on_demand_base, self.on_demand_share)
        spot_offers, safe_offers = (
            allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND)
        )
        place = settle(seen, spot_offers, safe_offers)
        held = soon(seen, Capacity.ON_DEMAND)
        first = fill(
            job,
            seen,
            at_home(job, seen, safe_offers, settled=place),
            worth=safe - worth(held),
        )
        second = fill(
            job,
            seen,
            at_home(job, seen, spot_offers, settled=place),
            worth=cheap - worth(soon(seen, Capacity.SPOT)),
            taken=first,
        )
        spare = surplus(held, float(safe))
        launches = (*first, *second)
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in spare)),
            reason=f"fixed mix: {safe} on-demand (base {job.on_demand_base}), {cheap} spot",
            revisit_at_ms=revisit_ms(job, seen),
            memory=seen.state.memory,
            target=target(seen, launches, frozenset(spare)),
        )
