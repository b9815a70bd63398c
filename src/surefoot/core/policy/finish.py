"""How a gang with a deadline runs: on spot, on on-demand, or idle; and the steps to get there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING, InstanceState
from surefoot.core.forecast.port import Floats, Forecast, Hazard, constant_hazard
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Action, Checkpoint, Launch, Memory, Plan
from surefoot.core.policy.economics import mean_life_h
from surefoot.core.policy.fill import fill, home, obtainable, region_of, settle, within
from surefoot.core.policy.gang import Mode, Problem, Table, solve
from surefoot.core.policy.guard import leave
from surefoot.core.policy.terms import (
    allowed,
    curve,
    dollars,
    ready,
    revisit_ms,
    soon,
    steps_left,
    steps_per_h,
    switch_ms,
    target,
    with_rate,
    worth,
)
from surefoot.core.units import MS_PER_HOUR, hours

AGES_H: Floats = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
"""Age bins of spells in the table, hours."""

PINNED = ("at", "tick", "split", "switch", "ticks", "units", "spot", "safe", "elsewhere")


def is_gang_with_deadline(job: Job) -> bool:
    """Return whether the job may idle: work with an end, a deadline, and no floor to keep."""
    known_end = job.work.total_steps is not None and job.limits.deadline_ms is not None
    return known_end and job.throughput.floor <= 0 and job.num_nodes > 0


@dataclass(frozen=True, slots=True)
class Offers:
    """What the gang can run on now."""

    spot: tuple[Offering, ...]
    """Spot offerings that can be had, the best first."""
    safe: tuple[Offering, ...]
    rank: tuple[Offering, ...]
    """All spot offerings, the best first."""
    held: frozenset[Pool]
    """Pools of the spot VMs that stay."""


@dataclass(frozen=True, slots=True)
class Market(Offers):
    """What the gang can run on now, and the spell its spot is in."""

    open: bool
    age_h: float
    window: Floats
    """Rate at which the present (or next) window ends, by age bin, per hour."""
    drought: Floats
    elsewhere: float
    """Odds that, when the present pool's window ends, another place has one."""
    spot_price: float
    """Price of the gang's hour on spot, micro-dollars."""
    safe_price: float


