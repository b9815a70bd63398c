"""What the learning models look at: decayed sums of every pool turned into numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.core.forecast.port import Floats

Ints = NDArray[np.int64]

HALF_LIVES_H: tuple[float, ...] = (float("inf"), 72.0, 24.0, 6.0, 1.0, 0.25)
MOMENTS, SHARES, HELD, UP, KNOWN = range(5)
"""Rows of the sums: moments of loss, shares lost, hours held, hours up, hours known."""

PRIOR_RATE_PER_H = 0.3
PRIOR_UP = 0.6
CHAIN_H: tuple[float, ...] = (2.0, 2.0, 2.0, 2.0, 1.0, 0.5)
"""Hours that the belief at the next longer memory is worth at each memory."""
FAST_H: tuple[float, ...] = (1.0, 6.0)
SIBLING_MEMORIES: tuple[int, ...] = (0, 4, 3)
"""Memories at which siblings count: the long run, 1 h, 6 h."""

AGE_BINS_H: tuple[float, ...] = (
    *(0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 22.0),
    *(round(22.7 + 0.1 * k, 1) for k in range(19)),
    *(26.0, 30.0, 48.0, 96.0),
)
"""Ages at which the learned hazards step; fine round 24 h, where some products end a VM."""
AGE_STEPS_H: tuple[float, ...] = (
    *(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 22.0, 22.9, 23.4, 23.65, 23.9, 24.4),
)

POOL_NAMES: tuple[str, ...] = (
    *("one", "all pools", "long run", "72 h", "24 h", "6 h", "1 h", "15 min"),
    *("window age", "since loss", "level", "rising", "up", "up 24 h", "up 6 h", "up 1 h"),
    *("region 1 h", "region up 1 h", "region 6 h", "region up 6 h"),
    *("others 1 h", "others up 1 h", "others 6 h", "others up 6 h"),
    *("window age squared", "rate squared", "full", "low"),
)
AGE_NAMES: tuple[str, ...] = ("log age", *(f"age over {a:g} h" for a in AGE_STEPS_H))


@dataclass(frozen=True, slots=True)
class Raw:
    """The state of n pools at one or several moments, before it becomes features.

    `sums`: (n, 5, 6). `region`, `moment`: (n,) group numbers: rows of one moment (and region)
    are each other's siblings. `hint`: (n, 2): losses and hours that provider signals are worth.
    """

    sums: Floats
    run_h: Floats
    since_h: Floats
    level: Floats
    rise: Floats
    region: Ints
    moment: Ints
    hint: Floats


@dataclass(frozen=True, slots=True)
class Features:
    """`x`: (n, len(POOL_NAMES)). `rates`: (n, 6), losses per VM-hour at each memory."""

    x: Floats
    rates: Floats
    since_h: Floats


def age_rows(ages_h: Floats) -> Floats:
    """Return the age features of VMs of these ages, shape (len(ages), len(AGE_NAMES))."""
    steps = ages_h[:, None] + 1e-9 >= np.array(AGE_STEPS_H)
    return np.column_stack([np.log(ages_h + 0.1), steps.astype(np.float64)])


def bin_of(ages_h: Floats) -> Ints:
    """Return the age bin of each age."""
    edges = np.array(AGE_BINS_H)
    return np.asarray(np.searchsorted(edges, ages_h + 1e-9, "right") - 1, dtype=np.int64)


def bin_centres() -> Floats:
    """Return a typical age of each bin: its middle, or its edge for the open last one."""
    edges = np.array(AGE_BINS_H)
    return np.append((edges[:-1] + edges[1:]) / 2, edges[-1] * 1.25)


BIN_ROWS = age_rows(bin_centres())
"""Age features of each bin's typical age, shape (bins, len(AGE_NAMES))."""


def faded(sums: Floats, gap_h: float) -> Floats:
    """Return the sums after `gap_h` hours in which nothing happened."""
    return np.asarray(sums * np.exp2(-gap_h / np.array(HALF_LIVES_H)), dtype=np.float64)


def features(raw: Raw) -> Features:
    """Return the features of each row. All logs are natural; rates are losses per VM-hour."""
    shares, held = raw.sums[:, SHARES], raw.sums[:, HELD]
    others = _others(raw)
    n = len(raw.sums)
    base = (others["all", 0][:, 0] + PRIOR_RATE_PER_H * 5.0) / (others["all", 0][:, 1] + 5.0)
    rates = np.empty((n, len(HALF_LIVES_H)))
    before = base
    for k, worth_h in enumerate(CHAIN_H):
        losses, hours = shares[:, k] + worth_h * before, held[:, k] + worth_h
        if k == 0:
            losses, hours = losses + raw.hint[:, 0], hours + raw.hint[:, 1]
        rates[:, k] = before = losses / hours
    log_rates = np.log(rates)
    log_base = np.log(base)
    steps = np.diff(log_rates, axis=1, prepend=log_base[:, None])
    log_run = np.log(raw.run_h + 0.1)
    slow = log_rates[:, 2] + 1.0
    columns = [
        np.ones(n),
        log_base,
        *steps.T,
        log_run,
        np.log(raw.since_h + 0.1),
        raw.level,
        raw.rise,
        *_up_columns(raw.sums),
        *_sibling_columns(others),
        log_run * log_run / 4.0,
        slow * slow / 2.0,
        (raw.level >= 0.999).astype(np.float64),
        (raw.level < 0.3).astype(np.float64),
    ]
    return Features(np.column_stack(columns), rates, raw.since_h)


def _up_columns(sums: Floats) -> list[Floats]:
    up, known = sums[:, UP], sums[:, KNOWN]
    level = (up[:, 0] + PRIOR_UP * 12.0) / (known[:, 0] + 12.0)
    columns = [level - PRIOR_UP]
    for k in (2, 3, 4):
        worth_h = HALF_LIVES_H[k] * 0.3
        fast = (up[:, k] + level * worth_h) / (known[:, k] + worth_h)
        columns.append(fast - level)
        level = fast
    return columns


def _others(raw: Raw) -> dict[tuple[str, int], Floats]:
    """Return each row's siblings' sums [shares, held, up, known], by scope and memory."""
    out: dict[tuple[str, int], Floats] = {}
    own = raw.sums[:, 1:, list(SIBLING_MEMORIES)].reshape(len(raw.sums), -1)
    width = own.shape[1]
    for scope, group in (("region", raw.region), ("all", raw.moment)):
        many = int(group.max()) + 1 if len(group) else 0
        cells = (group[:, None] * width + np.arange(width)).ravel()
        total = np.bincount(cells, own.ravel(), many * width).reshape(many, width)
        rest = np.maximum(total[group] - own, 0.0).reshape(-1, 4, len(SIBLING_MEMORIES))
        out.update({(scope, k): rest[:, :, i] for i, k in enumerate(SIBLING_MEMORIES)})
    return out


def _sibling_columns(others: dict[tuple[str, int], Floats]) -> list[Floats]:
    columns: list[Floats] = []
    for scope in ("region", "all"):
        long_run = others[scope, 0]
        base = (long_run[:, 0] + 1.0) / (long_run[:, 1] + 1.0 / PRIOR_RATE_PER_H)
        level = (long_run[:, 2] + 3.0) / (long_run[:, 3] + 5.0)
        for k, worth_h in zip((4, 3), FAST_H, strict=True):
            near = others[scope, k]
            rate = (near[:, 0] + worth_h * base) / (near[:, 1] + worth_h)
            columns.append(np.log(rate / base))
            columns.append((near[:, 2] + worth_h * level) / (near[:, 3] + worth_h) - level)
    return columns
