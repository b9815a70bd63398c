"""The default policy: the floor at least cost from spot and on-demand VMs, by forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING, Instance, InstanceState
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import FloorKind, Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Launch, Memory, Plan
from surefoot.core.policy.average import bank, floor_now
from surefoot.core.policy.economics import Economics, anchor_pays, economics
from surefoot.core.policy.fill import fill, obtainable, worth_of
from surefoot.core.policy.finish import finish, is_gang_with_deadline
from surefoot.core.policy.greedy import surplus
from surefoot.core.policy.guard import leave, overruled
from surefoot.core.policy.regions import (
    Place,
    choose_place,
    egress_micro_usd,
    present_home,
    shortage_h,
)
from surefoot.core.policy.terms import (
    allowed,
    dollars,
    floor_worth,
    over_cap,
    price_of,
    ready,
    revisit_ms,
    set_aside,
    slack_is_gone,
    soon,
    target,
    whole,
    with_rate,
    worth,
)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Keep the floor at least cost.

    `max_share`: share of the spot fleet that one pool may hold while another pool can be had
    for at most `spread_premium` more. `losses_to_cool`: that many loss events within ten boots
    make the next launches on-demand for `cool_boots` boots. `grid`: ticks into which the time to a
    deadline is cut. `move_micro_usd`: what the transfer of a checkpoint to another region costs.
    """

    max_share: float = 0.5
    spread_premium: float = 0.25
    losses_to_cool: int = 3
    cool_boots: float = 2.0
    grid: int = 432
    move_micro_usd: int = 0
    name: str = "hybrid"

    def decide(self, job: Job, seen: Observation, forecast: Mapping[Pool, Forecast]) -> Plan:
        """Return the plan for now."""
        if (end := overruled(job, seen)) is not None:
            return end
        if is_gang_with_deadline(job) and job.throughput.ceiling <= job.num_nodes:
            return finish(job, seen, forecast, grid=self.grid)
        memory, saved = {**_rate(job, seen), **self._remember(seen)}, bank(job, seen)
        if job.throughput.kind is FloorKind.AVERAGE:
            memory = {**memory, **saved.memory}
        scene = _scene(
            job,
            seen,
            forecast,
            cooling=memory["cool_until"] > seen.now_ms,
            move_micro_usd=self.move_micro_usd + egress_micro_usd(job, seen),
            surplus_h=saved.surplus_h,
        )
        spot = self._spot_launches(scene)
        safe = _stand_ins(scene, spot)
        leaving, notes = _leavers(scene)
        launches = (*spot, *safe)
        reason = _reason(scene, spot, safe, notes)
        if not launches and not leaving:
            reason += "; nothing to change"
        cool = int(memory["cool_until"])
        return Plan(
            actions=(*launches, *(leave(seen, token) for token in sorted(leaving))),
            reason=reason,
            revisit_at_ms=revisit_ms(job, seen, cool or None, _after_probe(scene, spot)),
            memory=memory,
            target=target(seen, launches, frozenset(leaving)),
        )

    def _remember(self, seen: Observation) -> Memory:
        """Return the memory with new loss events taken in; losses within a boot are one event."""
        old, total = seen.state.memory, float(seen.state.notices[1])
        boot = seen.state.fleet_cost.boot_ms
        times = sorted(v for k, v in old.items() if k.startswith("loss_at."))
        if total > old.get("losses", total) and (not times or seen.now_ms - times[-1] > boot / 2):
            times.append(float(seen.now_ms))
        times = [t for t in times if seen.now_ms - t <= 10 * boot][-self.losses_to_cool :]
        until = old.get("cool_until", 0.0)
        if len(times) >= self.losses_to_cool and until <= seen.now_ms:
            until, times = seen.now_ms + self.cool_boots * boot, []
        kept = {f"loss_at.{i}": t for i, t in enumerate(times)}
        return {**kept, "losses": total, "cool_until": until if until > seen.now_ms else 0.0}

    def _spot_launches(self, scene: _Scene) -> tuple[Launch, ...]:
        """Return the spot to ask for: what the floor lacks, what repays a return, what pays."""
        want = max(0.0, _spot_goal(scene) - worth(scene.good))
        if want <= 1e-6 or not scene.offers:
            return ()
        seen, job = scene.seen, scene.job
        cheapest = min(scene.sums.price(o, 0) for o in scene.offers)
        peers = [
            o
            for o in scene.offers
            if obtainable(seen, o) >= 1
            and scene.sums.price(o, 0) <= cheapest * (1 + self.spread_premium)
        ]
        most = math.inf
        if len(peers) > 1:
            total = worth(scene.good) + want
            most = whole(max(self.max_share, 1 / len(peers)) * total)
        offers = tuple(_probing(scene, o) for o in scene.offers)
        price = scene.sums.price
        first = fill(job, seen, offers, worth=want, price=price, most=lambda _: most)
        rest = want - worth_of(seen, first)
        return _merged(first, fill(job, seen, offers, worth=rest, price=price, taken=first))


