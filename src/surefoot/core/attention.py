"""When a decision is called for, which decisions are worth recording, and how one is made.

The simulator and the controller both ask here, so that both think at the same instants.
"""

from __future__ import annotations

from surefoot.core.decide import Observation, Policy, decide
from surefoot.core.event import (
    Event,
    GroupBroken,
    GroupFormed,
    InstanceGone,
    InstanceReady,
    LaunchFailed,
    NoticeReceived,
    OfferingsSeen,
    RestoreDone,
    RunStarted,
)
from surefoot.core.fleet import Ending
from surefoot.core.forecast.port import Beliefs, Forecaster
from surefoot.core.job import Job
from surefoot.core.plan import Decision
from surefoot.core.trace import History

ROUNDS = 8
"""Decisions at one instant: a refusal leads to the next choice at once, but not for ever."""

RELEVANT = (
    RunStarted,
    OfferingsSeen,
    InstanceReady,
    NoticeReceived,
    GroupFormed,
    GroupBroken,
    RestoreDone,
)
"""Facts that call for a new decision, beside losses and refusals."""


def matters(event: Event) -> bool:
    """Return whether an event calls for a new decision.

    What a plan has itself brought about (a launch, a release) does not.
    """
    match event:
        case InstanceGone():
            return event.ending is not Ending.RELEASED
        case LaunchFailed():
            return event.kind not in ("LimitError", "Cancelled")
        case _:
            return isinstance(event, RELEVANT)


def is_news(before: Decision | None, now: Decision) -> bool:
    """Return whether a decision says something that the last recorded one did not."""
    if before is None or now.plan.actions:
        return True
    change_ms = abs(now.interval.interval_ms - before.interval.interval_ms)
    return (
        now.plan.memory != before.plan.memory
        or now.plan.target != before.plan.target
        or change_ms > before.interval.interval_ms // 10
    )


class Mind:
    """The core's decision for a job, with beliefs that are carried from one to the next."""

    def __init__(self, job: Job, policy: Policy, forecaster: Forecaster) -> None:
        self.job, self.policy, self.forecaster = job, policy, forecaster
        self._beliefs: Beliefs | None = None

    def decide(self, seen: Observation, history: History) -> Decision:
        """Return what to do now."""
        if self._beliefs is None:
            self._beliefs = self.forecaster.fit(history, now_ms=seen.now_ms)
        else:
            self._beliefs = self._beliefs.update(history, now_ms=seen.now_ms)
        name = self.forecaster.name
        return decide(self.job, self.policy, self._beliefs, seen, forecaster=name)