def offers(job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Offers:
    """Return what the gang can run on: the pool it is in first, then by price and life."""
    cheap, dear = (allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
    place = None
    if job.one_region:
        place = home(seen) or settle(seen, cheap, dear)
    rank = within(place, cheap)
    held = frozenset(vm.pool for vm in seen.state.fleet.select(*STAYING, capacity=Capacity.SPOT))
    if len(rank) > 1:
        by = {o.pool: (o.pool not in held, _price(o, forecast), o.pool) for o in rank}
        rank = tuple(sorted(rank, key=lambda o: by[o.pool]))
    now = tuple(o for o in rank if o.pool in held or obtainable(seen, o) >= 1)
    return Offers(now, within(place, dear), rank, held)


def market(job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Market:
    """Return the market as the gang sees it: the pool it is in, else the best open one."""
    found = offers(job, seen, forecast)
    now, safe, rank, held = found.spot, found.safe, found.rank, found.held
    believed = [o for o in now if o.available is not None or not _in_drought(o, forecast)]
    enough = sum(min(obtainable(seen, o), 1e9) * o.speed for o in believed) >= job.num_nodes
    is_open = bool(now) and (bool(held) or enough)
    best = now[0] if is_open else (rank[0] if rank else None)
    belief = forecast.get(best.pool) if best else None
    others = [o for o in rank if best is not None and o.pool != best.pool]
    return Market(
        spot=now,
        safe=safe,
        rank=rank,
        held=held,
        open=is_open,
        age_h=belief.spell_age_h if belief else 0.0,
        window=_by_age(_window(belief)),
        drought=_openings(rank, forecast),
        elsewhere=_elsewhere(others, forecast),
        spot_price=(best.price_micro_usd_h / best.speed if best else math.inf) * job.num_nodes,
        safe_price=(safe[0].price_micro_usd_h / safe[0].speed if safe else math.inf)
        * job.num_nodes,
    )


def _in_drought(offer: Offering, forecast: Mapping[Pool, Forecast]) -> bool:
    belief = forecast.get(offer.pool)
    return belief is not None and belief.in_drought


def _window(belief: Forecast | None) -> Hazard:
    if belief is None:
        return constant_hazard(0.5)
    return belief.window if belief.window is not None else belief.hazard


def _drought(belief: Forecast | None) -> Hazard:
    if belief is not None and belief.drought is not None:
        return belief.drought
    known = belief is not None and belief.in_drought
    return constant_hazard(1.0 / max(belief.window_h, 1e-3) if belief and known else 1.0)


def _by_age(hazard: Hazard) -> Floats:
    """Return mean rates over the table's age bins, the last one over eight hours."""
    if len(hazard.edges_h) == len(AGES_H) and np.array_equal(hazard.edges_h, AGES_H):
        return hazard.rate_per_h
    ends = np.append(AGES_H[1:], AGES_H[-1] + 8.0)
    pairs = zip(AGES_H, ends, strict=True)
    return np.array([hazard.cumulative(float(a), float(b)) / (b - a) for a, b in pairs])


def _price(offer: Offering, forecast: Mapping[Pool, Forecast]) -> float:
    """Return the price per worth, raised by the share of a short life that a switch wastes."""
    belief = forecast.get(offer.pool)
    age = belief.spell_age_h if belief else 0.0
    life = mean_life_h(_window(belief), age, 24.0)
    return offer.price_micro_usd_h / offer.speed * (1 + 0.25 / max(life, 0.05))


def _openings(offers: Sequence[Offering], forecast: Mapping[Pool, Forecast]) -> Floats:
    """Return the rate at which some pool opens: pools of a region open together, regions not."""
    best: dict[tuple[str, str], Floats] = {}
    for offer in offers:
        rates = _by_age(_drought(forecast.get(offer.pool)))
        region = region_of(offer.pool)
        best[region] = np.maximum(best.get(region, rates), rates)
    if not best:
        return np.full(len(AGES_H), 1e-6)
    total: Floats = np.sum(np.stack(list(best.values())), axis=0)
    return total


def _elsewhere(offers: Sequence[Offering], forecast: Mapping[Pool, Forecast]) -> float:
    odds: dict[tuple[str, str], float] = {}
    for offer in offers:
        belief = forecast.get(offer.pool)
        region = region_of(offer.pool)
        odds[region] = max(odds.get(region, 0.0), belief.launch_odds if belief else 0.0)
    return 1.0 - math.prod(1.0 - p for p in odds.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the table says now, with the memory that keeps its grid and rates in place."""

    mode: Mode
    memory: Memory
    cost_micro_usd: float
    """Expected cost of finishing, as of when the table was made."""
    begun: bool
    """Whether the mode is new."""


def verdict(
    job: Job, seen: Observation, forecast: Mapping[Pool, Forecast], around: Market, *, grid: int
) -> Verdict:
    """Return the best mode for the gang now.

    The grid and the rates are kept for a twelfth of the horizon, so that a solution serves
    many decisions; `grid` is the number of ticks that the time left is cut into at first.
    """
    left_ms, work_ms = left_ms_and_work_ms(job, seen)
    memory = dict(with_rate(job, seen))
    if _stale(memory, seen, around, work_ms):
        memory.update(_pin(seen, around, left_ms, work_ms, grid=grid))
    problem = _problem(memory, around)
    table = solve(problem)
    unit_ms = memory["gang.tick"] / memory["gang.split"]
    mode, overhead_ms = _present(seen, memory)
    spell = int(np.searchsorted(AGES_H, around.age_h, "right")) - 1
    spell += 0 if around.open else len(AGES_H)
    best = table.best(
        int((left_ms + 1) // memory["gang.tick"]),
        math.ceil(work_ms / unit_ms - 1e-6),
        mode,
        overhead=math.ceil(overhead_ms / unit_ms - 1e-6),
        spell=spell,
    )
    if best is not mode:
        memory["gang.since"] = float(seen.now_ms)
    memory["gang.mode"] = float(best)
    cost = _expected(table, spell)
    return Verdict(best, memory, cost * memory["gang.tick"] / MS_PER_HOUR, best is not mode)


def _expected(table: Table, spell: int) -> float:
    return float(table.cost[table.problem.units, spell])


def left_ms_and_work_ms(job: Job, seen: Observation) -> tuple[float, float]:
    """Return (time to the deadline less an orderly end, time the work left takes), ms."""
    save, cost = seen.state.save_cost, seen.state.fleet_cost
    margin = save.stall_ms + save.persist_ms + cost.detect_ms
    steps = steps_left(job, seen) or 0
    speed = curve(job).at(float(job.num_nodes)) * steps_per_h(job, seen)
    deadline = job.limits.deadline_ms or 0
    return max(0.0, deadline - seen.now_ms - margin), steps / speed * MS_PER_HOUR


def _present(seen: Observation, memory: Memory) -> tuple[Mode, float]:
    """Return what the gang runs on (or boots for) now, and the overhead that remains, ms."""
    mode = Mode(int(memory.get("gang.mode", 0)))
    held = {
        Mode.SPOT: bool(soon(seen, Capacity.SPOT)),
        Mode.SAFE: bool(soon(seen, Capacity.ON_DEMAND)),
        Mode.IDLE: True,
    }
    if not held[mode]:
        mode = next((m for m in (Mode.SPOT, Mode.SAFE) if held[m]), Mode.IDLE)
    if mode is Mode.IDLE:
        return mode, 0.0
    since = memory.get("gang.since", float(seen.now_ms))
    return mode, max(0.0, switch_ms(seen) - (seen.now_ms - since))


def _stale(memory: Memory, seen: Observation, around: Market, work_ms: float) -> bool:
    if any(f"gang.{name}" not in memory for name in PINNED):
        return True
    tick = memory["gang.tick"]
    age = seen.now_ms - memory["gang.at"]
    unit = tick / memory["gang.split"]
    switch = max(1.0, round(switch_ms(seen) / unit))
    return (
        age >= tick * max(1.0, memory["gang.ticks"] / 12)
        or work_ms > (memory["gang.units"] + 0.01) * unit
        or not 0.8 <= (memory["gang.switch"] + 1) / (switch + 1) <= 1.25
        or abs(math.log(_ratio(around.spot_price, memory["gang.spot"]))) > 0.05
        or abs(math.log(_ratio(around.safe_price, memory["gang.safe"]))) > 0.05
    )


def _ratio(one: float, other: float) -> float:
    if math.isinf(one) or other >= 1e17:
        return 1.0 if math.isinf(one) == (other >= 1e17) else 1e9
    return max(one, 1.0) / max(other, 1.0)


def _pin(seen: Observation, around: Market, left_ms: float, work_ms: float, *, grid: int) -> Memory:
    """Return the grid and the rates to keep: ticks no finer than needed for the overhead."""
    old = seen.state.memory.get("gang.tick")
    tick = old if old is not None else max(1_000.0, _round_tick(left_ms / grid))
    switch = switch_ms(seen)
    split = 1 if switch >= 0.75 * tick else max(1, min(5, round(tick / max(switch, 1.0))))
    unit = tick / split
    values = {
        "at": float(seen.now_ms),
        "tick": tick,
        "split": float(split),
        "switch": float(max(1, round(switch / unit))),
        "ticks": float((left_ms + 1) // tick),
        "units": float(math.ceil(work_ms / unit - 1e-6)),
        "spot": min(around.spot_price, 1e18),
        "safe": min(around.safe_price, 1e18),
        "elsewhere": round(around.elsewhere, 2),
    }
    values |= {f"window.{i}": float(x) for i, x in enumerate(around.window)}
    values |= {f"drought.{i}": float(x) for i, x in enumerate(around.drought)}
    return {f"gang.{name}": value for name, value in values.items()}


def _round_tick(tick_ms: float) -> float:
    """Return the nearest (by ratio) of 1, 2, 5, 10, 20, 30 s, 1, 2, 5, ... min, 1, 2, 4 h."""
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)
    return 1000.0 * min(steps, key=lambda s: abs(math.log(s * 1000 / max(tick_ms, 1.0))))


def _problem(memory: Memory, around: Market) -> Problem:
    tick_h = memory["gang.tick"] / MS_PER_HOUR
    widths = np.append(np.diff(AGES_H), np.inf)
    odds = {
        kind: tuple(
            float(-np.expm1(-memory[f"gang.{kind}.{i}"] * tick_h)) for i in range(len(AGES_H))
        )
        for kind in ("window", "drought")
    }
    return Problem(
        ticks=int(memory["gang.ticks"]),
        units=int(memory["gang.units"]),
        units_per_tick=int(memory["gang.split"]),
        switch_units=int(memory["gang.switch"]),
        spot=memory["gang.spot"],
        safe=memory["gang.safe"],
        window=odds["window"],
        drought=odds["drought"],
        advance=tuple(float(x) for x in np.minimum(1.0, tick_h / widths)),
        elsewhere=memory["gang.elsewhere"],
    )


def run_on(
    job: Job,
    seen: Observation,
    mode: Mode,
    around: Offers,
    *,
    reason: str,
    memory: Memory,
    patience_ms: int | None = None,
) -> Plan:
    """Return the plan that brings the gang to `mode`; the old VMs go when the new are ready.

    `patience_ms`: how long the policy's own rule says the same if nothing happens; unless it is
    given, or while VMs come and go, the plan is thought over after some boot times.
    """
    want = float(job.num_nodes)
    spot, safe = soon(seen, Capacity.SPOT), soon(seen, Capacity.ON_DEMAND)
    launches: tuple[Launch, ...] = ()
    probes = [vm.token for vm in spot if vm.state is not InstanceState.READY]
    leaving: list[str] = []
    match mode:
        case Mode.SPOT:
            launches = fill(job, seen, around.spot, worth=want - worth(spot))
            if worth(ready(seen, Capacity.SPOT)) >= want - 1e-6:
                leaving = [vm.token for vm in safe]
        case Mode.SAFE:
            launches = fill(job, seen, around.safe, worth=want - worth(safe))
            replaced = worth(ready(seen, Capacity.ON_DEMAND)) >= want - 1e-6
            leaving = [vm.token for vm in spot] if replaced else probes
        case Mode.IDLE:
            leaving = [vm.token for vm in (*spot, *safe)]
    save: tuple[Action, ...] = ()
    if mode is Mode.IDLE and seen.state.fleet.select(InstanceState.READY):
        save = (Checkpoint("the gang idles"),)
    actions = (*save, *launches, *(leave(seen, token) for token in sorted(leaving)))
    tick = memory.get("gang.tick")
    if actions or any(vm.state is not InstanceState.READY for vm in seen.state.fleet):
        patience_ms = None
    again_ms = seen.now_ms + int(tick) if tick else None
    return Plan(
        actions=actions,
        reason=reason,
        revisit_at_ms=revisit_ms(job, seen, again_ms, patience_ms=patience_ms),
        memory=memory,
        target=target(seen, launches, frozenset(leaving)),
    )


def finish(job: Job, seen: Observation, forecast: Mapping[Pool, Forecast], *, grid: int) -> Plan:
    """Return the plan for a gang with a deadline, by the table."""
    around = market(job, seen, forecast)
    said = verdict(job, seen, forecast, around, grid=grid)
    left_ms, work_ms = left_ms_and_work_ms(job, seen)
    name = {Mode.IDLE: "idle", Mode.SPOT: "on spot", Mode.SAFE: "on on-demand"}[said.mode]
    spell = "window" if around.open else "drought"
    reason = (
        f"{name}: {hours(int(work_ms)):.2f} h of work in {hours(int(left_ms)):.2f} h, spot in a "
        f"{spell} of {around.age_h:.2f} h, {dollars(around.spot_price)}/h against "
        f"{dollars(around.safe_price)}/h, a switch costs {hours(switch_ms(seen)) * 60:.1f} min; "
        f"expected to finish for {dollars(said.cost_micro_usd)}"
        if math.isfinite(around.spot_price) and math.isfinite(around.safe_price)
        else f"{name}: {hours(int(work_ms)):.2f} h of work in {hours(int(left_ms)):.2f} h"
    )
    plan = run_on(job, seen, said.mode, around, reason=reason, memory=said.memory)
    return plan if said.mode is Mode.SPOT else _probed(job, seen, around, plan)


def _probed(job: Job, seen: Observation, around: Market, plan: Plan) -> Plan:
    """Return the plan with one spot VM asked for where the market does not tell its supply.

    Without tries nothing would be learnt of the pool while the gang waits or runs on
    on-demand. A refusal costs nothing; a VM that is granted and still not wanted is ended a
    second later. In a believed drought a tick passes between probes, in a window the age at
    which the table may think otherwise.
    """
    blind = [o for o in around.spot if o.available is None]
    if not blind or seen.state.fleet.select(*STAYING, capacity=Capacity.SPOT):
        return plan
    last = plan.memory.get("gang.probe_at", -math.inf)
    bin_then = plan.memory.get("gang.probe_bin", -1.0)
    bin_now = float(np.searchsorted(AGES_H, around.age_h, "right")) if around.open else 0.0
    waited = seen.now_ms - last >= plan.memory["gang.tick"]
    if not waited or (around.open and bin_now == bin_then):
        return plan
    probe = fill(job, seen, blind[:1], worth=blind[0].speed, taken=_launches(plan))
    if not probe:
        return plan
    return replace(
        plan,
        actions=(*plan.actions, *probe),
        reason=plan.reason + "; one spot VM is asked for to learn whether there is any",
        revisit_at_ms=seen.now_ms + 1_000,
        memory={
            **plan.memory,
            "gang.probe_at": float(seen.now_ms),
            "gang.probe_bin": bin_now,
        },
    )


def _launches(plan: Plan) -> tuple[Launch, ...]:
    return tuple(a for a in plan.actions if isinstance(a, Launch))