def _rate(job: Job, seen: Observation) -> Memory:
    return {k: v for k, v in with_rate(job, seen).items() if k.startswith("rate.")}


@dataclass(frozen=True, slots=True)
class _Scene:
    """What one decision looks at, worked out once."""

    job: Job
    seen: Observation
    sums: Economics
    place: Place
    floor: float
    base: int
    """On-demand VMs to hold in any case: the job's base, or an anchor."""
    offers: tuple[Offering, ...]
    """Spot that may be launched now, cheapest first."""
    safe: tuple[Offering, ...]
    """On-demand that may be launched now, cheapest first."""
    good: tuple[Instance, ...]
    """Spot VMs that are or soon will be ready and are worth their price."""
    dear: tuple[Instance, ...]
    """Spot VMs that on-demand would replace at a gain, or that are over the price cap."""
    reserve: tuple[Instance, ...]
    """On-demand VMs that are or soon will be ready."""
    strays: tuple[Instance, ...]
    """VMs outside of the place: the fleet of the old home, or what a try elsewhere left."""
    blocked: str
    """Why no spot may be launched though some is sold; empty if it may."""


def _probing(scene: _Scene, offer: Offering) -> Offering:
    """Return the offer with no more to be had than it is polite to ask for.

    Where a drought is believed and the provider does not tell, one VM is asked for; each grant
    doubles the next request.
    """
    belief = scene.sums.forecast.get(offer.pool)
    if offer.available is not None or belief is None or not belief.in_drought:
        return offer
    starting = scene.seen.state.fleet.select(
        InstanceState.REQUESTED,
        InstanceState.STARTING,
        capacity=Capacity.SPOT,
        pool=offer.pool,
    )
    return replace(offer, available=max(1, 2 * len(starting)))


def _after_probe(scene: _Scene, spot: Sequence[Launch]) -> int | None:
    """Return when to look at the answer to a single try in a believed drought, else None."""
    tried = any(
        (belief := scene.sums.forecast.get(launch.pool)) is not None and belief.in_drought
        for launch in spot
    )
    return scene.seen.now_ms + 1_000 if tried else None


