"""When a decision is called for, which decisions are worth recording, and how one is made.

The simulator and the controller both ask here, so that both think at the same instants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
from surefoot.core.forecast.port import Beliefs, Forecast, Forecaster
from surefoot.core.job import Job
from surefoot.core.market import Pool
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


REMEMBERED_MS = 3_600_000
"""A forecast is used again for this long while nothing is learned; VM ages count all the same."""


class Mind:
    """The core's decision for a job, with beliefs that are carried from one to the next.

    Forecasts are worked out anew when the history has gained a fact, and at least hourly: most
    thoughts are about a market of which nothing new is known.
    """

    def __init__(self, job: Job, policy: Policy, forecaster: Forecaster) -> None:
        self.job, self.policy, self.forecaster = job, policy, forecaster
        self._beliefs: _Steady | None = None
        self._learned: tuple[int, int] = (0, 0)
        self._fresh_ms = 0

    def decide(self, seen: Observation, history: History) -> Decision:
        """Return what to do now."""
        beliefs = self._form(history, seen.now_ms)
        name = self.forecaster.name
        return decide(self.job, self.policy, beliefs, seen, forecaster=name)

    def _form(self, history: History, now_ms: int) -> _Steady:
        learned = _facts(history)
        if self._beliefs is None:
            self._beliefs = _Steady(self.forecaster.fit(history, now_ms=now_ms))
        elif learned != self._learned or now_ms - self._fresh_ms >= REMEMBERED_MS:
            self._beliefs = _Steady(self._beliefs.inner.update(history, now_ms=now_ms))
        else:
            return self._beliefs
        self._learned, self._fresh_ms = learned, now_ms
        return self._beliefs


@dataclass(slots=True)
class _Steady:
    """Beliefs that answer for a pool once, and then the same again."""

    inner: Beliefs
    known: dict[Pool, Forecast] = field(default_factory=dict)

    def update(self, history: History, *, now_ms: int) -> Beliefs:
        return self.inner.update(history, now_ms=now_ms)

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        found = self.known.get(pool)
        if found is None:
            found = self.known[pool] = self.inner.predict(pool, now_ms=now_ms)
        return found

    def to_dict(self) -> Mapping[str, object]:
        return self.inner.to_dict()


def _facts(history: History) -> tuple[int, int]:
    """Return a count that rises with every fact that forecasts rest on."""
    records = history.pools.values()
    return (
        sum(len(r.changed) + len(r.launches) for r in records),
        sum(len(r.signals) for r in records),
    )
