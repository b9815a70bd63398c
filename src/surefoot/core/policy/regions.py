"""Where a gang that lives in one region should live: staying put against moving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING, Instance, InstanceState
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.policy.economics import LONGEST_H, Economics, mean_life_h
from surefoot.core.policy.fill import Region, obtainable, region_of, settle
from surefoot.core.policy.terms import dollars, set_aside
from surefoot.core.units import hours


@dataclass(frozen=True, slots=True)
class Place:
    """The region to live in from now on; None when the gang may span regions."""

    region: Region | None
    moving: bool = False
    note: str = ""

    def holds(self, pool: Pool) -> bool:
        """Return whether a pool belongs to the place."""
        return self.region is None or region_of(pool) == self.region


def present_home(seen: Observation) -> Region | None:
    """Return the region with most ready VMs' worth; with none ready, with most on their way."""
    for states in ((InstanceState.READY,), tuple(sorted(STAYING, key=lambda s: s.value))):
        worth: dict[Region, float] = {}
        for vm in seen.state.fleet.select(*states):
            worth[region_of(vm.pool)] = worth.get(region_of(vm.pool), 0.0) + vm.speed
        if worth:
            return min(worth, key=lambda r: (-worth[r], r))
    return None


@dataclass(frozen=True, slots=True)
class _Scene:
    """What one choice looks at, sorted out by region once."""

    job: Job
    seen: Observation
    sums: Economics
    floor: float
    spot: Mapping[Region, Sequence[Offering]]
    safe: Mapping[Region, Sequence[Offering]]
    staying: Mapping[Pool, Sequence[Instance]]
    """Spot VMs by pool."""
    reaches: dict[Region, float] = field(default_factory=dict)

    def reach(self, region: Region) -> float:
        """Return the spot worth that a region is expected to give now, up to the ceiling."""
        known = self.reaches.get(region)
        if known is None:
            known = self.reaches[region] = _reach(self, self.spot.get(region, ()))
        return known


def _by_region(offers: Sequence[Offering]) -> Mapping[Region, Sequence[Offering]]:
    found: dict[Region, list[Offering]] = {}
    for offer in offers:
        found.setdefault(region_of(offer.pool), []).append(offer)
    return found


def _by_pool(vms: Sequence[Instance]) -> Mapping[Pool, Sequence[Instance]]:
    found: dict[Pool, list[Instance]] = {}
    for vm in vms:
        found.setdefault(vm.pool, []).append(vm)
    return found


def choose_place(
    job: Job,
    seen: Observation,
    sums: Economics,
    spot: Sequence[Offering],
    safe: Sequence[Offering],
    *,
    floor: float,
    move_micro_usd: float,
) -> Place:
    """Return where to live: another region only if what it gains repays the move (D.4a).

    A gain is the rise of (speed at the on-demand price - cost) per hour, for as long as the
    other region's VMs are expected to stay and the present shortage to last; the cost is the
    boot of a second fleet, two pauses, the loading of a checkpoint and its transfer.
    """
    if not job.one_region:
        return Place(None)
    here = present_home(seen)
    if here is not None and sums.alternative is None:
        return Place(here)
    staying = _by_pool(seen.state.fleet.select(*STAYING, capacity=Capacity.SPOT))
    scene = _Scene(job, seen, sums, floor, _by_region(spot), _by_region(safe), staying)
    if here is None:
        return Place(_first(scene, spot, safe))
    mine, short = _profit(scene, here), shortage_h(seen, sums, spot, here)
    best, gain, text = here, 0.0, ""
    for region in sorted(scene.spot.keys() - {here}):
        theirs = _profit(scene, region)
        span_h = _span_h(scene, region, short)
        cost = _move_cost(scene, region) + move_micro_usd
        net = (theirs - mine) * span_h - cost
        if net > gain:
            best, gain = region, net
            text = (
                f"move {here[1]} -> {region[1]}: {dollars(theirs - mine)}/h better for "
                f"{span_h:.2f} h, the move costs {dollars(cost)}"
            )
    return Place(best, moving=best != here, note=text)


