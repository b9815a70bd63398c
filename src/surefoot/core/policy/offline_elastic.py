"""The offline optimum of an elastic job with a floor: what perfect foresight would hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.core.forecast.port import Floats
from surefoot.core.policy.terms import Curve


@dataclass(frozen=True, slots=True)
class Costs:
    """What an elastic fleet pays; prices per tick and VM, times in ticks."""

    spot: tuple[float, ...]
    """By region."""
    safe: float
    boot: float
    pause: float
    move: float = 0.0
    """Paid once for a change of region (the transfer)."""


@dataclass(frozen=True, slots=True)
class ElasticOptimum:
    """The course with the greatest value: work at the on-demand price, less cost."""

    cost: float
    work: float
    """Speed x ticks, in units of the curve."""
    sizes: NDArray[np.int64]
    """Spot VMs held in each tick, shape (ticks,)."""
    regions: NDArray[np.int64]

    @property
    def cost_per_work(self) -> float:
        """Cost of a unit of work; nan for none."""
        return self.cost / self.work if self.work else float("nan")


def elastic_optimum(
    supply: NDArray[np.int64], *, floor: int, ceiling: int, costs: Costs, shape: Curve
) -> ElasticOptimum:
    """Return the optimum by dynamic programming over (tick, region, spot VMs held).

    `supply`: shape (regions, ticks), spot VMs that can be held. On-demand fills up to the
    floor and is booted in time, as perfect foresight allows: it is paid for its boot but never
    missed. New spot VMs are paid for a boot in which they do nothing; a change of size pauses
    everybody. Of all courses that keep the floor, the one with the most
    (work x on-demand price - cost) is taken: a bound for every policy with that aim.
    """
    regions, ticks = supply.shape
    count = ceiling + 1
    gains, costs_of, work_of = _terms(regions, floor, ceiling, costs, shape)
    best = np.zeros(regions * count)
    chosen = np.zeros((ticks, regions * count), np.int32)
    sizes = np.tile(np.arange(count), regions)
    where = np.repeat(np.arange(regions), count)
    for tick in range(ticks - 1, -1, -1):
        possible = sizes <= supply[where, tick]
        onward = np.where(possible, best, -np.inf)
        values = gains + onward[None, :]
        chosen[tick] = np.argmax(values, axis=1)
        best = values[np.arange(len(best)), chosen[tick]]
    state, cost, work = int(np.argmax(best.reshape(regions, count)[:, 0])) * count, 0.0, 0.0
    path = np.zeros(ticks, np.int64)
    for tick in range(ticks):
        new = int(chosen[tick, state])
        cost += float(costs_of[state, new])
        work += float(work_of[state, new])
        path[tick] = state = new
    return ElasticOptimum(cost, work, sizes[path], where[path])


def _terms(
    regions: int, floor: int, ceiling: int, costs: Costs, shape: Curve
) -> tuple[Floats, Floats, Floats]:
    """Return (gain, cost, work) of a tick by state before and after, each (states, states)."""
    count = ceiling + 1
    sizes = np.tile(np.arange(count), regions)
    where = np.repeat(np.arange(regions), count)
    speed = np.array([shape.at(float(max(n, floor))) for n in range(count)])[sizes]
    slope = np.array([shape.gain(float(max(n - 1, 0)), 1.0) for n in range(count)])[sizes]
    same = where[:, None] == where[None, :]
    old = np.where(same, sizes[:, None], 0)
    added = np.clip(sizes[None, :] - old, 0, None)
    missing = np.clip(floor - sizes, 0, None)
    more_safe = np.clip(missing[None, :] - np.where(same, missing[:, None], 0), 0, None)
    changed = (sizes[:, None] != sizes[None, :]) | ~same
    work = speed[None, :] - changed * costs.pause * speed[None, :]
    idle = np.where(sizes[None, :] > floor, added * costs.boot * slope[None, :], 0.0)
    work = work - np.minimum(idle, work)
    price = np.array(costs.spot)[where]
    cost = price * sizes + costs.safe * missing
    total = cost[None, :] + more_safe * costs.safe * costs.boot + (~same) * costs.move
    unit = costs.safe
    return unit * work - total, total, work
