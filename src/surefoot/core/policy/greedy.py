"""The plain mixture: spot whenever it can be had, on-demand for what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.fleet import Instance
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.fill import at_home, fill, settle, worth_of
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.terms import (
    allowed,
    floor_worth,
    ready,
    revisit_ms,
    slack_is_gone,
    soon,
    steady_ms,
    target,
    with_rate,
    worth,
)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Hold `num_nodes` spot VMs where possible, with on-demand fallback up to the floor.

    With a deadline and no floor it idles through droughts until the slack is gone, then runs
    on on-demand to the end (the greedy rule of D.1 and D.5 in the theory notes).
    """

    name: str = "greedy"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts are not used."""
        if (end := overruled(job, seen)) is not None:
            return end
        floor = floor_worth(job, seen)
        safe = slack_is_gone(job, seen) and Capacity.ON_DEMAND in job.capacities
        spot, reserve = soon(seen, Capacity.SPOT), soon(seen, Capacity.ON_DEMAND)
        want = 0.0 if safe else max(float(job.num_nodes), floor)
        cheap, dear = (allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
        place = settle(seen, dear) if safe else settle(seen, cheap, dear)
        spot_offers = at_home(job, seen, cheap, settled=place)
        more = fill(job, seen, spot_offers, worth=want - worth(spot))
        coming = worth(spot) + worth_of(seen, more)
        lacking = floor - (0.0 if safe else coming) - worth(reserve)
        safe_offers = at_home(job, seen, dear, settled=place)
        stand_ins = fill(job, seen, safe_offers, worth=lacking, taken=more)
        spare = surplus(reserve, floor - (0.0 if safe else worth(ready(seen, Capacity.SPOT))))
        launches = (*more, *stand_ins)
        reason = f"greedy: {coming:g} spot of {want:g}, floor {floor:g}"
        if stand_ins:
            reason += f", {worth_of(seen, stand_ins):g} on-demand step in"
        if spare:
            reason += f", {len(spare)} on-demand let go"
        if safe:
            reason += "; the slack is gone: on-demand until the end"
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in spare)),
            reason=reason,
            revisit_at_ms=revisit_ms(job, seen, patience_ms=steady_ms(job, seen)),
            memory=with_rate(job, seen),
            target=target(seen, launches, frozenset(spare)),
        )


def surplus(vms: Sequence[Instance], needed: float) -> list[str]:
    """Return tokens that can go while the rest still covers `needed` VMs' worth.

    VMs that are not ready go first, then the youngest.
    """
    extra = worth(vms) - max(0.0, needed)
    leaving: list[str] = []
    for vm in sorted(vms, key=lambda v: (v.ready_ms is not None, -v.requested_ms, v.token)):
        if vm.speed <= extra + 1e-6:
            leaving.append(vm.token)
            extra -= vm.speed
    return leaving
