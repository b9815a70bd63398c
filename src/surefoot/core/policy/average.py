"""A floor meant on average: a bank of surplus work that bad hours may draw on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.fleet import InstanceState
from surefoot.core.job import FloorKind, Job
from surefoot.core.plan import Memory
from surefoot.core.policy.terms import curve, switch_ms
from surefoot.core.units import hours


@dataclass(frozen=True, slots=True)
class Bank:
    """Work beyond the floor so far, in VM-hours' worth (negative: owed), and the new memory."""

    surplus_h: float
    memory: Memory


def bank(job: Job, seen: Observation) -> Bank:
    """Return the bank now: the surplus at the last decision's speed is added since then.

    The surplus is cut to what the floor asks for in one window, either way: the deficit queue
    of Lyapunov's drift-plus-penalty rule (theory notes, D.4c), with its sign turned.
    """
    floor = job.throughput.floor
    old: Mapping[str, float] = seen.state.memory
    most = floor * hours(job.throughput.window_ms)
    since = old.get("bank.at", float(seen.now_ms))
    gained = old.get("bank.rate", 0.0) * hours(max(0, round(seen.now_ms - since)))
    surplus = min(most, max(-most, old.get("bank.h", 0.0) + gained))
    working = seen.state.fleet.speed(InstanceState.READY, InstanceState.NOTICED)
    rate = curve(job).at(working) - floor
    kept = {"bank.h": surplus, "bank.at": float(seen.now_ms), "bank.rate": rate}
    return Bank(surplus, kept)


def floor_now(job: Job, seen: Observation, surplus_h: float, shortage_h: float) -> float:
    """Return the floor to keep now, VMs' worth.

    A surplus is spent evenly over the shortage that is expected (`shortage_h`); what is owed is
    worked off within an eighth of the window.
    """
    floor, ceiling = job.throughput.floor, job.throughput.ceiling
    if job.throughput.kind is not FloorKind.AVERAGE:
        return floor
    short = max(shortage_h, 2 * hours(switch_ms(seen)), 1e-6)
    if surplus_h >= 0:
        return max(0.0, floor - surplus_h / short)
    pay_back_h = max(hours(job.throughput.window_ms) / 8, short)
    return min(ceiling, floor - surplus_h / pay_back_h)
