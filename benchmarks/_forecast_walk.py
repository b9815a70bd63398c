"""Walks a model through a source in order of time, as it would run live."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from _forecast import Source
from surefoot.core.forecast import Forecaster, get_forecaster
from surefoot.core.forecast.expert import BINS, HORIZONS_H, Batch
from surefoot.core.forecast.features import Features
from surefoot.core.forecast.mixture import Mixture
from surefoot.core.forecast.port import Floats, Forecast, predict_all
from surefoot.core.market import Pool
from surefoot.core.trace import History, value_at
from surefoot.traces.facts import facts_of, grow


def walk(
    source: Source,
    model: Forecaster,
    *,
    first: int = 3,
    last: int = 10,
    look: Callable[[int, Forecast], None] | None = None,
) -> dict[str, np.ndarray]:
    """Return the odds of loss of each scored row by horizon; rows before `first` stay NaN.

    At each instant the model has seen the facts up to it and nothing later.
    """
    wanted: dict[int, list[tuple[str, int]]] = {}
    odds = {h: np.full(len(rows.t_s), np.nan) for h, rows in source.rows.items()}
    for horizon, rows in source.rows.items():
        for i in rows.block(first, last):
            wanted.setdefault(round(rows.t_s[i] * 1000), []).append((horizon, int(i)))
    history = History()
    times = [fact.at_ms for fact in source.facts]
    done = 0
    beliefs = None
    for at_ms in sorted(wanted):
        upto = bisect_right(times, at_ms)
        grow(history, source.facts[done:upto])
        done = upto
        history.now_ms = max(history.now_ms, at_ms)
        if beliefs is None:
            beliefs = model.fit(history, now_ms=at_ms)
        else:
            beliefs = beliefs.update(history, now_ms=at_ms)
        asked = wanted[at_ms]
        numbers = {int(source.rows[h].pool[i]) for h, i in asked}
        told = predict_all(beliefs, [source.pools[n] for n in numbers], now_ms=at_ms)
        for horizon, i in asked:
            rows = source.rows[horizon]
            pool = source.pools[int(rows.pool[i])]
            odds[horizon][i] = _row(history, told[pool], rows, i, at_ms)
    return odds


def _row(history: History, forecast: Forecast, rows: Any, i: int, at_ms: int) -> float:
    """Return the mean odds of loss over the row's VMs."""
    lives = history.of(forecast.pool).lives
    if rows.key:
        born = [lives[rows.key[i]].born_ms]
    else:
        born = [x.born_ms for x in reversed(lives.values()) if x.end_ms is None]
    span_ms = round(rows.span_s * 1000)
    ages, counts = np.unique(np.array(born), return_counts=True)
    lost = [1.0 - forecast.survival(at_ms - int(b), span_ms) for b in ages]
    return float(np.average(lost, weights=counts))


@dataclass
class Collector:
    """An expert that learns nothing and keeps every lesson."""

    name: str = "collector"
    batches: list[Batch] = field(default_factory=list)

    def odds(self, features: Features) -> Floats:
        return np.full((len(features.x), BINS, len(HORIZONS_H)), 0.1)

    def learned(self, batch: Batch) -> Collector:
        self.batches.append(batch)
        return self

    def state(self) -> Mapping[str, Any]:
        return {}

    def restored(self, state: Mapping[str, Any]) -> Collector:
        return self


def lessons(source: Source, *, tenths: int) -> list[Batch]:
    """Return the lessons that a model would have had in the first tenths of the record."""
    rows = source.rows["1h"]
    cut_ms = round(rows.t_s[rows.block(0, tenths)[-1]] * 1000)
    history = History()
    grow(history, (f for f in source.facts if f.at_ms <= cut_ms))
    collector = Collector()
    Mixture("collect", lambda: (collector,), (1.0,)).fit(history, now_ms=cut_ms)
    return collector.batches


def launch_scores(source: Source, *, first: float) -> tuple[int, float, float, float]:
    """Score the odds that a launch succeeds, a quarter hour ahead, from probes every 10 minutes.

    Return (instants, share granted, log loss skill over the pool's mean so far, skill over the
    last probe's answer smoothed by its past reliability), over the record after `first`.
    """
    trace = source.trace
    assert trace is not None
    facts = [f for f in facts_of(trace, reassert_ms=600_000) if f.kind == "tried"]
    model, history = get_forecaster("gamma_poisson"), History()
    times = [f.at_ms for f in facts]
    begin = trace.start_ms + round((trace.end_ms - trace.start_ms) * first)
    sums: dict[Pool, list[float]] = {}
    losses, beliefs, done = [], None, 0
    for at_ms in range(trace.start_ms + 3_600_000, trace.end_ms - 900_000, 3_600_000):
        upto = bisect_right(times, at_ms)
        grow(history, facts[done:upto])
        done = upto
        beliefs = (
            beliefs.update(history, now_ms=at_ms) if beliefs else model.fit(history, now_ms=at_ms)
        )
        for pool, record in trace.pools.items():
            most = max((s.value or 0 for s in record.supply), default=0)
            now, then = (value_at(record.supply, at) for at in (at_ms, at_ms + 900_000))
            if not most or now is None or then is None:
                continue
            now, then = min(1.0, now / most), min(1.0, then / most)
            mean, seen, kept = sums.setdefault(pool, [1.0, 2.0, 1.0])
            stay = kept / seen if seen > 4 else 0.8
            base = stay * now + (1 - stay) * mean / seen
            if at_ms >= begin:
                odds = beliefs.predict(pool, now_ms=at_ms).launch_odds
                losses.append([_loss(then, q) for q in (odds, mean / seen, base)] + [then])
            sums[pool] = [mean + then, seen + 1, kept + 1 - abs(then - now)]
    ours, usual, last, granted = np.mean(np.array(losses), axis=0)
    return len(losses), float(granted), float(1 - ours / usual), float(1 - ours / last)


def _loss(share: float, odds: float) -> float:
    odds = min(max(odds, 0.003), 0.997)
    return -float(share * np.log(odds) + (1 - share) * np.log1p(-odds))
