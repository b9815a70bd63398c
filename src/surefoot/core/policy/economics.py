"""What a spot VM is worth against the on-demand alternative, and when a switch repays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.core.decide import Observation
from surefoot.core.fleet import STAYING, Instance, InstanceState
from surefoot.core.forecast.port import Forecast, Hazard
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.policy.terms import Curve, curve, floor_worth, price_of, steps_left, steps_per_h
from surefoot.core.units import hours

LONGEST_H = 24.0
"""No switch is judged by a longer future than this: prices and supply drift."""


def mean_life_h(hazard: Hazard, age_h: float, horizon_h: float) -> float:
    """Return the expected time a VM of this age is kept within the horizon, in hours.

    The integral of the survival function, in closed form over the hazard's steps.
    """
    known = hazard.lives.get((age_h, horizon_h))
    if known is None:
        known = hazard.lives[age_h, horizon_h] = _mean_life_h(hazard, age_h, horizon_h)
    return known


def _mean_life_h(hazard: Hazard, age_h: float, horizon_h: float) -> float:
    edges = np.append(hazard.edges_h, np.inf)
    within = np.minimum(np.maximum(edges, age_h), age_h + horizon_h)
    span = within[1:] - within[:-1]
    losses = span * hazard.rate_per_h
    alive = np.exp(-(np.cumsum(losses) - losses))
    small = losses < 1e-9
    rate = np.where(small, 1.0, hazard.rate_per_h)
    kept = np.where(small, span, -np.expm1(-losses) / rate)
    return float(np.sum(alive * kept))


@dataclass(frozen=True, slots=True)
class Economics:
    """The figures of one decision. Money in micro-dollars per hour, times in hours."""

    alternative: float | None
    """Price of one VM's worth of speed from on-demand; None where none is sold."""
    horizon_h: float
    """How long a change can pay: until the work is done, at most a day."""
    size: float
    """VMs' worth that a pause stops: the fleet, at least the floor."""
    boot_h: float
    pause_h: float
    """What every change of membership costs the survivors."""
    detect_h: float
    rollback_h: float
    """Lost work and loading when the whole group goes: half the save distance is not known
    here, so the time of one save and one load stands for it."""
    shape: Curve
    forecast: Mapping[Pool, Forecast]
    calm_h: Mapping[Pool, float]
    """How long each pool has been seen to keep its VMs, hours."""

    def is_blind(self, pool: Pool) -> bool:
        """Return whether the pool's forecast rests on its prior alone: no loss was ever seen."""
        belief = self.forecast.get(pool)
        return belief is None or belief.observed_losses == 0

    def stay_h(self, offer: Offering) -> float:
        """Return how long a switch to this offering can count on: the expected life, or where
        the forecast is blind no longer than the calm seen so far, a rule without prediction
        that pays at most about twice the least (as in ski rental)."""
        life = self.life_h(offer)
        if offer.capacity is not Capacity.SPOT or not self.is_blind(offer.pool):
            return life
        return min(life, self.calm_h.get(offer.pool, life))

    def needs_scout(self, pool: Pool) -> bool:
        """Return whether nothing at all is known of the pool: one VM is tried first."""
        return self.is_blind(pool) and pool not in self.calm_h

    def life_h(self, offer: Offering) -> float:
        """Return how long a fresh VM of this offering is expected to be kept."""
        belief = self.forecast.get(offer.pool)
        if offer.capacity is not Capacity.SPOT or belief is None:
            return self.horizon_h
        return mean_life_h(belief.hazard, 0.0, self.horizon_h)

    def risk_micro_usd_h(self, offer: Offering, held: int) -> float:
        """Return what the chance of losing one more VM of a pool costs per hour.

        A pool event stops everyone for detection and re-forming, its victims are missed for a
        boot, and if it takes the whole fleet the work since the last save goes too; the last
        two grow with the pool's share of the fleet, so the price rises with `held`.
        """
        belief = self.forecast.get(offer.pool)
        if offer.capacity is not Capacity.SPOT or belief is None or self.alternative is None:
            return 0.0
        share = min(1.0, (held + 1) * belief.event_share * offer.speed / max(self.size, 1.0))
        pause = self.size * (self.pause_h + self.detect_h) / (held + 1)
        refill = belief.event_share * offer.speed * self.boot_h * (1.0 + 2.0 * share)
        wipe = 2.0 * share * self.rollback_h * offer.speed
        return belief.events_per_h * self.alternative * (pause + refill + wipe)

    def price(self, offer: Offering, held: int) -> float:
        """Return the marginal price per VM's worth: list price, unpaid boot, risk."""
        boot = offer.price_micro_usd_h * self.boot_h / max(self.life_h(offer), 1e-6)
        risk = self.risk_micro_usd_h(offer, held)
        return (offer.price_micro_usd_h + min(boot, offer.price_micro_usd_h) + risk) / offer.speed

    def list_price(self, offer: Offering) -> float:
        """Return the plain price per VM's worth."""
        return offer.price_micro_usd_h / offer.speed

    def pause_micro_usd(self) -> float:
        """Return what stopping the fleet once costs."""
        return self.size * self.pause_h * (self.alternative or 0.0)

    def return_gain(self, offer: Offering, vms: int) -> float:
        """Return the dollars (micro) gained by moving `vms` from on-demand to this spot offer.

        D.4a of the theory notes with an overlap: the saving of one expected life, less the boot
        that is paid beside the on-demand VM, the boot of the on-demand VM that steps in again
        after the loss, and two pauses of everybody. Negative: the switch does not repay.
        """
        if self.alternative is None:
            return 0.0
        life = self.stay_h(offer)
        saving = (self.alternative - self.list_price(offer)) * offer.speed * max(0.0, life)
        overlap = (offer.price_micro_usd_h + self.alternative * offer.speed) * self.boot_h
        return vms * (saving - overlap) - 2 * self.pause_micro_usd()

    def growth_gain(self, offer: Offering, worth: float, vms: int) -> float:
        """Return micro-dollars gained by adding `vms` of an offer to `worth` (D.4b)."""
        if self.alternative is None:
            return 0.0
        life = self.stay_h(offer)
        gain = self.shape.gain(worth, vms * offer.speed) * self.alternative
        paid = vms * offer.price_micro_usd_h
        pauses = 2 * self.shape.at(worth) * self.pause_h * self.alternative
        return gain * max(0.0, life - self.boot_h) - paid * life - pauses

    def marginal_price(self, offer: Offering, worth: float, held: int) -> float:
        """Return the price per unit of speed of one more VM on top of `worth`."""
        gain = self.shape.gain(worth, offer.speed)
        return self.price(offer, held) * offer.speed / gain if gain > 1e-12 else float("inf")


