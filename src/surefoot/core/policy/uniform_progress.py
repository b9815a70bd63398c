"""Uniform Progress (Can't Be Late, NSDI'24): on-demand only when behind a straight line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import Plan
from surefoot.core.policy.finish import is_gang_with_deadline, left_ms_and_work_ms, offers, run_on
from surefoot.core.policy.gang import Mode
from surefoot.core.policy.greedy import Greedy
from surefoot.core.policy.guard import overruled
from surefoot.core.policy.terms import soon, switch_ms, with_rate
from surefoot.core.units import MS_PER_HOUR


@dataclass(frozen=True, slots=True)
class UniformProgress:
    """The published rules: spot whenever there is time for the switch, and stay on it; without
    spot, on-demand while behind uniform progress, left only when ahead by two switches; and
    on-demand to the end once the slack is gone. Jobs without a deadline follow `greedy`.
    """

    name: str = "uniform-progress"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now; forecasts only rank the pools."""
        if (end := overruled(job, seen)) is not None:
            return end
        if not is_gang_with_deadline(job):
            return Greedy().decide(job, seen, forecast)
        around = offers(job, seen, forecast)
        left, work = left_ms_and_work_ms(job, seen)
        memory = dict(with_rate(job, seen))
        memory.setdefault("up.begun", float(seen.now_ms))
        memory.setdefault("up.work", work)
        begun, total = memory["up.begun"], memory["up.work"]
        span = max(1.0, left + seen.now_ms - begun)
        switch = switch_ms(seen)
        spot, safe = soon(seen, Capacity.SPOT), soon(seen, Capacity.ON_DEMAND)
        behind = (seen.now_ms - begun + (2 * switch if safe else 0.0)) * total / span
        behind -= total - work  # how much work is lacking on the line (ms), below 0 when ahead
        patience = float(MS_PER_HOUR)
        if spot:
            mode, why = Mode.SPOT, "stay on spot"
            # Only the save interval is left to think about, and hazards fall with the age's log.
            patience = max(patience, min(vm.age_ms(seen.now_ms) for vm in spot))
        elif around.spot and left - 1_000 >= work + 2 * switch:
            mode, why = Mode.SPOT, "spot can be had"
        elif left - 1_000 < work + 2 * switch:
            mode, why = Mode.SAFE, "the slack is gone"
        elif behind > 0:
            mode, why = Mode.SAFE, "behind uniform progress"
            patience = min(patience, behind / max(1.0 - total / span, 1e-9))
        else:
            mode, why = Mode.IDLE, "ahead of uniform progress"
            patience = min(patience, -behind * span / max(total, 1.0))
        reason = f"uniform progress: {why}; {work / 3.6e6:.2f} h of work in {left / 3.6e6:.2f} h"
        stands = 1_000 + int(patience)
        return run_on(job, seen, mode, around, reason=reason, memory=memory, patience_ms=stands)
