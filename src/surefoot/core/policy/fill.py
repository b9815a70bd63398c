"""How wanted VMs are spread over offerings, one by one, under supply, size and money limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from surefoot.core.decide import Observation
from surefoot.core.fleet import HELD, STAYING
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Launch
from surefoot.core.policy.terms import affordable_vms, set_aside, vm_room

Region = tuple[str, str]
"""Provider and region."""

Pricing = Callable[[Offering, int], float]
"""Price per VM's worth of the next VM of an offering, given how many its pool holds already."""


def list_price(offer: Offering, held: int) -> float:
    """Return the plain price per VM's worth: micro-dollars per hour, no account of risk."""
    del held
    return offer.price_micro_usd_h / offer.speed


def region_of(pool: Pool) -> Region:
    """Return the place a gang lives in."""
    return (pool.provider, pool.region)


def home(seen: Observation) -> Region | None:
    """Return the region that holds most of the fleet that stays; None for an empty fleet."""
    worth: dict[Region, float] = {}
    for vm in seen.state.fleet.select(*(STAYING | HELD)):
        region = region_of(vm.pool)
        staying = 1.0 if vm.state in STAYING else 1e-6
        worth[region] = worth.get(region, 0.0) + vm.speed * staying
    return min(worth, key=lambda r: (-worth[r], r)) if worth else None


def obtainable(seen: Observation, offer: Offering) -> float:
    """Return how many VMs of an offering can be had now, as far as known (inf if not)."""
    if offer.capacity is Capacity.SPOT and set_aside(seen, offer.pool):
        return 0
    return math.inf if offer.available is None else float(max(0, offer.available))


def held_by_pool(seen: Observation, capacity: Capacity) -> Counter[Pool]:
    """Return how many staying VMs of a capacity each pool holds."""
    return Counter(vm.pool for vm in seen.state.fleet.select(*STAYING, capacity=capacity))


def fill(
    job: Job,
    seen: Observation,
    offers: Sequence[Offering],
    *,
    worth: float,
    price: Pricing = list_price,
    most: Callable[[Offering], float] = lambda _: math.inf,
    taken: Sequence[Launch] = (),
) -> tuple[Launch, ...]:
    """Return launches that together cover `worth` VMs' worth, as far as limits allow.

    VM by VM the offering with the least marginal `price` is taken (ties by pool), so that a
    price which rises with the pool's share spreads the fleet. `most` caps a pool's total.
    `taken` are launches already in the plan, which use up room and money.
    """
    if worth <= 1e-6 or not offers:
        return ()
    counts: Counter[Pool] = Counter()
    held = {c: held_by_pool(seen, c) for c in {o.capacity for o in offers}}
    room = vm_room(job, seen) - sum(t.count for t in taken)
    rates = {(t.pool, t.capacity): t.count for t in taken}
    burn = sum(
        n * o.price_micro_usd_h for k, n in rates.items() if (o := seen.state.market.get(*k))
    )
    chosen: Counter[tuple[Pool, Capacity]] = Counter()
    while worth > 1e-6 and room >= 1:
        fit = [
            o
            for o in offers
            if chosen[o.pool, o.capacity] + rates.get((o.pool, o.capacity), 0) < obtainable(seen, o)
            and held[o.capacity][o.pool] + counts[o.pool] < most(o)
            and affordable_vms(job, seen, o, extra_burn=burn) >= 1
        ]
        if not fit:
            break
        best = min(fit, key=lambda o: (price(o, held[o.capacity][o.pool] + counts[o.pool]), o.pool))
        chosen[best.pool, best.capacity] += 1
        counts[best.pool] += 1
        burn += best.price_micro_usd_h
        worth -= best.speed
        room -= 1
    keys = sorted(chosen, key=lambda k: (k[0], k[1].value))
    return tuple(Launch(pool, capacity, chosen[pool, capacity]) for pool, capacity in keys)


def worth_of(seen: Observation, launches: Sequence[Launch]) -> float:
    """Return the VMs' worth that launches would bring."""
    total = 0.0
    for launch in launches:
        offer = seen.state.market.get(launch.pool, launch.capacity)
        total += launch.count * (offer.speed if offer else 1.0)
    return total


def at_home(
    job: Job, seen: Observation, offers: Sequence[Offering], *, settled: Region | None = None
) -> tuple[Offering, ...]:
    """Return the offerings in the gang's region; all of them if it may span regions.

    A gang that lives nowhere yet settles in `settled`, else where its cheapest obtainable
    offering is.
    """
    if not job.one_region:
        return tuple(offers)
    return within(home(seen) or settled or settle(seen, offers), offers)


def within(region: Region | None, offers: Sequence[Offering]) -> tuple[Offering, ...]:
    """Return the offerings of a region; all of them for None."""
    if region is None:
        return tuple(offers)
    return tuple(o for o in offers if region_of(o.pool) == region)


def settle(seen: Observation, *kinds: Sequence[Offering]) -> Region | None:
    """Return the region of the first obtainable offering, the kinds tried in order."""
    for offers in kinds:
        first = next((o for o in offers if obtainable(seen, o) >= 1), None)
        if first is not None:
            return region_of(first.pool)
    return None
