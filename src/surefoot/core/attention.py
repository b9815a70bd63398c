"""When a decision is called for, which decisions are worth recording, and how one is made.

The simulator and the controller both ask here, so that both think at the same instants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from surefoot.core.trace import History, PoolHistory

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

ELSEWHERE_MS = 300_000
"""And for this long while something is learned, but of other pools only."""


class Mind:
    """The core's decision for a job, with beliefs that are carried from one to the next.

    The forecast of a pool is worked out anew as soon as something is learned of it, minutes
    after something is learned of others, and hourly: most thoughts are about a market of which
    nothing new is known.
    """

    def __init__(self, job: Job, policy: Policy, forecaster: Forecaster) -> None:
        self.job, self.policy, self.forecaster = job, policy, forecaster
        self._steady: _Steady | None = None

    def decide(self, seen: Observation, history: History) -> Decision:
        """Return what to do now."""
        if self._steady is None:
            beliefs = self.forecaster.fit(history, now_ms=seen.now_ms)
            self._steady = _Steady(beliefs, history, seen.now_ms)
        self._steady.update(history, now_ms=seen.now_ms)
        name = self.forecaster.name
        return decide(self.job, self.policy, self._steady, seen, forecaster=name)


@dataclass(slots=True)
class _Made:
    """A forecast, when it was made, and how much was known by then (of its pool, of all)."""

    forecast: Forecast
    at_ms: int
    own: int
    every: int


class _Steady:
    """Beliefs that answer again what they answered while it still holds."""

    def __init__(self, inner: Beliefs, history: History, now_ms: int) -> None:
        self._inner, self._history = inner, history
        self._updated_ms = now_ms
        self._facts = _all_facts(history)
        self._made: dict[Pool, _Made] = {}

    def update(self, history: History, *, now_ms: int) -> Beliefs:
        """Take in what the history gained, if anything."""
        facts = _all_facts(history)
        if facts != self._facts or now_ms - self._updated_ms >= REMEMBERED_MS:
            self._inner = self._inner.update(history, now_ms=now_ms)
            self._facts, self._updated_ms = facts, now_ms
        return self

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        """Return the forecast for one pool, perhaps one made before."""
        own = self._own(pool)
        known = self._known(pool, own, now_ms)
        if known is not None:
            return known
        return self._remember(pool, self._inner.predict(pool, now_ms=now_ms), own, now_ms)

    def predict_together(self, pools: Sequence[Pool], *, now_ms: int) -> dict[Pool, Forecast]:
        """Return `predict` of each pool; those to be worked out anew are so in one go."""
        own = {pool: self._own(pool) for pool in pools}
        found = {pool: self._known(pool, own[pool], now_ms) for pool in pools}
        stale = tuple(pool for pool, forecast in found.items() if forecast is None)
        many = getattr(self._inner, "predict_many", None)
        if many is not None and stale:
            fresh = many(stale, now_ms=now_ms)
        else:
            fresh = {pool: self._inner.predict(pool, now_ms=now_ms) for pool in stale}
        return {
            pool: forecast or self._remember(pool, fresh[pool], own[pool], now_ms)
            for pool, forecast in found.items()
        }

    def _own(self, pool: Pool) -> int:
        record = self._history.pools.get(pool)
        return _facts(record) if record is not None else 0

    def _known(self, pool: Pool, own: int, now_ms: int) -> Forecast | None:
        """Return the forecast made before, if it still holds."""
        made = self._made.get(pool)
        if made is None or made.own != own:
            return None
        limit_ms = REMEMBERED_MS if made.every == self._facts else ELSEWHERE_MS
        return made.forecast if now_ms - made.at_ms < limit_ms else None

    def _remember(self, pool: Pool, forecast: Forecast, own: int, now_ms: int) -> Forecast:
        self._made[pool] = _Made(forecast, now_ms, own, self._facts)
        return forecast

    def to_dict(self) -> Mapping[str, object]:
        """Return the state as JSON-able values."""
        return self._inner.to_dict()


def _facts(record: PoolHistory) -> int:
    """Return a count that rises with every fact that a pool's forecast rests on."""
    return len(record.changed) + len(record.launches) + len(record.signals)


def _all_facts(history: History) -> int:
    return sum(_facts(record) for record in history.pools.values())
