"""The cheapest way to finish one gang's work by a deadline, by dynamic programming over forecasts.

State: time left, work left, what the gang runs on with its remaining overhead, and the market's
spell (window or drought) with its age. Spells are semi-Markov with rates by age (theory notes,
D.6). Everything is counted in ticks of time and units of work, `units_per_tick` of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from surefoot.core.forecast.port import Floats

LATE = 1e6
"""Price of a unit of work that misses the deadline, over the on-demand price."""

Actions = NDArray[np.int8]


class Mode(IntEnum):
    """What the gang runs on."""

    IDLE = 0
    SPOT = 1
    SAFE = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One gang's remaining problem, hashable so that solutions can be kept.

    `ticks` and `units`: how much time and work the table covers. `switch_units`: overhead of
    beginning on a VM, paid and useless. `spot`, `safe`: cost of a tick. `window`, `drought`:
    odds that a spell ends within a tick, by age bin; `advance`: odds of moving on to the next
    bin. `elsewhere`: odds that after a loss another pool has a window.
    """

    ticks: int
    units: int
    units_per_tick: int
    switch_units: int
    spot: float
    safe: float
    window: tuple[float, ...]
    drought: tuple[float, ...]
    advance: tuple[float, ...]
    elsewhere: float = 0.0

    @property
    def overheads(self) -> tuple[int, ...]:
        """The amounts of overhead that can remain, rising from 0."""
        left, amounts = self.switch_units, [0]
        while left > 0:
            amounts.append(left)
            left -= min(left, self.units_per_tick)
        return tuple(sorted(set(amounts)))

    def least_left(self, tick: int) -> int:
        """Return the least work that can be left with `tick` ticks to go.

        One tick more than the ticks gone by may have been worked, for decisions between ticks.
        """
        return max(0, self.units - (self.ticks - tick + 1) * self.units_per_tick)


@dataclass(frozen=True, slots=True)
class Table:
    """What to do in every state, and what the best course is expected to cost.

    Index by ticks to go, then (overhead), work left, spell: windows by age, then droughts.
    """

    problem: Problem
    idle: Actions
    """Shape (ticks + 1, units + 1, spells)."""
    spot: Actions
    """Shape (ticks + 1, overheads, units + 1, windows)."""
    safe: Actions
    """Shape (ticks + 1, overheads, units + 1, spells)."""
    cost: Floats
    """Shape (units + 1, spells): expected cost from idle with all ticks to go."""

    def best(self, ticks: int, units: int, mode: Mode, *, overhead: int, spell: int) -> Mode:
        """Return the best mode for the next tick; both counts are cut to the table's size."""
        tick = min(max(ticks, 0), self.problem.ticks)
        work = min(max(units, self.problem.least_left(tick)), self.problem.units)
        amounts = self.problem.overheads
        index = min(int(np.searchsorted(amounts, overhead)), len(amounts) - 1)
        match mode:
            case Mode.SPOT if spell < len(self.problem.window):
                return Mode(int(self.spot[tick, index, work, spell]))
            case Mode.SAFE:
                return Mode(int(self.safe[tick, index, work, spell]))
            case _:
                return Mode(int(self.idle[tick, work, spell]))


def transitions(problem: Problem) -> Floats:
    """Return odds between spells in one tick, shape (spells, spells): windows, then droughts."""
    size = len(problem.window)
    odds = np.zeros((2 * size, 2 * size))
    for begin, other, ends in ((0, size, problem.window), (size, 0, problem.drought)):
        for age, end in enumerate(ends):
            row = begin + age
            odds[row, other] += end
            odds[row, row] += (1 - end) * (1 - problem.advance[age])
            odds[row, min(row + 1, begin + size - 1)] += (1 - end) * problem.advance[age]
    return odds


@dataclass(frozen=True, slots=True)
class _Step:
    """What a tick does at each remaining overhead: where it leads and what share is paid."""

    after: NDArray[np.intp]
    """Index of the overhead left after the tick, shape (overheads, 1)."""
    moved: NDArray[np.intp]
    """Work left after the tick, shape (overheads, units + 1)."""
    paid: Floats
    """Share of the tick that is paid, less than 1 where the work ends within it; as `moved`,
    with a last axis of 1."""