def _scene(
    job: Job,
    seen: Observation,
    forecast: Mapping[Pool, Forecast],
    *,
    cooling: bool,
    move_micro_usd: int,
    surplus_h: float,
) -> _Scene:
    cheap, dear = (allowed(job, seen, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
    sums, floor = economics(job, seen, forecast, dear), floor_worth(job, seen)
    short = shortage_h(seen, sums, cheap, present_home(seen))
    floor = max(floor_now(job, seen, surplus_h, short), floor if slack_is_gone(job, seen) else 0.0)
    place = choose_place(
        job, seen, sums, cheap, dear, floor=floor, move_micro_usd=float(move_micro_usd)
    )
    safe = tuple(o for o in dear if place.holds(o.pool))
    here = tuple(o for o in cheap if place.holds(o.pool))
    offers = tuple(o for o in here if obtainable(seen, o) >= 1)
    cheaper = tuple(o for o in offers if _pays(sums, o))
    blocked = ""
    if here and not offers:
        blocked = "spot cannot be had now"
    elif offers and not cheaper:
        blocked = _comparison(sums, offers)
    elif slack_is_gone(job, seen) and safe:
        cheaper, blocked = (), "the slack is gone: on-demand until the deadline is safe"
    elif cooling and safe:
        cheaper, blocked = (), "cooling off after repeated preemptions"
    spot = tuple(vm for vm in soon(seen, Capacity.SPOT) if place.holds(vm.pool))
    bad = tuple(vm for vm in spot if _too_dear(job, seen, sums, vm))
    return _Scene(
        job=job,
        seen=seen,
        sums=sums,
        place=place,
        floor=floor,
        base=max(job.on_demand_base, 1 if anchor_pays(seen, sums, spot, safe) else 0),
        offers=cheaper,
        safe=safe,
        good=tuple(vm for vm in spot if vm not in bad),
        dear=bad,
        reserve=tuple(vm for vm in soon(seen, Capacity.ON_DEMAND) if place.holds(vm.pool)),
        strays=tuple(vm for vm in seen.state.fleet.select(*STAYING) if not place.holds(vm.pool)),
        blocked=blocked,
    )


def _pays(sums: Economics, offer: Offering) -> bool:
    return sums.alternative is None or sums.price(offer, 0) < sums.alternative


def _comparison(sums: Economics, offers: Sequence[Offering]) -> str:
    best = min(offers, key=lambda o: (sums.price(o, 0), o.pool))
    risk = sums.price(best, 0) - sums.list_price(best)
    return (
        f"spot at {dollars(sums.list_price(best))} + {dollars(risk)} for its risk is not under "
        f"on-demand at {dollars(sums.alternative or 0.0)}"
    )


def _too_dear(job: Job, seen: Observation, sums: Economics, vm: Instance) -> bool:
    """Return whether replacing a held spot VM by on-demand repays the boot and two pauses."""
    price, cap = price_of(seen, vm), job.limits.max_price_micro_usd_h
    if cap is not None and price > cap:
        return True
    if sums.alternative is None:
        return False
    over = price - sums.alternative * vm.speed
    switch = sums.alternative * vm.speed * sums.boot_h + 2 * sums.pause_micro_usd() / sums.size
    return over * sums.horizon_h > switch


def _spot_goal(scene: _Scene) -> float:
    """Return the VMs' worth of spot to hold: the asked size if it pays, more while it gains."""
    job, sums = scene.job, scene.sums
    if not scene.offers:
        return worth(scene.good)
    asked = max(float(job.num_nodes), scene.floor)
    if sums.alternative is None:
        return max(asked, worth(scene.good))
    held = worth(scene.good)
    on_demand = worth(scene.reserve)
    lacking = max(0.0, scene.floor - held - on_demand)
    goal = held + lacking + _returning(scene, on_demand)
    if goal < scene.floor - 1e-6:  # on-demand holds the rest, and is not to be replaced yet
        return goal
    return max(goal, _grown(scene, max(goal, min(held, asked))))


def _returning(scene: _Scene, on_demand: float) -> float:
    """Return the worth to move from on-demand back to spot, beyond the on-demand base."""
    movable = min(on_demand - scene.base, scene.floor - worth(scene.good))
    if movable <= 1e-6:
        return 0.0
    best = scene.offers[0]
    if scene.sums.needs_scout(best.pool):
        known = any(vm.pool == best.pool for vm in scene.good)
        movable = 0.0 if known else min(movable, best.speed)
    if movable <= 0:
        return 0.0
    count = whole(movable / best.speed)
    return movable if scene.sums.return_gain(best, count) > 0 else 0.0


def _grown(scene: _Scene, goal: float) -> float:
    """Return the largest worth, up to the ceiling, that more spot still pays for."""
    sums, ceiling = scene.sums, max(scene.job.throughput.ceiling, scene.floor)
    best = min(scene.offers, key=lambda o: (sums.price(o, 0), o.pool))
    size = goal
    while size + best.speed <= ceiling + 1e-6:
        if sums.marginal_price(best, size, 0) >= (sums.alternative or 0.0):
            break
        size += best.speed
    vms = whole((size - goal) / best.speed)
    return size if vms and sums.growth_gain(best, goal, vms) > 0 else goal


def _stand_ins(scene: _Scene, spot: Sequence[Launch]) -> tuple[Launch, ...]:
    """Return on-demand for what the floor lacks: floor less spot that is or soon will be ready.

    Spot asked for in this very plan counts: a refusal is known within seconds, and brings the
    on-demand VMs then.
    """
    coming = worth(scene.good) + worth_of(scene.seen, spot)
    base = float(scene.base)
    need = max(scene.floor - coming, min(base, max(scene.floor, float(scene.job.num_nodes))))
    return fill(scene.job, scene.seen, scene.safe, worth=need - worth(scene.reserve), taken=spot)


def _leavers(scene: _Scene) -> tuple[list[str], list[str]]:
    """Return the tokens to let go, and why: only what ready VMs make superfluous."""
    seen, job = scene.seen, scene.job
    good = worth(vm for vm in scene.good if vm.state is InstanceState.READY)
    base = float(scene.base)
    spare = surplus(scene.reserve, max(scene.floor - good, base))
    safe = worth(vm for vm in scene.reserve if vm.state is InstanceState.READY)
    strays = _strays(scene, good + safe)
    cap = job.limits.max_price_micro_usd_h
    forced = [v.token for v in scene.dear if cap is not None and price_of(seen, v) > cap]
    loose = [v for v in scene.dear if v.token not in forced]
    replaced = surplus(loose, scene.floor - safe - good)
    excess = _excess(scene)
    notes = []
    for tokens, text in (
        (spare, "on-demand let go, their work is covered"),
        (replaced, "spot let go for cheaper VMs"),
        (forced, "over the price cap let go"),
        (excess, "beyond the ceiling let go"),
        (strays, "outside of the gang's region let go"),
    ):
        if tokens:
            notes.append(f"{len(tokens)} {text}")
    return [*spare, *replaced, *forced, *excess, *strays], notes


def _strays(scene: _Scene, ready_worth: float) -> list[str]:
    """Return the VMs outside of the place that can go: all, once the place keeps the floor."""
    ours = worth(scene.strays)
    enough = min(scene.floor, ours) if scene.floor > 0 else ours / 2
    if scene.place.moving and ready_worth < max(enough, 1e-6) - 1e-6:
        return []
    return [vm.token for vm in scene.strays]


def _excess(scene: _Scene) -> list[str]:
    """Return the youngest spot VMs beyond the ceiling."""
    ceiling = max(scene.job.throughput.ceiling, scene.floor, float(scene.job.num_nodes))
    return surplus(scene.good, ceiling) if worth(scene.good) > ceiling + 1e-6 else []


def _reason(
    scene: _Scene, spot: Sequence[Launch], safe: Sequence[Launch], notes: Sequence[str]
) -> str:
    """Return the plan in words with its figures."""
    seen, sums = scene.seen, scene.sums
    held = worth(ready(seen, Capacity.SPOT))
    text = [
        f"floor {scene.floor:g}: {held:g} spot and "
        f"{worth(ready(seen, Capacity.ON_DEMAND)):g} on-demand ready"
    ]
    if spot:
        best = min(scene.offers, key=lambda o: (sums.price(o, 0), o.pool))
        against = "" if sums.alternative is None else f" against {dollars(sums.alternative)}"
        text.append(
            f"ask for {worth_of(seen, spot):g} spot at {dollars(sums.list_price(best))}"
            f"{against}, expected to stay {sums.life_h(best):.2f} h"
        )
    if safe:
        text.append(f"{worth_of(seen, safe):g} on-demand stand in")
    if scene.place.note:
        text.append(scene.place.note)
    if scene.blocked:
        text.append(scene.blocked)
    if scene.base > scene.job.on_demand_base:
        text.append("an on-demand anchor costs less than the loss of the whole group would")
    blind = sorted({str(o.pool) for o in scene.offers if sums.is_blind(o.pool)})
    if blind and (spot or not scene.good):
        text.append(
            f"no loss seen yet in {len(blind)} of {len(scene.offers)} pools: no forecast is "
            "used there, a switch has to repay within the calm seen so far"
        )
    if scene.job.throughput.kind is FloorKind.AVERAGE:
        text.append(f"floor {scene.job.throughput.floor:g} on average, now {scene.floor:.2f}")
    aside = sum(set_aside(seen, pool) for pool in scene.job.pools)
    if aside:
        text.append(f"{aside} pools set aside after refusals")
    capped = over_cap(scene.job, seen)
    if capped:
        text.append(f"{len(capped)} offerings over the price cap")
    return "; ".join([*text, *notes, _largest_loss(scene)])


def _largest_loss(scene: _Scene) -> str:
    """Return the largest part of the ready fleet that one pool event would take."""
    share: dict[Pool, float] = {}
    for vm in ready(scene.seen, Capacity.SPOT):
        share[vm.pool] = share.get(vm.pool, 0.0) + vm.speed
    worst = max(share.values(), default=0.0)
    return f"largest single loss {worst:g} VMs' worth"


def _merged(first: Sequence[Launch], second: Sequence[Launch]) -> tuple[Launch, ...]:
    counts: dict[tuple[Pool, Capacity], int] = {}
    for launch in (*first, *second):
        key = (launch.pool, launch.capacity)
        counts[key] = counts.get(key, 0) + launch.count
    keys = sorted(counts, key=lambda k: (k[0], k[1].value))
    return tuple(Launch(pool, capacity, counts[pool, capacity]) for pool, capacity in keys)
