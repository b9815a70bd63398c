"""Parcae-style planning (NSDI'24): the fleet size with the best expected throughput ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.fill import at_home, fill, obtainable, settle, worth_of
from surefoot.core.policy.greedy import surplus
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.terms import (
    allowed,
    curve,
    floor_worth,
    ready,
    revisit_ms,
    soon,
    target,
    with_rate,
    worth,
)
from surefoot.core.units import hours


@dataclass(frozen=True, slots=True)
class Liveput:
    """Hold the spot size whose throughput, in expectation over preemptions within the
    look-ahead and net of re-forming, is greatest; on-demand for what the floor lacks.

    The published system plans parallel layouts of a model on spot alone and does not look at
    prices; here the size of the fleet is planned with the same objective (D.2 of the theory
    notes), `look_ahead` intervals of a minute far, as there.
    """

    look_ahead: int = 12
    interval_ms: int = 60_000
    name: str = "liveput"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now."""
        if (end := overruled(job, seen)) is not None:
            return end
        floor = floor_worth(job, seen)
        cheap, dear = (allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
        place = settle(seen, cheap, dear)
        spot = at_home(job, seen, cheap, settled=place)
        have = worth(soon(seen, Capacity.SPOT))
        goal = self._size(job, seen, forecast, spot, have, max(floor, float(job.num_nodes)))
        more = fill(job, seen, spot, worth=goal - have)
        coming = have + worth_of(seen, more)
        reserve = soon(seen, Capacity.ON_DEMAND)
        safe = at_home(job, seen, dear, settled=place)
        stand_ins = fill(job, seen, safe, worth=floor - coming - worth(reserve), taken=more)
        spare = surplus(reserve, floor - worth(ready(seen, Capacity.SPOT)))
        launches = (*more, *stand_ins)
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in spare)),
            reason=f"liveput: {goal:g} spot give the most expected work in "
            f"{self.look_ahead * self.interval_ms / 60_000:g} min; {coming:g} held or coming",
            revisit_at_ms=revisit_ms(job, seen, seen.now_ms + self.interval_ms),
            memory=with_rate(job, seen),
            target=target(seen, launches, frozenset(spare)),
        )

    def _size(
        self,
        job: Job,
        seen: Observation,
        forecast: Mapping[Pool, Forecast],
        spot: tuple[Offering, ...],
        have: float,
        least: float,
    ) -> float:
        """Return the size with the greatest expected work over the look-ahead."""
        shape, span_h = curve(job), hours(self.look_ahead * self.interval_ms)
        pause_h = hours(seen.state.fleet_cost.reform_ms)
        beliefs = [forecast[o.pool] for o in spot if o.pool in forecast]
        events = sum(b.events_per_h for b in beliefs) / max(1, len(beliefs))
        share = sum(b.event_share for b in beliefs) / max(1, len(beliefs))
        strike = 1.0 - math.exp(-events * span_h)
        room = sum(o.speed for o in spot if obtainable(seen, o) >= 1)
        ceiling = max(job.throughput.ceiling, least) if room else max(have, least)

        def liveput(size: float) -> float:
            left = shape.at(max(size * (1 - share), 0.0))
            flow = (1 - strike) * shape.at(size) + strike * (shape.at(size) + left) / 2
            changes = (size > have) + strike
            return flow * span_h - changes * pause_h * shape.at(size)

        sizes = [least + k for k in range(int(ceiling - least + 1e-6) + 1)] or [least]
        return max((*sizes, max(have, least)), key=lambda n: (liveput(n), -n))
