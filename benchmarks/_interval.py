"""Spells of full availability from the public traces, and the useful share of a save schedule."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from surefoot.core.forecast import get_forecaster
from surefoot.core.interval import asynchronous, notice_share
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd

NOTICE_S = 120.0
SHARES = (0.125, 0.375, 0.625, 0.875)
"""Where within the last tick a loss may have happened: each is tried, the mean is scored."""
LOOKS_S = (0.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0, 57_600.0)
"""Ages at which ours asks for a new forecast, then every 8 h (live: with every decision)."""


@dataclass
class Spell:
    """One stretch in which the whole gang is held. Times in seconds from its (scored) start."""

    ends_s: np.ndarray
    """Shape (4,): possible instants of the loss; one and the same four times when censored."""
    censored: bool
    age_s: float = 0.0
    """Age of the spell when scoring begins (it may straddle the split)."""
    looks: list[tuple[float, float]] = field(default_factory=list)
    """(second from the scored start, forecast losses per second from then on)."""
    losses_before: int = 0
    """Losses seen in the trace before this spell."""


@dataclass
class Record:
    """One pool's trace, split in time: spells to learn from, spells to score."""

    name: str
    source: str
    gang: int
    learn: list[tuple[float, float, bool]]
    """(start, end, lost) in trace seconds, before the split."""
    score: list[Spell]
    held_s: float
    losses: int


def load(data: Path, *, quick: bool) -> list[Record]:
    """Return all traces with at least one loss in the scored half (the first of a source if quick).

    The gang is the median count of the learning half: the size that can be held half the time.
    """
    rows: dict[tuple[str, ...], list[tuple[float, int]]] = defaultdict(list)
    table = pq.read_table(data / "availability.parquet").to_pydict()
    keys = zip(table["source"], table["region"], table["zone"], table["instance_type"], strict=True)
    for key, at, count in zip(keys, table["t_s"], table["count"], strict=True):
        rows[key].append((float(at), int(count)))
    records, taken = [], defaultdict(int)
    for key, points in sorted(rows.items()):
        if quick and taken[key[0]] >= 2:
            continue
        record = _split(key, sorted(points))
        if record is not None and record.losses:
            records.append(record)
            taken[key[0]] += 1
    return records


def _split(key: tuple[str, ...], points: list[tuple[float, int]]) -> Record | None:
    times = np.array([t for t, _ in points])
    counts = np.array([c for _, c in points])
    split = (times[0] + times[-1]) / 2
    gang = max(1, int(np.median(counts[times < split])))
    spells = _spells(times, counts >= gang)
    name = f"{key[0].removeprefix('sky-')} {key[2] or '?'} {key[3]}"
    learn, score, seen = [], [], 0
    for start, last_up, end, lost in spells:
        if start < split:
            learn.append((start, min(end, split), lost and end <= split))
        if end > split:
            begin = max(start, split)
            ends = last_up + np.array(SHARES) * (end - last_up) if lost else np.full(4, end)
            spell = Spell(np.maximum(ends - begin, 1.0), not lost, begin - start)
            spell.losses_before = seen
            score.append(spell)
        seen += lost
    held = float(sum(s.ends_s.mean() for s in score))
    losses = sum(not s.censored for s in score)
    record = Record(name, key[0], gang, learn, score, held, losses)
    if losses:
        _forecast(record, spells, split)
    return record


def _spells(times: np.ndarray, up: np.ndarray) -> list[tuple[float, float, float, bool]]:
    """Return (start, last instant up, end, lost); a gap of over 3 ticks ends a spell unlost."""
    tick = float(np.median(np.diff(times)))
    found = []
    start = None
    for i, (at, here) in enumerate(zip(times, up, strict=True)):
        gap = i > 0 and at - times[i - 1] > 3 * tick
        if start is not None and (gap or not here):
            lost = not gap
            end = float(at) if lost else float(times[i - 1])
            found.append((start, float(times[i - 1]), end, lost))
            start = None
        if here and start is None:
            start = float(at)
    if start is not None and times[-1] > start:
        found.append((start, float(times[-1]), float(times[-1]), False))
    return [s for s in found if s[2] > s[0]]


