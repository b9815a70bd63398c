"""The job's terms as figures for a policy: what may be bought, how much, until when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.fleet import HELD, STAYING, Instance, InstanceState
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Launch, Memory, Plan
from surefoot.core.units import MS_PER_HOUR, hours, usd

EPS = 1e-9

BILLED = tuple(sorted(HELD | STAYING, key=lambda s: s.value))


@dataclass(frozen=True, slots=True)
class Curve:
    """Training speed against VMs' worth, concave and piecewise linear, speed(1 worth) scaled.

    `points` are (worth, speed) with rising worth, starting at (0, 0). Beyond the last point the
    last slope goes on, and never rises. Without points speed equals worth.
    """

    points: tuple[tuple[float, float], ...] = ()

    def at(self, worth: float) -> float:
        """Return the speed of `worth` VMs' worth, in units of the curve."""
        if not self.points or worth <= 0:
            return max(worth, 0.0)
        before = self.points[0]
        for after in self.points[1:]:
            if worth <= after[0] or after is self.points[-1]:
                slope = (after[1] - before[1]) / (after[0] - before[0])
                return before[1] + slope * (worth - before[0])
            before = after
        return worth * before[1] / before[0] if before[0] else worth

    def gain(self, worth: float, more: float) -> float:
        """Return the speed that `more` worth adds to `worth`."""
        return self.at(worth + more) - self.at(worth)

    def needed(self, speed: float) -> float:
        """Return the smallest worth with at least `speed`; inf where no worth reaches it."""
        low, high = 0.0, max(1.0, speed)
        while self.at(high) < speed:
            high *= 2
            if high > 1e9:
                return math.inf
        for _ in range(60):
            mid = (low + high) / 2
            low, high = (low, mid) if self.at(mid) >= speed else (mid, high)
        return high


LINEAR = Curve()


def curve(job: Job) -> Curve:
    """Return the job's scaling curve, in VMs' worth: one worth at the asked size counts one.

    The asked size (`num_nodes`, else the floor) is the reference, so a fleet of the asked size
    has the speed of as many VMs, and larger fleets have less than proportional speed.
    """
    if not job.work.scaling:
        return LINEAR
    points = tuple(sorted((w, s) for w, s in job.work.scaling if w > 0 and s > 0))
    if not points:
        return LINEAR
    base = Curve(((0.0, 0.0), *points))
    asked = float(job.num_nodes or job.throughput.floor or 1)
    unit = base.at(asked) / asked
    return Curve(((0.0, 0.0), *((w, s / unit) for w, s in points)))


def steps_left(job: Job, seen: Observation) -> int | None:
    """Return the steps still to be done; None for open-ended work."""
    total = job.work.total_steps
    return None if total is None else max(0, total - seen.state.progress.steps_done)


def steps_per_h(job: Job, seen: Observation) -> float:
    """Return steps per hour for each unit of the curve's speed, measured where possible.

    Right after a change of members the measured step time is still that of the group before:
    then the rate kept in the memory (`with_rate`) stands.
    """
    progress, memory = seen.state.progress, seen.state.memory
    if _is_stale(seen):
        return memory["rate.per_h"]
    shape = curve(job)
    if progress.step_ms > 0 and progress.members > 0:
        ready = seen.state.fleet.select(InstanceState.READY, InstanceState.NOTICED)
        mean = sum(i.speed for i in ready) / len(ready) if ready else 1.0
        speed = shape.at(progress.members * mean)
        if speed > 0:
            return MS_PER_HOUR / progress.step_ms / speed
    if "rate.per_h" in memory:
        return memory["rate.per_h"]
    asked = shape.at(float(max(1, job.num_nodes)))
    return MS_PER_HOUR / max(1, job.work.step_ms) / asked


def _is_stale(seen: Observation) -> bool:
    """Return whether the group has changed and its step time has not been measured since."""
    progress, memory = seen.state.progress, seen.state.memory
    return (
        "rate.per_h" in memory
        and progress.members != memory.get("rate.members")
        and progress.step_ms == memory.get("rate.step_ms")
    )


