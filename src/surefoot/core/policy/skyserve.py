"""Dynamic fallback (SkyServe's SpotHedge, EuroSys'25), carried over from serving to training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.fill import at_home, fill, held_by_pool, list_price, settle, worth_of
from surefoot.core.policy.greedy import surplus
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.terms import (
    allowed,
    floor_worth,
    ready,
    revisit_ms,
    set_aside,
    soon,
    target,
    with_rate,
    worth,
)


@dataclass(frozen=True, slots=True)
class SkyServe:
    """Over-provision spot by `extra` VMs; on-demand O = min(N, N + extra - ready spot).

    Spot goes where the pool holds least, pools with a recent loss or refusal last. Published
    for serving; N is the asked size, the floor if that is more.
    """

    extra: int = 1
    name: str = "skyserve"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts are not used."""
        if (end := overruled(job, seen)) is not None:
            return end
        size = max(float(job.num_nodes), floor_worth(job, seen))
        cheap, dear = (allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
        place = settle(seen, cheap, dear)
        held = held_by_pool(seen, Capacity.SPOT)

        def balanced(offer: Offering, count: int) -> float:
            del count
            avoid = 1e12 if set_aside(seen, offer.pool) else 0.0
            return avoid + held[offer.pool] * 1e9 + list_price(offer, 0)

        spot = at_home(job, seen, cheap, settled=place)
        want = size + self.extra - worth(soon(seen, Capacity.SPOT))
        more = fill(job, seen, spot, worth=want, price=balanced)
        steady = worth(ready(seen, Capacity.SPOT))
        need = min(size, size + self.extra - steady) if size else 0.0
        reserve = soon(seen, Capacity.ON_DEMAND)
        safe = at_home(job, seen, dear, settled=place)
        stand_ins = fill(job, seen, safe, worth=need - worth(reserve), taken=more)
        spare = surplus(reserve, need)
        launches = (*more, *stand_ins)
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in spare)),
            reason=(
                f"dynamic fallback: {steady:g} spot ready of {size:g} + {self.extra}, so "
                f"{max(0.0, need):g} on-demand; {worth_of(seen, launches):g} asked for"
            ),
            revisit_at_ms=revisit_ms(job, seen),
            memory=with_rate(job, seen),
            target=target(seen, launches, frozenset(spare)),
        )