def _forecast(record: Record, spells: list[tuple[float, float, float, bool]], split: float) -> None:
    """Fill in what the default forecaster, fed with the past only, says at each look."""
    pool = Pool("trace", "r", "z", "t")
    history = History()
    model = get_forecaster("mixture")
    beliefs = None
    scored = iter(record.score)
    for number, (start, _, end, lost) in enumerate(spells):
        begin_ms = round(start * 1000)
        history.tried(pool, at_ms=begin_ms, asked=1, granted=1)
        history.born(pool, str(number), at_ms=begin_ms)
        if end > split:
            spell = next(scored)
            for at in _looks(spell):
                now_ms = round((max(start, split) + at) * 1000)
                if beliefs is None:
                    beliefs = model.fit(history, now_ms=now_ms)
                else:
                    beliefs = beliefs.update(history, now_ms=now_ms)
                forecast = beliefs.predict(pool, now_ms=now_ms)
                rate = forecast.hazard_at(now_ms - begin_ms) / 3600
                spell.looks.append((at, rate))
        kind = LifeEnd.PREEMPTED if lost else LifeEnd.CENSORED
        history.ended(pool, str(number), at_ms=round(end * 1000), end=kind)
        if lost:
            history.tried(pool, at_ms=round(end * 1000), asked=1, granted=0)


def _looks(spell: Spell) -> list[float]:
    longest = float(spell.ends_s.max())
    later = np.arange(LOOKS_S[-1], longest + spell.age_s, 28_800.0)[1:]
    ages = np.concatenate([np.array(LOOKS_S), later]) - spell.age_s
    return [0.0, *(float(a) for a in ages if 0 < a < longest)]


def fixed(record: Record, interval: float, cost: float, restart: float, q: float) -> float:
    """Return the useful share of held time with one interval throughout."""
    ends = np.concatenate([s.ends_s for s in record.score])
    censored = np.repeat([s.censored for s in record.score], len(SHARES))
    saves = np.floor(np.maximum(ends - restart, 0) / (interval + cost))
    kept = saves * interval
    since = np.maximum(ends - restart - saves * (interval + cost), 0.0)
    done = kept + np.minimum(since, interval)
    told = told_work(done, kept, since, interval, cost)
    useful = np.where(censored, done, (1 - q) * kept + q * told)
    return float(useful.sum() / ends.sum())


def told_work(
    done: np.ndarray, kept: np.ndarray, since: np.ndarray, interval: float, cost: float
) -> np.ndarray:
    """Return the work kept when a notice came: the last save begins `cost` before the end.

    A periodic save that is under way then is let go on instead.
    """
    if cost > NOTICE_S:
        return kept
    late = np.maximum(since - interval, 0.0)  # time spent in a periodic save that did not end
    back = np.where(late > 0, cost - late, cost)
    return np.maximum(kept, done - np.maximum(back, 0.0))


def ours(record: Record, cost: float, restart: float, q: float, *, longest: float) -> float:
    """Return the useful share with the product's rule on forecasts from the past only.

    The notice share is learned as in a run: from the notices among the losses so far.
    """
    useful = total = 0.0
    for spell in record.score:
        n = spell.losses_before
        share = notice_share((round(q * n), n))
        segments = _segments(spell, cost, restart, share, longest)
        for end in spell.ends_s:
            useful += _kept(segments, float(end), cost, q, censored=spell.censored)
            total += float(end)
    return useful / total


def _segments(
    spell: Spell, cost: float, restart: float, share: float, longest: float
) -> list[tuple[float, float, float]]:
    """Return (begin, interval, work saved by then) for each stretch of one interval."""
    found, at, work = [], restart, 0.0
    last = float(spell.ends_s.max())
    for index, (_, rate) in enumerate(spell.looks):
        until = spell.looks[index + 1][0] if index + 1 < len(spell.looks) else last
        if until <= at:
            continue
        best = asynchronous(cost, rate, notice_share=share)
        interval = min(max(best, 1.0), longest)
        found.append((at, interval, work))
        saves = int(np.ceil((until - at) / (interval + cost)))
        at += saves * (interval + cost)
        work += saves * interval
    return found


def _kept(
    segments: list[tuple[float, float, float]], end: float, cost: float, q: float, *, censored: bool
) -> float:
    reached = [s for s in segments if s[0] <= end]
    if not reached:
        return 0.0
    begin, interval, work = reached[-1]
    saves = int((end - begin) / (interval + cost))
    kept = work + saves * interval
    since = end - begin - saves * (interval + cost)
    done = kept + min(since, interval)
    if censored:
        return done
    told = told_work(*(np.array(v) for v in (done, kept, since)), interval, cost)
    return (1 - q) * kept + q * float(told)


def clairvoyant(record: Record, cost: float, restart: float) -> float:
    """Return the useful share with one save just in time for each loss."""
    ends = np.concatenate([s.ends_s for s in record.score])
    censored = np.repeat([s.censored for s in record.score], len(SHARES))
    useful = np.maximum(ends - restart - np.where(censored, 0.0, cost), 0.0)
    return float(useful.sum() / ends.sum())