def with_rate(job: Job, seen: Observation) -> Memory:
    """Return the memory with the measured rate kept in it, for `steps_per_h` to come back to."""
    progress, memory = seen.state.progress, seen.state.memory
    if progress.step_ms <= 0 or progress.members <= 0 or _is_stale(seen):
        return memory
    kept = dict(memory)
    kept["rate.per_h"] = steps_per_h(job, seen)
    kept["rate.members"], kept["rate.step_ms"] = float(progress.members), float(progress.step_ms)
    return kept


def switch_ms(seen: Observation) -> int:
    """Return the time from a decision to change the fleet until training goes on: boot, load,
    re-form."""
    cost = seen.state.fleet_cost
    return cost.boot_ms + cost.reform_ms + seen.state.save_cost.restore_ms


def deadline_speed(job: Job, seen: Observation) -> float:
    """Return the curve speed that finishes the work just before the deadline; 0 without one.

    Two changes of the fleet (2 d) are kept in reserve, as in the safety net of Uniform Progress
    (D.1 of the theory notes). Past the deadline: the ceiling's speed, to be done with it.
    """
    left, deadline = steps_left(job, seen), job.limits.deadline_ms
    if left is None or deadline is None or left == 0:
        return 0.0
    time_h = hours(deadline - seen.now_ms - 2 * switch_ms(seen))
    most = curve(job).at(max(job.throughput.ceiling, float(job.num_nodes), 1.0))
    if time_h <= 0:
        return most
    return min(most, left / steps_per_h(job, seen) / time_h)


def slack_is_gone(job: Job, seen: Observation) -> bool:
    """Return whether a fleet of the asked size has to run on safe VMs from now on."""
    asked = curve(job).at(float(max(1, job.num_nodes)))
    return deadline_speed(job, seen) > asked * (1 - EPS)


def floor_worth(job: Job, seen: Observation) -> float:
    """Return the VMs' worth to be kept now: the floor, or what the deadline asks if more."""
    floor = job.throughput.floor
    if slack_is_gone(job, seen):
        need = curve(job).needed(deadline_speed(job, seen))
        return max(floor, min(max(need, job.num_nodes), max(job.throughput.ceiling, job.num_nodes)))
    return floor


def allowed(job: Job, seen: Observation, capacity: Capacity) -> tuple[Offering, ...]:
    """Return the offerings of a capacity that the job's pools and price cap admit, cheapest
    per VM's worth first, ties by pool."""
    if capacity not in job.capacities:
        return ()
    cap = job.limits.max_price_micro_usd_h
    pools = frozenset(job.pools)
    fit = [
        o
        for o in seen.state.market.of(capacity)
        if o.pool in pools and o.speed > 0 and (cap is None or o.price_micro_usd_h <= cap)
    ]
    fit.sort(key=lambda o: o.price_micro_usd_h / o.speed)  # by pool already, and the sort is stable
    return tuple(fit)


def over_cap(job: Job, seen: Observation) -> tuple[Offering, ...]:
    """Return the offerings that only the price cap forbids."""
    cap = job.limits.max_price_micro_usd_h
    if cap is None:
        return ()
    pools = frozenset(job.pools)
    return tuple(
        o
        for o in sorted(seen.state.market.offerings, key=lambda o: (o.pool, o.capacity.value))
        if o.pool in pools and o.capacity in job.capacities and o.price_micro_usd_h > cap
    )


def price_of(seen: Observation, vm: Instance) -> int:
    """Return a VM's present price, micro-dollars per hour; 0 when it is not known."""
    offer = seen.state.market.get(vm.pool, vm.capacity)
    return 0 if offer is None else offer.price_micro_usd_h


