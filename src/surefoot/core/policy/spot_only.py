"""The cheap and careless baseline: the asked number of spot VMs whenever they can be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.fill import at_home, fill, worth_of
from surefoot.core.policy.guard import overruled
from surefoot.core.policy.terms import (
    allowed,
    over_cap,
    revisit_ms,
    set_aside,
    soon,
    target,
    worth,
)


@dataclass(frozen=True, slots=True)
class SpotOnly:
    """Hold `num_nodes` spot VMs, from the cheapest pool that grants them; else wait."""

    name: str = "spot-only"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts are not used."""
        if (end := overruled(job, seen)) is not None:
            return end
        want = max(float(job.num_nodes), job.throughput.floor)
        have = worth(soon(seen, Capacity.SPOT))
        offers = at_home(job, seen, allowed(job, seen, Capacity.SPOT))
        launches = fill(job, seen, offers, worth=want - have)
        stay = have + worth_of(seen, launches)
        return Plan(
            actions=launches,
            reason=f"spot only: {stay:g} of {want:g} VMs' worth" + _shortage(job, seen, stay, want),
            revisit_at_ms=revisit_ms(job, seen),
            memory=seen.state.memory,
            target=target(seen, launches, frozenset()),
        )


def _shortage(job: Job, seen: Observation, stay: float, want: float) -> str:
    if stay >= want - 1e-6:
        return ""
    aside = [str(pool) for pool in sorted(job.pools) if set_aside(seen, pool)]
    capped = [str(o.pool) for o in over_cap(job, seen) if o.capacity is Capacity.SPOT]
    parts = [f"set aside after a refusal: {', '.join(aside)}"] if aside else []
    parts += [f"over the price cap: {', '.join(capped)}"] if capped else []
    return "; " + ("; ".join(parts) or "no more can be had now, waiting")
