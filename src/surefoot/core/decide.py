"""The one door: from what is seen to a decision. The simulator and the controller both use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from surefoot.core.event import State
from surefoot.core.forecast.port import Beliefs, Forecast, predict_all
from surefoot.core.interval import choose_interval
from surefoot.core.job import Job
from surefoot.core.market import Pool
from surefoot.core.plan import Decision, Plan


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy may look at: the folded state, the bill so far, and the instant."""

    now_ms: int
    state: State
    spent_micro_usd: int = 0
    launch_failures: Mapping[Pool, int] = field(default_factory=dict)
    """Spot pools with a recent capacity failure: instant until which to leave them alone."""


class Policy(Protocol):
    """A rule for the fleet. Parameters are its fields; it has no hidden state."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now. Must not depend on the order of pools or instances."""


def decide(
    job: Job, policy: Policy, beliefs: Beliefs, seen: Observation, *, forecaster: str
) -> Decision:
    """Return what to do now: fleet plan and checkpoint interval, from one set of forecasts."""
    forecasts = predict_all(beliefs, job.pools, now_ms=seen.now_ms)
    return Decision(
        at_ms=seen.now_ms,
        plan=policy.decide(job, seen, forecasts),
        interval=choose_interval(job.interval, seen.state, forecasts),
        policy=policy.name,
        forecaster=forecaster,
    )
