"""How long windows and droughts of a pool last: hazards by the spell's age, learnt from tries."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from surefoot.core.forecast.port import Beliefs, Floats, Forecast, Forecaster, Hazard, ManyBeliefs
from surefoot.core.market import Pool
from surefoot.core.trace import History, PoolHistory
from surefoot.core.units import MS_PER_HOUR, hours

EDGES_H: Floats = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
"""Ages (hours) at which the rates step."""
_EDGES: tuple[float, ...] = tuple(EDGES_H.tolist())
_ENDS: tuple[float, ...] = (*_EDGES[1:], float("inf"))

SHAPE: Floats = np.array([1.3, 1.0, 0.7, 0.45, 0.28, 0.18, 0.1])
"""Prior rate by age, relative: spells that have lasted go on lasting (theory notes, C.2)."""

OPEN, CLOSED = 0, 1

FOUND_AGE_MS = MS_PER_HOUR
"""Age given to a spell that was found going on: one met at random has lasted for a while."""


@dataclass(slots=True)
class SpellCount:
    """Ended spells and time spent, by kind (open, closed) and age; forgets by half-life."""

    ended: Floats = field(default_factory=lambda: np.zeros((2, len(EDGES_H))))
    """Shape (2, ages), spells that ended at this age."""
    spent_h: Floats = field(default_factory=lambda: np.zeros((2, len(EDGES_H))))
    """Shape (2, ages), hours spent at this age."""
    kind: int | None = None
    since_ms: int = 0
    last_ms: int = 0
    read: int = 0
    """Launch tries taken in so far."""
    lives: int = 0
    """Births and ends taken in so far."""
    held: frozenset[str] = frozenset()

    def copied(self) -> SpellCount:
        """Return a copy that can be grown without changing this one."""
        return SpellCount(
            self.ended.copy(),
            self.spent_h.copy(),
            self.kind,
            self.since_ms,
            self.last_ms,
            self.read,
            self.lives,
            self.held,
        )

    def take(self, record: PoolHistory, *, now_ms: int, half_life_h: float, gap_ms: int) -> None:
        """Take in what the record gained; a held VM says that the window is still open."""
        for _, key in record.changed[self.lives :]:
            alive = record.lives[key].end_ms is None
            self.held = self.held | {key} if alive else self.held - {key}
        self.lives = len(record.changed)
        for attempt in record.launches[self.read :]:
            kind = OPEN if attempt.granted > 0 else CLOSED
            self._see(kind, attempt.at_ms, half_life_h=half_life_h, gap_ms=gap_ms)
        self.read = len(record.launches)
        if self.held and self.kind == OPEN:
            self._see(OPEN, now_ms, half_life_h=half_life_h, gap_ms=10**15)

    def _see(self, kind: int, at_ms: int, *, half_life_h: float, gap_ms: int) -> None:
        if self.kind is None or at_ms - self.last_ms > gap_ms:
            self.kind, self.since_ms, self.last_ms = kind, at_ms - FOUND_AGE_MS, at_ms
            return
        if at_ms <= self.last_ms and kind == self.kind:
            return
        step_h = hours(max(0, at_ms - self.last_ms))
        begin = hours(self.last_ms - self.since_ms)
        fade = 0.5 ** (step_h / half_life_h)
        self.ended *= fade
        self.spent_h *= fade
        end = begin + step_h
        age = bisect_right(_EDGES, begin) - 1
        if end <= _ENDS[age]:
            self.spent_h[self.kind, age] += end - begin
        else:
            self.spent_h[self.kind] += _time_at_ages(begin, end)
        if kind != self.kind:
            self.ended[self.kind, _age_index(begin + step_h)] += 1.0
            self.kind, self.since_ms = kind, at_ms
        self.last_ms = max(self.last_ms, at_ms)


def _age_index(age_h: float) -> int:
    return int(np.searchsorted(EDGES_H, age_h - 1e-9, "right")) - 1 if age_h > 0 else 0


def _time_at_ages(from_h: float, to_h: float) -> Floats:
    span: Floats = np.minimum(_ENDS, to_h) - np.maximum(EDGES_H, from_h)
    return np.maximum(span, 0.0)


@dataclass(frozen=True, slots=True)
class WithSpells:
    """Adds hazards of windows and droughts by age to another model's forecasts.

    `half_life_h` of the counts; `sibling_weight`: what a like pool's spells count for;
    `mean_h`: prior mean rate scale of (windows, droughts) at age 15-30 min, as hours a spell.
    """

    base: Forecaster
    half_life_h: float = 168.0
    sibling_weight: float = 0.1
    mean_h: tuple[float, float] = (1.0, 1.0)
    gap_ms: int = 6 * MS_PER_HOUR

    @property
    def name(self) -> str:
        """The name of the model underneath."""
        return self.base.name

    def fit(self, history: History, *, now_ms: int) -> Beliefs:
        """Return beliefs formed from scratch from all of `history` up to `now_ms`."""
        base, blank = self.base.fit(history, now_ms=now_ms), np.zeros((2, 2, len(EDGES_H)))
        begun = SpellBeliefs(self, base, {}, blank, now_ms)
        return begun.counted(history, now_ms=now_ms)


@dataclass(frozen=True, slots=True)
class SpellBeliefs:
    """The model underneath's beliefs, and the spell counts of every pool."""

    model: WithSpells
    base: Beliefs
    counts: Mapping[Pool, SpellCount]
    total: Floats
    """Shape (2, 2, ages): ended spells and hours spent, summed over pools."""
    at_ms: int

    def update(self, history: History, *, now_ms: int) -> Beliefs:
        """Take in what `history` gained since the last update; return the new beliefs."""
        grown = replace(self, base=self.base.update(history, now_ms=now_ms))
        return grown.counted(history, now_ms=now_ms)

    def counted(self, history: History, *, now_ms: int) -> SpellBeliefs:
        """Return the beliefs with the history's new tries counted."""
        counts = dict(self.counts)
        grown = False
        for pool, record in history.pools.items():
            old = counts.get(pool)
            fresh = old is None or len(record.launches) > old.read or bool(old.held)
            if fresh or (old is not None and len(record.changed) > old.lives):
                count = old.copied() if old is not None else SpellCount()
                count.take(
                    record,
                    now_ms=now_ms,
                    half_life_h=self.model.half_life_h,
                    gap_ms=self.model.gap_ms,
                )
                counts[pool], grown = count, True
        if not grown:
            return replace(self, at_ms=now_ms)
        total = np.stack(
            (
                np.array([c.ended for c in counts.values()]).sum(axis=0),
                np.array([c.spent_h for c in counts.values()]).sum(axis=0),
            )
        )
        return replace(self, counts=counts, total=total, at_ms=now_ms)

    def predict(self, pool: Pool, *, now_ms: int) -> Forecast:
        """Return the model underneath's forecast with window, drought and spell age."""
        return self.predict_many((pool,), now_ms=now_ms)[pool]

    def predict_many(self, pools: Sequence[Pool], *, now_ms: int) -> dict[Pool, Forecast]:
        """Return the forecast of each pool, equal to `predict` of each."""
        if hasattr(self.base, "predict_many"):
            many = cast(ManyBeliefs, self.base).predict_many(pools, now_ms=now_ms)
        else:
            many = {pool: self.base.predict(pool, now_ms=now_ms) for pool in pools}
        return self._completed(many, now_ms)

    def _completed(self, many: Mapping[Pool, Forecast], now_ms: int) -> dict[Pool, Forecast]:
        """Return the forecasts with windows and droughts: all pools' rates in one go."""
        blank = SpellCount()
        own = [self.counts.get(pool, blank) for pool in many]
        ended = np.array([c.ended for c in own]).reshape(-1, 2, len(EDGES_H))
        spent_h = np.array([c.spent_h for c in own]).reshape(-1, 2, len(EDGES_H))
        weight = self.model.sibling_weight
        ended = ended + weight * (self.total[0] - ended)
        spent_h = spent_h + weight * (self.total[1] - spent_h)
        rates = _rates(ended, spent_h, np.array(self.model.mean_h))
        for forecast, count, rate in zip(many.values(), own, rates, strict=True):
            age = 0.0 if count.kind is None else hours(max(0, now_ms - count.since_ms))
            window, drought = Hazard(EDGES_H, rate[OPEN]), Hazard(EDGES_H, rate[CLOSED])
            forecast.complete(window, drought, age)
        return dict(many)

    def to_dict(self) -> Mapping[str, object]:
        """Return the state as JSON-able values."""
        spells = {
            str(pool): {"ended": c.ended.tolist(), "spent_h": c.spent_h.tolist()}
            for pool, c in sorted(self.counts.items())
        }
        return {**self.base.to_dict(), "spells": spells}


def _rates(ended: Floats, spent_h: Floats, mean_h: Floats) -> Floats:
    """Return rates by age: Gamma-Poisson per age, around the prior shape at the pool's level.

    `ended`, `spent_h`: (pools, kinds, ages). `mean_h`: (kinds,).
    """
    level = (ended.sum(axis=-1) + 1.0) / ((spent_h * SHAPE).sum(axis=-1) + mean_h)
    base = SHAPE * level[..., None]
    rates: Floats = (ended + 1.0) / (spent_h + 1.0 / base)
    return rates
