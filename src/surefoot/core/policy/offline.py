"""The offline optimum of a gang with a deadline: what perfect foresight would pay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.core.forecast.port import Floats
from surefoot.core.policy.gang import Mode


@dataclass(frozen=True, slots=True)
class GangOptimum:
    """Least cost in the prices' unit (inf when no course is in time), and the course itself."""

    cost: float
    modes: tuple[Mode, ...]
    """What the gang runs on in each tick, until the work is done."""


def gang_optimum(
    available: NDArray[np.bool_],
    *,
    units: int,
    units_per_tick: int,
    switch_units: int,
    spot: Floats | float,
    safe: float,
) -> GangOptimum:
    """Return the optimum by dynamic programming over (time, work, mode, overhead).

    D.4d of the theory notes: a change of mode costs `switch_units` of paid, useless work, also
    after a preemption; spot only in ticks of `available`. `spot`, `safe`: cost of a tick (spot
    may differ by tick). The last tick is paid only as far as it is used.
    """
    ticks, rows = len(available), units + 1
    prices = np.broadcast_to(np.asarray(spot, dtype=np.float64), (ticks,))
    amounts = _amounts(switch_units, units_per_tick)
    count = len(amounts)
    after, moved, paid = _moves(amounts, units, units_per_tick)
    idle = np.full(rows, np.inf)
    idle[0] = 0.0
    values = {m: np.repeat(idle[None], count, 0) for m in (Mode.SPOT, Mode.SAFE)}
    chosen = np.zeros((ticks, 2 * count + 1, rows), np.int8)
    for tick in range(ticks - 1, -1, -1):
        on = {Mode.SAFE: safe * paid + values[Mode.SAFE][after, moved]}
        on[Mode.SPOT] = prices[tick] * paid + values[Mode.SPOT][after, moved]
        if not available[tick]:
            on[Mode.SPOT] = np.full((count, rows), np.inf)
        best, action = idle.copy(), chosen[tick, 0]
        for mode in (Mode.SPOT, Mode.SAFE):
            action[on[mode][-1] < best] = mode
            best = np.minimum(best, on[mode][-1])
        best[0] = 0.0
        idle = best
        for index, mode in enumerate((Mode.SPOT, Mode.SAFE)):
            stays = on[mode] <= best
            slot = slice(1 + index * count, 1 + (index + 1) * count)
            chosen[tick, slot] = np.where(stays, np.int8(mode), action)
            values[mode] = np.where(stays, on[mode], best)
            values[mode][:, 0] = 0.0
    modes = _course(chosen, amounts, after, moved) if np.isfinite(idle[units]) else ()
    return GangOptimum(float(idle[units]), modes)


def _amounts(switch_units: int, units_per_tick: int) -> tuple[int, ...]:
    left, amounts = switch_units, {0}
    while left > 0:
        amounts.add(left)
        left -= min(left, units_per_tick)
    return tuple(sorted(amounts))


def _moves(
    amounts: tuple[int, ...], units: int, units_per_tick: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Return by overhead: the overhead after a tick, the work after it, the share paid."""
    work = np.arange(units + 1)
    after, moved, paid = [], [], []
    for amount in amounts:
        used = min(amount, units_per_tick)
        gain = units_per_tick - used
        after.append(amounts.index(amount - used))
        moved.append(np.maximum(work - gain, 0))
        ends = (work <= gain) & (gain > 0)
        paid.append(np.where(ends, (used + work) / units_per_tick, 1.0))
    return np.array(after)[:, None], np.stack(moved), np.stack(paid)


def _course(
    chosen: NDArray[np.int8],
    amounts: tuple[int, ...],
    after: NDArray[np.intp],
    moved: NDArray[np.intp],
) -> tuple[Mode, ...]:
    """Follow the choices from idle with all work left."""
    count, work, mode, overhead = len(amounts), chosen.shape[2] - 1, Mode.IDLE, 0
    modes: list[Mode] = []
    for tick in range(chosen.shape[0]):
        if work == 0:
            break
        slot = 0 if mode is Mode.IDLE else 1 + (mode - 1) * count + overhead
        new = Mode(int(chosen[tick, slot, work]))
        if new is not mode:
            overhead = count - 1
        mode = new
        modes.append(mode)
        if mode is not Mode.IDLE:
            work, overhead = int(moved[overhead, work]), int(after[overhead, 0])
    return tuple(modes)
