"""All pools side by side: their digests, their sums at many memories, on a common grid of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from surefoot.core.forecast.evidence import Evidence, Rules
from surefoot.core.forecast.features import HALF_LIVES_H, Ints, Raw, faded
from surefoot.core.forecast.port import Floats
from surefoot.core.market import Pool
from surefoot.core.trace import History
from surefoot.core.units import MS_PER_HOUR

STEP_MS = 900_000
"""Spacing of the grid on which the sums are rolled and rows for learning are taken."""
STEP_H = STEP_MS / MS_PER_HOUR
STEPS_PER_H = round(1.0 / STEP_H)

BAND_FACTOR: tuple[float, ...] = (0.4, 0.8, 1.2, 1.6, 2.5)
"""Risk of an AWS interruption band (0: under 5 %, ... 4: over 20 % a month) over the usual."""
BAND_WORTH_H, RATE_WORTH_H = 2.0, 10.0
"""Hours of watching that a band, or a told preemption rate, is worth."""

_EMPTY = np.zeros((0, 5, len(HALF_LIVES_H)))


@dataclass(slots=True)
class Watch:
    """The state of n pools. `sums`: (n, 5, 6) at the last grid instant `grid_ms`.

    `levels`: (n, steps per hour), the level at the last grid instants, oldest first.
    """

    rules: Rules
    index: dict[Pool, int] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    sums: Floats = field(default_factory=lambda: _EMPTY.copy())
    levels: Floats = field(default_factory=lambda: np.zeros((0, STEPS_PER_H)))
    region: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    regions: dict[tuple[str, str], int] = field(default_factory=dict)
    grid_ms: int = -1

    def copied(self) -> Watch:
        """Return a copy; digests are shared until `_own` replaces one that changes."""
        return Watch(
            self.rules,
            dict(self.index),
            list(self.evidence),
            self.sums.copy(),
            self.levels.copy(),
            self.region.copy(),
            dict(self.regions),
            self.grid_ms,
        )

    def news(self, history: History, now_ms: int) -> bool:
        """Whether there is a fact not taken in, or a grid instant has passed."""
        if 0 <= self.grid_ms <= now_ms - STEP_MS:
            return True
        return any(
            pool not in self.index or self.evidence[self.index[pool]].behind(record)
            for pool, record in history.pools.items()
        )

    def absorb(self, history: History, now_ms: int, on_step: Callable[[Watch, int], None]) -> None:
        """Take in all facts in order of time; call `on_step` at every grid instant passed."""
        self._admit(history)
        if self.grid_ms < 0:
            first = _first_ms(history)
            if first is None:
                return
            self.grid_ms = min(first, now_ms)
        records = [(self.index[pool], record) for pool, record in history.pools.items()]
        self.evidence = [
            e.copied() if self.grid_ms + STEP_MS <= now_ms else e for e in self.evidence
        ]
        while self.grid_ms + STEP_MS <= now_ms:
            at_ms = self.grid_ms + STEP_MS
            for i, record in records:
                if self.evidence[i].behind(record):
                    self.evidence[i].take(record, self.rules, at_ms)
            self._roll(at_ms)
            on_step(self, at_ms)
        for i, record in records:
            if self.evidence[i].behind(record):
                self.evidence[i] = self.evidence[i].copied()
                self.evidence[i].take(record, self.rules)

    def raw(self, rows: Sequence[int], now_ms: int) -> Raw:
        """Return the state of all pools now, with empty rows for each -1 in `rows` appended.

        The sums run to `now_ms`: what happened since the grid instant is added as it is.
        """
        empty = sum(1 for i in rows if i < 0)
        n = len(self.evidence)
        gap_h = max(0, now_ms - self.grid_ms) / MS_PER_HOUR if self.grid_ms >= 0 else 0.0
        sums = np.zeros((n + empty, 5, len(HALF_LIVES_H)))
        scalars = np.zeros((5, n + empty))
        if n:
            flows = np.array([_flow_to(e, now_ms) for e in self.evidence])
            sums[:n] = faded(self.sums, gap_h) + flows[:, :, None]
            scalars[:, :n] = np.array([self._scalars(e, now_ms) for e in self.evidence]).T
        run_h, since_h, level, *hint = scalars
        rise = np.zeros(n + empty)
        rise[:n] = level[:n] - self.levels[:, 0]
        since_h = np.where(np.isnan(since_h), sums[:, 4, 0], since_h)
        region = np.append(self.region, len(self.regions) + np.arange(empty))
        moment = np.zeros(n + empty, dtype=np.int64)
        return Raw(sums, run_h, since_h, level, rise, region, moment, np.array(hint).T)

    def _scalars(self, e: Evidence, now_ms: int) -> tuple[float, float, float, float, float]:
        level = e.level
        run_ms = now_ms - e.up_ms if e.up_ms is not None and level > 0 else 0
        since = float("nan")
        if e.last_loss_ms is not None:
            since = max(0, now_ms - e.last_loss_ms) / MS_PER_HOUR
        losses, hours = hint_of(e) if e.signals else (0.0, 0.0)
        return max(0, run_ms) / MS_PER_HOUR, since, level, losses, hours

    def _admit(self, history: History) -> None:
        new = [pool for pool in history.pools if pool not in self.index]
        if not new:
            return
        for pool in new:
            self.index[pool] = len(self.evidence)
            self.evidence.append(Evidence())
            number = self.regions.setdefault((pool.provider, pool.region), len(self.regions))
            self.region = np.append(self.region, number)
        self.sums = np.concatenate([self.sums, np.zeros((len(new), *self.sums.shape[1:]))])
        self.levels = np.concatenate([self.levels, np.zeros((len(new), STEPS_PER_H))])

    def _roll(self, at_ms: int) -> None:
        flows = np.empty((len(self.evidence), 5))
        levels = np.empty(len(self.evidence))
        for i, e in enumerate(self.evidence):
            if e.flow.from_ms >= 0:
                e.stream(at_ms)
            flow = e.flow
            flows[i] = flow.row()
            levels[i] = e.level
            flow.moments = flow.shares = flow.held_h = flow.up_h = flow.known_h = 0.0
        self.sums = faded(self.sums, STEP_H) + flows[:, :, None]
        self.levels = np.concatenate([self.levels[:, 1:], levels[:, None]], axis=1)
        self.grid_ms = at_ms


def hint_of(evidence: Evidence) -> tuple[float, float]:
    """Return (losses, hours) that the provider's standing hints about the rate are worth."""
    losses = hours = 0.0
    for signal in evidence.signals:
        if signal.kind == "interruption_band":
            band = min(max(int(signal.value), 0), len(BAND_FACTOR) - 1)
            losses, hours = losses + 0.3 * BAND_FACTOR[band] * BAND_WORTH_H, hours + BAND_WORTH_H
        elif signal.kind == "preemption_rate" and signal.value >= 0:
            losses, hours = losses + signal.value * RATE_WORTH_H, hours + RATE_WORTH_H
    return losses, hours


def _flow_to(e: Evidence, now_ms: int) -> tuple[float, float, float, float, float]:
    flow = e.flow
    gap_h = (now_ms - flow.from_ms) / MS_PER_HOUR
    if flow.from_ms < 0 or gap_h <= 0:
        return flow.row()
    held = gap_h if e.alive else 0.0
    return (
        flow.moments,
        flow.shares,
        flow.held_h + held,
        flow.up_h + gap_h * e.level,
        flow.known_h + gap_h,
    )


def _first_ms(history: History) -> int | None:
    firsts = [
        at_ms
        for record in history.pools.values()
        for at_ms in (
            *(c[0] for c in record.changed[:1]),
            *(t.at_ms for t in record.launches[:1]),
        )
    ]
    return min(firsts, default=None)
