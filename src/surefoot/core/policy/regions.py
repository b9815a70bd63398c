"""Where a gang that lives in one region should live: staying put against moving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING, InstanceState
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
    if here is None:
        return Place(_first(job, seen, sums, spot, safe, floor=floor))
    if sums.alternative is None:
        return Place(here)
    mine = _profit(job, seen, sums, spot, safe, here, floor=floor)
    best, gain, text = here, 0.0, ""
    for region in sorted({region_of(o.pool) for o in spot} - {here}):
        theirs = _profit(job, seen, sums, spot, safe, region, floor=floor)
        span_h = _span_h(seen, sums, spot, here, region)
        cost = _move_cost(job, seen, sums, spot, region) + move_micro_usd
        net = (theirs - mine) * span_h - cost
        if net > gain:
            best, gain = region, net
            text = (
                f"move {here[1]} -> {region[1]}: {dollars(theirs - mine)}/h better for "
                f"{span_h:.2f} h, the move costs {dollars(cost)}"
            )
    return Place(best, moving=best != here, note=text)


def _first(
    job: Job,
    seen: Observation,
    sums: Economics,
    spot: Sequence[Offering],
    safe: Sequence[Offering],
    *,
    floor: float,
) -> Region | None:
    """Return where to begin (again): the most profitable region, else any with offers."""
    regions = sorted({region_of(o.pool) for o in (*spot, *safe)})
    if sums.alternative is None or not regions:
        return settle(seen, spot, safe)
    profit = {r: _profit(job, seen, sums, spot, safe, r, floor=floor) for r in regions}
    return min(regions, key=lambda r: (-profit[r], r))


def _reach(job: Job, seen: Observation, sums: Economics, offers: Sequence[Offering]) -> float:
    """Return the spot worth that a region is expected to give now, up to the ceiling."""
    most = max(job.throughput.ceiling, float(job.num_nodes))
    total = 0.0
    for offer in offers:
        staying = seen.state.fleet.select(*STAYING, capacity=Capacity.SPOT, pool=offer.pool)
        total += sum(vm.speed for vm in staying)
        total += _more(seen, sums.forecast, offer, len(staying), most) * offer.speed
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


def _profit(
    job: Job,
    seen: Observation,
    sums: Economics,
    spot: Sequence[Offering],
    safe: Sequence[Offering],
    region: Region,
    *,
    floor: float,
) -> float:
    """Return micro-dollars per hour: speed at the on-demand price less the fleet's cost."""
    value = sums.alternative or 0.0
    cheap = [o for o in spot if region_of(o.pool) == region]
    dear = [o for o in safe if region_of(o.pool) == region]
    reach = _reach(job, seen, sums, cheap)
    price = min((sums.price(o, 0) for o in cheap), default=value)
    fill_price = min((sums.list_price(o) for o in dear), default=2 * value)
    size = 0.0 if price >= value else reach
    missing = max(0.0, floor - size)
    return value * sums.shape.at(max(size, floor)) - price * size - fill_price * missing


def _span_h(
    seen: Observation,
    sums: Economics,
    spot: Sequence[Offering],
    here: Region,
    there: Region,
) -> float:
    """Return how long the difference should last: their VMs' lives, our shortage."""
    theirs = [o for o in spot if region_of(o.pool) == there]
    life = max((sums.life_h(o) for o in theirs), default=0.0)
    return min(life, max(shortage_h(seen, sums, spot, here), hours(60_000)))


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


def _move_cost(
    job: Job, seen: Observation, sums: Economics, spot: Sequence[Offering], region: Region
) -> float:
    """Return what a move costs, micro-dollars, without the transfer: a second fleet's boot,
    two pauses and one load."""
    theirs = [o for o in spot if region_of(o.pool) == region]
    size = _reach(job, seen, sums, theirs)
    price = min((sums.list_price(o) for o in theirs), default=0.0)
    load_h = hours(seen.state.save_cost.restore_ms)
    pauses = (2 * sums.pause_h + load_h) * sums.size * (sums.alternative or 0.0)
    return price * size * sums.boot_h + pauses