def economics(
    job: Job, seen: Observation, forecast: Mapping[Pool, Forecast], safe: tuple[Offering, ...]
) -> Economics:
    """Return the figures of this decision; `safe` are the on-demand offerings to compare with."""
    cost, save = seen.state.fleet_cost, seen.state.save_cost
    alternative = min((o.price_micro_usd_h / o.speed for o in safe), default=None)
    staying = seen.state.fleet.speed(*STAYING)
    return Economics(
        alternative=alternative,
        horizon_h=_horizon_h(job, seen),
        size=max(staying, floor_worth(job, seen), 1.0),
        boot_h=hours(cost.boot_ms),
        pause_h=hours(cost.reform_ms),
        detect_h=hours(cost.detect_ms) * _silent_share(seen),
        rollback_h=hours(save.persist_ms + save.restore_ms + cost.boot_ms),
        shape=curve(job),
        forecast=forecast,
        calm_h=_calm_h(seen, forecast),
    )


def _calm_h(seen: Observation, forecast: Mapping[Pool, Forecast]) -> Mapping[Pool, float]:
    """Return by pool the age of the oldest ready spot VM, or of the window if that is more."""
    calm = {
        p: b.spell_age_h
        for p, b in sorted(forecast.items())
        if b.spell_age_h > 0 and not b.in_drought
    }
    for vm in seen.state.fleet.select(InstanceState.READY, capacity=Capacity.SPOT):
        calm[vm.pool] = max(calm.get(vm.pool, 0.0), hours(vm.age_ms(seen.now_ms)))
    return calm


def _silent_share(seen: Observation) -> float:
    """Return the share of preemptions without a notice, one of each assumed beforehand."""
    saved, total = seen.state.notices
    return (total - saved + 1) / (total + 2)


def _horizon_h(job: Job, seen: Observation) -> float:
    left = steps_left(job, seen)
    if left is None:
        return LONGEST_H
    speed = curve(job).at(max(float(job.num_nodes), floor_worth(job, seen), 1.0))
    return min(LONGEST_H, max(left / steps_per_h(job, seen) / speed, 1e-3))


def anchor_pays(
    seen: Observation, sums: Economics, spot: Sequence[Instance], safe: Sequence[Offering]
) -> bool:
    """Return whether one on-demand VM that keeps the state alive costs less than it saves.

    It saves the work since the last checkpoint and the load whenever all spot VMs go at once
    without a usable notice. Fleets over several regions are taken not to go at once.
    """
    ready = [vm for vm in spot if vm.state is InstanceState.READY]
    pools = sorted({vm.pool for vm in ready})
    places = {(pool.provider, pool.region) for pool in pools}
    if len(places) != 1 or sums.alternative is None or not safe:
        return False
    beliefs = [sums.forecast[pool] for pool in pools if pool in sums.forecast]
    events = max((b.events_per_h for b in beliefs), default=0.0)
    all_gone = min((b.event_share for b in beliefs), default=0.0) / len(pools)
    silent = _silent_share(seen)
    save = seen.state.save_cost
    effective_h = max(save.effective_ms, 1.0) / 3_600_000
    interval_h = math.sqrt(2 * effective_h / max(events * silent, 1e-6))
    lost_h = interval_h / 2 + hours(save.persist_ms + save.restore_ms)
    risk = events * all_gone * silent * lost_h * sums.size * sums.alternative
    premium = min(o.price_micro_usd_h for o in safe) - max(price_of(seen, vm) for vm in ready)
    return risk > premium