def egress_micro_usd(job: Job, seen: Observation) -> int:
    """Return what sending the state to every VM of a fleet in another region costs.

    By the size of the newest checkpoint; 0 while none is known.
    """
    copies = math.ceil(max(job.throughput.floor, 1.0))
    size = seen.state.save_cost.size_bytes
    return round(job.limits.egress_micro_usd_gb * copies * size / 1e9)


def _first(scene: _Scene, spot: Sequence[Offering], safe: Sequence[Offering]) -> Region | None:
    """Return where to begin (again): the most profitable region, else any with offers."""
    regions = sorted({*scene.spot, *scene.safe})
    if scene.sums.alternative is None or not regions:
        return settle(scene.seen, spot, safe)
    profit = {r: _profit(scene, r) for r in regions}
    return min(regions, key=lambda r: (-profit[r], r))


def _reach(scene: _Scene, offers: Sequence[Offering]) -> float:
    most = max(scene.job.throughput.ceiling, float(scene.job.num_nodes))
    total = 0.0
    for offer in offers:
        staying = scene.staying.get(offer.pool, ())
        total += sum(vm.speed for vm in staying)
        total += _more(scene.seen, scene.sums.forecast, offer, len(staying), most) * offer.speed
    return min(most, total)


def _more(
    seen: Observation,
    forecast: Mapping[Pool, Forecast],
    offer: Offering,
    staying: int,
    most: float,
) -> float:
    if set_aside(seen, offer.pool) or obtainable(seen, offer) < 1:
        return 0.0
    if offer.available is not None:
        return float(offer.available)
    belief = forecast.get(offer.pool)
    if belief is None:
        return 0.5 * most
    return max(0.0, belief.launch_odds * (max(belief.holdable, 1.0) - staying))


def _profit(scene: _Scene, region: Region) -> float:
    """Return micro-dollars per hour: speed at the on-demand price less the fleet's cost."""
    sums, floor = scene.sums, scene.floor
    value = sums.alternative or 0.0
    cheap, dear = scene.spot.get(region, ()), scene.safe.get(region, ())
    price = min((sums.price(o, 0) for o in cheap), default=value)
    fill_price = min((sums.list_price(o) for o in dear), default=2 * value)
    size = 0.0 if price >= value else scene.reach(region)
    missing = max(0.0, floor - size)
    return value * sums.shape.at(max(size, floor)) - price * size - fill_price * missing


def _span_h(scene: _Scene, there: Region, short_h: float) -> float:
    """Return how long the difference should last: their VMs' lives, our shortage."""
    life = max((scene.sums.life_h(o) for o in scene.spot.get(there, ())), default=0.0)
    return min(life, max(short_h, hours(60_000)))


def shortage_h(
    seen: Observation, sums: Economics, spot: Sequence[Offering], here: Region | None
) -> float:
    """Return how long the home region's spot is expected to stay as it is."""
    spans = []
    for offer in spot:
        belief = sums.forecast.get(offer.pool)
        if (here is not None and region_of(offer.pool) != here) or belief is None:
            continue
        short = belief.in_drought or set_aside(seen, offer.pool) or offer.available == 0
        if not short:
            spans.append(sums.life_h(offer))
        elif belief.drought is not None:
            spans.append(residual_h(belief))
        else:
            spans.append(belief.window_h)
    return min(spans, default=sums.horizon_h)


def residual_h(belief: Forecast) -> float:
    """Return the expected rest of the present drought, hours, by its age."""
    assert belief.drought is not None
    age = belief.spell_age_h if belief.in_drought else 0.0
    return mean_life_h(belief.drought, age, LONGEST_H)


def _move_cost(scene: _Scene, region: Region) -> float:
    """Return what a move costs, micro-dollars, without the transfer: a second fleet's boot,
    two pauses and one load."""
    sums, theirs = scene.sums, scene.spot.get(region, ())
    price = min((sums.list_price(o) for o in theirs), default=0.0)
    load_h = hours(scene.seen.state.save_cost.restore_ms)
    pauses = (2 * sums.pause_h + load_h) * sums.size * (sums.alternative or 0.0)
    return price * scene.reach(region) * sums.boot_h + pauses
