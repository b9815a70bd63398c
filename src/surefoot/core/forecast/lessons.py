"""Rows for learning: what was seen at a grid instant, kept until its future is known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.core.forecast.expert import BINS, HORIZONS_H, Batch
from surefoot.core.forecast.features import (
    AGE_BINS_H,
    Features,
    Ints,
    Raw,
    age_rows,
    features,
)
from surefoot.core.forecast.port import Floats
from surefoot.core.forecast.watch import STEP_H, STEPS_PER_H, Watch
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd
from surefoot.core.units import MS_PER_HOUR

STEPS_AHEAD = round(HORIZONS_H[-1] * STEPS_PER_H)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One grid instant: the state of all pools, and the VMs held in them by age bin."""

    at_ms: int
    raw: Raw
    held: tuple[int, ...]
    """The pool of each row: a row is the VMs of one pool in one age bin."""
    keys: tuple[tuple[str, ...], ...]
    age_x: Floats
    bins: Floats


def snapshot(watch: Watch, at_ms: int) -> Snapshot | None:
    """Return the instant's rows; None when no VM is held anywhere."""
    groups: dict[tuple[int, int], list[str]] = {}
    ages: dict[tuple[int, int], float] = {}
    for pool, one in enumerate(watch.evidence):
        for key, born_ms in one.alive.items():
            age_h = max(0, at_ms - born_ms) / MS_PER_HOUR
            group = (pool, bisect_right(AGE_BINS_H, age_h + 1e-9) - 1)
            groups.setdefault(group, []).append(key)
            ages[group] = ages.get(group, 0.0) + age_h
    if not groups:
        return None
    mean = np.array([ages[group] / len(keys) for group, keys in groups.items()])
    bins = np.zeros((len(groups), BINS))
    bins[np.arange(len(groups)), [b for _, b in groups]] = 1.0
    held = tuple(pool for pool, _ in groups)
    keys = tuple(tuple(k) for k in groups.values())
    return Snapshot(at_ms, watch.raw((), at_ms), held, keys, age_rows(mean), bins)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A snapshot whose future is known. `lost`, `weight`: (rows, horizons)."""

    seen: Snapshot
    lost: Floats
    weight: Floats


def label(seen: Snapshot, history: History, pools: Sequence[Pool]) -> Labelled:
    """Return the snapshot with the share of its VMs that was lost within each horizon.

    VMs that we let go, or that failed, within a horizon say nothing about it.
    """
    lost = np.zeros((len(seen.held), len(HORIZONS_H)))
    weight = np.zeros_like(lost)
    spans_ms = [round(h * MS_PER_HOUR) for h in HORIZONS_H]
    for row, (pool, keys) in enumerate(zip(seen.held, seen.keys, strict=True)):
        lives = history.pools[pools[pool]].lives
        for h, span_ms in enumerate(spans_ms):
            gone = known = 0
            for key in keys:
                life = lives.get(key)
                if life is None:
                    continue
                ended = life.end_ms is not None and life.end_ms <= seen.at_ms + span_ms
                if ended and life.end is not LifeEnd.PREEMPTED:
                    continue
                known += 1
                gone += ended
            if known:
                lost[row, h], weight[row, h] = gone / known, known
    return Labelled(seen, lost, weight)


def batch_of(lessons: Sequence[Labelled], usual_vms: float, limit: int) -> tuple[Batch, Ints]:
    """Return the lessons as a batch of at most `limit` rows (evenly thinned), and their pools.

    A row counts in proportion to its VMs over the usual number, and for as much of its horizon
    as the grid step is: rows of overlapping futures are not independent.
    """
    every = features(_stacked([one.seen.raw for one in lessons]))
    sizes = [len(one.seen.raw.sums) for one in lessons]
    starts = np.cumsum([0, *sizes[:-1]])
    pools = np.concatenate([np.array(one.seen.held, dtype=np.int64) for one in lessons])
    rows = pools + np.repeat(starts, [len(one.seen.held) for one in lessons])
    many = len(rows)
    keep = np.unique(np.linspace(0, many - 1, min(limit, many)).astype(np.int64))
    rows = rows[keep]
    overlap = np.minimum(1.0, STEP_H / np.array(HORIZONS_H)) * (many / len(keep))
    batch = Batch(
        Features(every.x[rows], every.rates[rows], every.since_h[rows]),
        np.concatenate([one.seen.age_x for one in lessons])[keep],
        np.concatenate([one.seen.bins for one in lessons])[keep],
        np.concatenate([one.lost for one in lessons])[keep],
        np.concatenate([one.weight for one in lessons])[keep] / usual_vms * overlap,
    )
    return batch, pools[keep]


def _stacked(raws: Sequence[Raw]) -> Raw:
    """Return several moments as one table; siblings stay those of the same moment."""
    regions = max(int(r.region.max(initial=0)) for r in raws) + 1
    return Raw(
        np.concatenate([r.sums for r in raws]),
        np.concatenate([r.run_h for r in raws]),
        np.concatenate([r.since_h for r in raws]),
        np.concatenate([r.level for r in raws]),
        np.concatenate([r.rise for r in raws]),
        np.concatenate([r.region + i * regions for i, r in enumerate(raws)]),
        np.concatenate([np.full(len(r.sums), i, dtype=np.int64) for i, r in enumerate(raws)]),
        np.concatenate([r.hint for r in raws]),
    )