def burn_micro_usd_h(seen: Observation) -> int:
    """Return what the held and requested VMs cost per hour now."""
    counts: dict[tuple[Pool, Capacity], int] = {}
    for vm in seen.state.fleet.select(*BILLED):
        key = (vm.pool, vm.capacity)
        counts[key] = counts.get(key, 0) + 1
    get = seen.state.market.get
    return sum(n * o.price_micro_usd_h for key, n in counts.items() if (o := get(*key)))


def closing_ms(seen: Observation) -> int:
    """Return the time that an orderly end takes: a last save, the hand-over, its discovery."""
    save, cost = seen.state.save_cost, seen.state.fleet_cost
    return save.stall_ms + 2 * save.persist_ms + cost.reform_ms + cost.detect_ms + 1_000


def budget_left(job: Job, seen: Observation) -> float:
    """Return micro-dollars that may still be spent; inf without a budget."""
    budget = job.limits.budget_micro_usd
    return math.inf if budget is None else float(budget - seen.spent_micro_usd)


def affordable_vms(job: Job, seen: Observation, offer: Offering, *, extra_burn: int = 0) -> float:
    """Return how many more VMs of `offer` the budget can carry until the next thought.

    Each must be payable for its boot, as much work again, its minimum billing and an orderly
    end, on top of the fleet that is held already.
    """
    left = budget_left(job, seen)
    if math.isinf(left):
        return math.inf
    span_h = hours(2 * switch_ms(seen) + closing_ms(seen))
    left -= (burn_micro_usd_h(seen) + extra_burn) * span_h
    each = offer.price_micro_usd_h * max(span_h, hours(offer.minimum_billing_ms))
    return math.inf if each <= 0 else max(0.0, left // each)


def vm_room(job: Job, seen: Observation) -> float:
    """Return how many more VMs the limit on the fleet's size admits; inf without one."""
    most = job.limits.max_vms
    return math.inf if most is None else max(0, most - len(seen.state.fleet))


def overdue(seen: Observation, vm: Instance) -> bool:
    """Return whether a VM has taken twice its usual boot time and is not ready.

    A pending VM counts as capacity that is there soon, because an on-demand VM asked for now
    would be no faster; an overdue one does not.
    """
    if vm.state is InstanceState.READY:
        return False
    if vm.state not in (InstanceState.REQUESTED, InstanceState.STARTING):
        return False
    return seen.now_ms - vm.requested_ms > 2 * seen.state.fleet_cost.boot_ms + 1_000


def soon(seen: Observation, capacity: Capacity) -> tuple[Instance, ...]:
    """Return the VMs that are ready or will be within the usual boot time, by pool and token."""
    if not seen.state.fleet:
        return ()
    vms = [
        vm
        for vm in seen.state.fleet
        if vm.capacity is capacity and vm.state in STAYING and not overdue(seen, vm)
    ]
    return tuple(sorted(vms, key=lambda v: (v.pool, v.token)) if len(vms) > 1 else vms)


def ready(seen: Observation, capacity: Capacity) -> tuple[Instance, ...]:
    """Return the ready VMs of one capacity, by pool and token."""
    vms = seen.state.fleet.select(InstanceState.READY, capacity=capacity)
    return tuple(sorted(vms, key=lambda v: (v.pool, v.token))) if len(vms) > 1 else vms


def worth(vms: Iterable[Instance]) -> float:
    """Return the VMs' worth of some VMs."""
    return sum(v.speed for v in vms)


def whole(amount: float) -> int:
    """Return the count of VMs that covers `amount`, forgiving rounding noise."""
    return max(0, math.ceil(amount - 1e-6))


def set_aside(seen: Observation, pool: Pool) -> bool:
    """Return whether a recent refusal says to leave the pool's spot alone for now."""
    return seen.launch_failures.get(pool, 0) > seen.now_ms


def revisit_ms(
    job: Job, seen: Observation, *candidates: int | None, patience_ms: int | None = None
) -> int:
    """Return when to think again: the earliest candidate, or when the budget or slack ends.

    `patience_ms`: how long the plan stands if nothing happens, where the policy knows it.
    """
    ends = (*candidates, _budget_ends_ms(job, seen), _slack_ends_ms(job, seen))
    later = [c for c in ends if c is not None and c > seen.now_ms]
    later += [t for t in seen.launch_failures.values() if t > seen.now_ms]
    for vm in seen.state.fleet.select(InstanceState.REQUESTED, InstanceState.STARTING):
        due = vm.requested_ms + 2 * seen.state.fleet_cost.boot_ms + 1_001
        if due > seen.now_ms:
            later.append(due)
    later.append(seen.now_ms + (_patience_ms(job, seen) if patience_ms is None else patience_ms))
    return max(seen.now_ms + 1, min(later))


def _patience_ms(job: Job, seen: Observation) -> int:
    """Return how long a plan stands if nothing happens: an hour in a calm, ten switches else.

    In a calm every VM is ready, no pool is waited for and no deadline nears: only a fact, which
    brings a new decision by itself, or a slow drift of the forecasts can change the plan.
    """
    if _is_calm(job, seen):
        return MS_PER_HOUR
    return max(1_000, min(10 * switch_ms(seen), 600_000))


def _is_calm(job: Job, seen: Observation) -> bool:
    if job.limits.deadline_ms is not None or not len(seen.state.fleet):
        return False
    waiting = any(until > seen.now_ms for until in seen.launch_failures.values())
    return not waiting and all(vm.state is InstanceState.READY for vm in seen.state.fleet)


def steady_ms(job: Job, seen: Observation) -> int | None:
    """Return how long a plan stands, in a calm, that forecasts have no part in; else None.

    Only the save interval is left to think about. Hazards fall with the logarithm of age, so
    that is until the youngest VM is twice as old, and an hour at least.
    """
    if not _is_calm(job, seen):
        return None
    return max(MS_PER_HOUR, min(vm.age_ms(seen.now_ms) for vm in seen.state.fleet))


def _budget_ends_ms(job: Job, seen: Observation) -> int | None:
    if job.limits.budget_micro_usd is None:
        return None
    left, burn = budget_left(job, seen), burn_micro_usd_h(seen)
    if burn <= 0:
        return None
    return seen.now_ms + max(500, int(left / burn * MS_PER_HOUR) - 2 * closing_ms(seen))


def _slack_ends_ms(job: Job, seen: Observation) -> int | None:
    """Return when a fleet of the asked size, idle until then, would have no slack left."""
    left, deadline = steps_left(job, seen), job.limits.deadline_ms
    if not left or deadline is None:
        return None
    asked = curve(job).at(float(max(1, job.num_nodes)))
    need_ms = left / steps_per_h(job, seen) / asked * MS_PER_HOUR
    return int(deadline - 2 * switch_ms(seen) - need_ms)


def target(
    seen: Observation, launches: Iterable[Launch], leaving: frozenset[str]
) -> Mapping[tuple[Pool, Capacity], int]:
    """Return the wanted VMs by pool and capacity once launches are granted and leavers gone."""
    counts: dict[tuple[Pool, Capacity], int] = {}
    for vm in seen.state.fleet:
        if vm.state in STAYING and vm.token not in leaving:
            counts[vm.pool, vm.capacity] = counts.get((vm.pool, vm.capacity), 0) + 1
    for launch in launches:
        key = (launch.pool, launch.capacity)
        counts[key] = counts.get(key, 0) + launch.count
    return dict(sorted(counts.items(), key=lambda item: (item[0][0], item[0][1].value)))


def dollars(micro: float) -> str:
    """Return micro-dollars as text with three digits, for reasons."""
    return f"${usd(round(micro)):.3f}"


def idle_plan(job: Job, seen: Observation, reason: str) -> Plan:
    """Return a plan that changes nothing."""
    return Plan(
        actions=(),
        reason=reason,
        revisit_at_ms=revisit_ms(job, seen),
        memory=with_rate(job, seen),
        target=target(seen, (), frozenset()),
    )
