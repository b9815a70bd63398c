"""The dear and safe baseline: the asked number of on-demand VMs, always."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.fill import at_home, fill, worth_of
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.terms import (
    allowed,
    floor_worth,
    over_cap,
    revisit_ms,
    soon,
    target,
    with_rate,
    worth,
)


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Hold `num_nodes` on-demand VMs (or the floor, or the deadline's need, if more)."""

    name: str = "on-demand"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts are not used."""
        if (end := overruled(job, seen)) is not None:
            return end
        want = max(float(job.num_nodes), floor_worth(job, seen))
        have = worth(soon(seen, Capacity.ON_DEMAND))
        offers = at_home(job, seen, allowed(job, seen, Capacity.ON_DEMAND))
        launches = fill(job, seen, offers, worth=want - have)
        stay = have + worth_of(seen, launches)
        spare = [vm.token for vm in soon(seen, Capacity.SPOT)] if have >= want else []
        reason = f"on-demand: {stay:g} of {want:g} VMs' worth"
        if stay < want - 1e-6:
            capped = [o for o in over_cap(job, seen) if o.capacity is Capacity.ON_DEMAND]
            reason += "; the price cap forbids more" if capped else "; no more can be had"
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in spare)),
            reason=reason,
            revisit_at_ms=revisit_ms(job, seen),
            memory=with_rate(job, seen),
            target=target(seen, launches, frozenset(spare)),
        )