def _step(problem: Problem) -> _Step:
    amounts, tick = problem.overheads, problem.units_per_tick
    work = np.arange(problem.units + 1)
    after, moved, paid = [], [], []
    for amount in amounts:
        used = min(amount, tick)
        gain = tick - used
        after.append(amounts.index(amount - used))
        moved.append(np.maximum(work - gain, 0))
        ends = (work <= gain) & (gain > 0)
        paid.append(np.where(ends, (used + work) / tick, 1.0))
    return _Step(np.array(after)[:, None], np.stack(moved), np.stack(paid)[:, :, None])


@lru_cache(maxsize=4)
def solve(problem: Problem) -> Table:
    """Return the best course by backward induction; pure, so that solutions may be kept.

    Only work that can be left at a tick, and can still be done in time, is looked at: the
    cost is slack x units x overheads x spells operations on arrays, not time x units.
    """
    size, step = len(problem.window), _step(problem)
    count, rows, tick_units = len(problem.overheads), problem.units + 1, problem.units_per_tick
    spare = problem.switch_units + tick_units  # so that the late, too, hurry
    table = _blank(problem)
    odds = transitions(problem)
    onward = odds.T.copy()
    stays, after_loss = onward[:size, :size], np.zeros((2 * size, size))
    after_loss[size] = odds[:size, size] * (1 - problem.elsewhere)
    after_loss[0] = odds[:size, size] * problem.elsewhere
    late = (np.arange(rows)[:, None] / tick_units + 1) * problem.safe * LATE
    late[0] = 0.0
    idle = table.cost
    idle[:] = late
    spot = np.repeat(late[None], count, 0) + np.zeros((1, 1, size))
    safe = np.repeat(late[None], count, 0) + np.zeros((1, 1, 2 * size))
    for tick in range(1, problem.ticks + 1):
        low = problem.least_left(tick)
        high = min(problem.units, tick * tick_units + spare) + 1
        if low >= high:
            continue
        base, band = problem.least_left(tick - 1), slice(low, high)
        where = step.moved[:, band] - base
        source = slice(base, high)
        wait = idle[source] @ onward
        kept = spot[:, source] @ stays + idle[source] @ after_loss
        held = safe[:, source] @ onward
        on_spot = problem.spot * step.paid[:, band] + kept[step.after, where]
        on_safe = problem.safe * step.paid[:, band] + held[step.after, where]
        best, action = wait[low - base :], table.idle[tick, band]
        action[:] = Mode.IDLE
        _take(best, action, on_safe[-1], Mode.SAFE)
        _take(best[:, :size], action[:, :size], on_spot[-1], Mode.SPOT)
        idle[band] = best
        spot[:, band] = _stay(
            best[:, :size], action[:, :size], on_spot, table.spot[tick, :, band], Mode.SPOT
        )
        safe[:, band] = _stay(best, action, on_safe, table.safe[tick, :, band], Mode.SAFE)
        if low == 0:
            idle[0], spot[:, 0], safe[:, 0] = 0.0, 0.0, 0.0
    return table


def _blank(problem: Problem) -> Table:
    """Return a table that says on-demand everywhere: right where work is late already."""
    ticks, rows, size = problem.ticks + 1, problem.units + 1, len(problem.window)
    count = len(problem.overheads)
    return Table(
        problem,
        idle=np.full((ticks, rows, 2 * size), Mode.SAFE, np.int8),
        spot=np.full((ticks, count, rows, size), Mode.SAFE, np.int8),
        safe=np.full((ticks, count, rows, 2 * size), Mode.SAFE, np.int8),
        cost=np.empty((rows, 2 * size)),
    )


def _take(best: Floats, action: Actions, cost: Floats, mode: Mode) -> None:
    """Write `mode` wherever its cost is less; both arrays are changed."""
    action[cost < best] = mode
    np.minimum(best, cost, out=best)


def _stay(best: Floats, action: Actions, cost: Floats, out: Actions, mode: Mode) -> Floats:
    """Return the values of going on in `mode`, at each overhead, where that is no dearer."""
    out[:] = np.where(cost <= best, np.int8(mode), action)
    return np.minimum(cost, best)
