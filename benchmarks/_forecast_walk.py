"""Walks a model through a source in order of time, as it would run live."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from _forecast import Source
from surefoot.core.forecast import Forecaster
from surefoot.core.forecast.expert import BINS, HORIZONS_H, Batch
from surefoot.core.forecast.features import Features
from surefoot.core.forecast.mixture import Mixture
from surefoot.core.forecast.port import Floats, Forecast, predict_all
from surefoot.core.trace import History
from surefoot.traces.facts import grow


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
