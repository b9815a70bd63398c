"""Lives a history through again and scores what a model would have said at every step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.core.forecast.port import Beliefs, Forecaster, predict_all
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd
from surefoot.core.units import MS_PER_HOUR
from surefoot.traces.facts import facts_from, grow

DAY_MS = 24 * MS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Guess:
    """One pool at one moment: the share of its VMs foretold and seen to be lost."""

    at_ms: int
    pool: Pool
    vms: int
    foretold: float
    lost: float


@dataclass(frozen=True, slots=True)
class Day:
    """Foretold and seen losses of one day (share of VMs lost within the horizon)."""

    day: int
    vms: int
    foretold: float
    lost: float


def backtest(
    history: History,
    model: Forecaster,
    *,
    horizon_ms: int = MS_PER_HOUR,
    step_ms: int = 900_000,
    first: float = 0.3,
) -> list[Guess]:
    """Return the guesses after the share `first` of the record, each made from the past alone.

    VMs that were let go within the horizon are left out: nobody knows if they would have stayed.
    """
    facts = facts_from(history)
    if not facts:
        return []
    begin_ms, end_ms = facts[0].at_ms, history.now_ms
    known, times, done = History(), [f.at_ms for f in facts], 0
    beliefs: Beliefs | None = None
    guesses: list[Guess] = []
    start_ms = begin_ms + round((end_ms - begin_ms) * first)
    for at_ms in range(start_ms, end_ms - horizon_ms + 1, step_ms):
        upto = bisect_right(times, at_ms)
        grow(known, facts[done:upto])
        done, known.now_ms = upto, max(known.now_ms, at_ms)
        if beliefs is None:
            beliefs = model.fit(known, now_ms=at_ms)
        else:
            beliefs = beliefs.update(known, now_ms=at_ms)
        guesses += _guess(history, known, beliefs, at_ms, horizon_ms)
    return guesses


def _guess(
    history: History, known: History, beliefs: Beliefs, at_ms: int, horizon_ms: int
) -> list[Guess]:
    told = predict_all(beliefs, tuple(known.pools), now_ms=at_ms)
    out = []
    for pool, record in known.pools.items():
        odds, lost = [], []
        for life in record.lives.values():
            if life.end_ms is not None:
                continue
            future = history.pools[pool].lives[life.key]
            ended = future.end_ms is not None and future.end_ms <= at_ms + horizon_ms
            if ended and future.end is not LifeEnd.PREEMPTED:
                continue
            odds.append(1.0 - told[pool].survival(at_ms - life.born_ms, horizon_ms))
            lost.append(float(ended))
        if odds:
            mean, seen = sum(odds) / len(odds), sum(lost) / len(lost)
            out.append(Guess(at_ms, pool, len(odds), mean, seen))
    return out


def log_loss(guesses: Sequence[Guess]) -> float:
    """Return the mean log loss, weighted by VMs; NaN without guesses."""
    if not guesses:
        return float("nan")
    odds = np.clip([g.foretold for g in guesses], 0.003, 0.997)
    lost = np.array([g.lost for g in guesses])
    loss = -(lost * np.log(odds) + (1 - lost) * np.log1p(-odds))
    return float(np.average(loss, weights=[g.vms for g in guesses]))


def by_day(guesses: Sequence[Guess]) -> list[Day]:
    """Return the calibration table by day, counted from the first guess."""
    days: dict[int, list[Guess]] = {}
    for guess in guesses:
        days.setdefault((guess.at_ms - guesses[0].at_ms) // DAY_MS, []).append(guess)
    table = []
    for day, some in sorted(days.items()):
        vms = [g.vms for g in some]
        foretold = float(np.average([g.foretold for g in some], weights=vms))
        lost = float(np.average([g.lost for g in some], weights=vms))
        table.append(Day(day, sum(vms), foretold, lost))
    return table
