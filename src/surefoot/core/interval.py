"""When to save next: checkpoint theory applied to measured costs and forecast losses.

Symbols as in the literature; all times in one unit of the caller's (seconds by habit), rates per
that unit: C what one save costs training, M mean time between losses, R restart time, p time
until a save is durable, q share of losses that a save on notice makes harmless.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from surefoot.core.event import State
from surefoot.core.fleet import Instance, InstanceState
from surefoot.core.forecast.port import Forecast
from surefoot.core.job import IntervalRule
from surefoot.core.market import Capacity, Pool
from surefoot.core.plan import IntervalChoice
from surefoot.core.units import MS_PER_HOUR

HARDWARE_PER_VM_H = 1e-4
"""Failures of a VM's own hardware per hour, beside preemptions.

Meta's Llama 3 report counts 419 unexpected stops in 54 days of 16,384 GPUs: 2e-5 per GPU-hour,
so 1.6e-4 for a VM of eight and less for smaller ones.
"""

NOTICE_PRIOR = (1.0, 2.0)
"""(saved in time, preemptions) that the notice share starts from: even odds, soon outweighed."""


def checked(name: str, value: float) -> float:
    """Return `value` if it is a finite number of at least 0, else raise ValueError naming it."""
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a finite number, 0 or more, got {value!r}")
    return float(value)


def lambert_w0(x: float) -> float:
    """Return the principal branch of Lambert's W (w with w exp(w) = x) for x >= -1/e.

    Halley's iteration from a branch-point series or a logarithm; about 1e-15 relative.
    Raises ValueError below -1/e.
    """
    if math.isnan(x) or x < -1 / math.e - 1e-15:
        raise ValueError(f"lambert_w0 needs x >= -1/e, got {x!r}")
    distance = math.sqrt(max(0.0, 2 * (math.e * x + 1)))
    if distance < 1e-7:
        return -1.0 + distance
    w = -1 + distance - distance**2 / 3 if x < 0.3 else math.log1p(x)
    for _ in range(50):
        e = math.exp(w)
        f = w * e - x
        step = f / (e * (w + 1) - (w + 2) * f / (2 * w + 2))
        w -= step
        if abs(step) <= 1e-15 * (1 + abs(w)):
            break
    return w


def young(cost: float, mtbf: float) -> float:
    """Return Young's interval sqrt(2 C M) (Young 1974); infinite when nothing is ever lost."""
    return math.sqrt(2 * checked("cost", cost) * _mean_time("mtbf", mtbf))


def daly_first_order(cost: float, mtbf: float, restart: float = 0.0) -> float:
    """Return Daly's first-order interval sqrt(2 C (M + R)) - C, at least 0 (Daly 2006)."""
    mean = _mean_time("mtbf", mtbf) + checked("restart", restart)
    return max(0.0, math.sqrt(2 * checked("cost", cost) * mean) - cost)


def daly_higher_order(cost: float, mtbf: float) -> float:
    """Return Daly's higher-order interval (Daly 2006): M itself once a save costs 2 M or more."""
    checked("cost", cost)
    if _mean_time("mtbf", mtbf) == math.inf:
        return math.inf
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def exact(cost: float, mtbf: float) -> float:
    """Return the interval that is optimal for exponential losses: M (1 + W0(-exp(-1 - C/M))).

    From d/dt [(exp((t + C)/M) - 1) / t] = 0; restart and downtime drop out.
    """
    checked("cost", cost)
    if _mean_time("mtbf", mtbf) == math.inf:
        return math.inf
    ratio = cost / mtbf
    if ratio < 1e-9:
        return math.sqrt(2 * cost * mtbf)  # W0 near its branch point loses digits to cancellation
    return mtbf * (1 + lambert_w0(-math.exp(-1 - ratio)))


def asynchronous(
    cost: float, rate: float, *, persist: float = 0.0, slots: int = 1, notice_share: float = 0.0
) -> float:
    """Return the interval for saves that persist in the background, with notices.

    `cost` is what a save takes from training (stall + slowdown x persist). A loss rolls back
    half an interval and one persist, and a share q of losses costs no roll-back:
    w(t) = C/t + rate ((1 - q)(t/2 + p) + ...), so t = the optimum for the rate (1 - q) rate, not
    under p/N for N saves in flight. Infinite when nothing that hurts is expected.
    """
    checked("rate", rate)
    if not 0 <= notice_share <= 1:
        raise ValueError(f"notice_share must be within 0 and 1, got {notice_share!r}")
    if slots < 1:
        raise ValueError(f"slots must be 1 or more, got {slots!r}")
    harmful = rate * (1 - notice_share)
    best = exact(cost, 1 / harmful) if harmful > 1e-300 else math.inf
    return max(checked("persist", persist) / slots, best)


def fluid(cost: float, hazard: float) -> float:
    """Return sqrt(2 C / h): the interval at an age with hazard h (Ling, Mi and Lin 2001)."""
    checked("hazard", hazard)
    return math.sqrt(2 * checked("cost", cost) / hazard) if hazard > 0 else math.inf


def weibull(cost: float, age: float, *, shape: float, scale: float) -> float:
    """Return `fluid` for a Weibull life: hazard (k/s)(a/s)^(k-1) at age a > 0."""
    if not (shape > 0 and scale > 0 and age > 0):
        raise ValueError(f"shape, scale and age must be over 0, got {shape}, {scale}, {age}")
    return fluid(cost, shape / scale * (age / scale) ** (shape - 1))


def multi_level(levels: Sequence[tuple[float, float]]) -> list[float]:
    """Return the interval of each level from its (cost C_l, rate of losses that need it).

    First order: w = sum C_l/t_l + sum rate_l t_l/2, so t_l = sqrt(2 C_l / rate_l) each by
    itself; cheaper levels are never saved more rarely than the dearer ones behind them.
    """
    alone = [fluid(cost, rate) for cost, rate in levels]
    return [min(alone[i:]) for i in range(len(alone))]


def waste(
    interval: float, cost: float, rate: float, *, persist: float = 0.0, recovery: float = 0.0
) -> float:
    """Return the first-order share of time wasted: C/t + rate (t/2 + p + R)."""
    return cost / interval + rate * (interval / 2 + persist + recovery)


def efficiency(interval: float, cost: float, mtbf: float, restart: float, down: float) -> float:
    """Return Daly's useful share of time for exponential losses, saves of cost C in between."""
    lost = math.exp(restart / mtbf) * (mtbf + down) * math.expm1((interval + cost) / mtbf)
    return interval / lost


@dataclass(frozen=True, slots=True)
class Exposure:
    """What threatens the present group, per hour."""

    preemptions_per_h: float
    """Moments at which the market takes one or more of the group's VMs."""
    failures_per_h: float
    """Failures of hardware, which give no notice."""
    vms: int
    pools: int


def exposure(
    state: State,
    forecasts: Mapping[Pool, Forecast],
    *,
    hardware_per_vm_h: float = HARDWARE_PER_VM_H,
) -> Exposure:
    """Return how often the fleet's VMs are expected to be hit, counting pool events, not VMs.

    In a pool with k VMs of hazards h_i, of which one event takes the share s, an event costs
    max(1, s k) VMs, so events come at sum h_i / max(1, s k): k times a VM's rate when losses are
    independent, a VM's own rate when the pool goes as a whole. Pools are independent.
    VMs that were given notice are not counted: their loss is being dealt with.
    """
    ready, coming = [], []
    for vm in state.fleet:
        if vm.state is InstanceState.READY:
            ready.append(vm)
        elif vm.state in (InstanceState.STARTING, InstanceState.REQUESTED):
            coming.append(vm)
    vms = ready or coming
    spot: dict[Pool, list[Instance]] = {}
    for vm in vms:
        if vm.capacity is Capacity.SPOT:
            spot.setdefault(vm.pool, []).append(vm)
    events = math.fsum(
        _events_per_h(forecasts[pool], members, state.now_ms)
        for pool, members in spot.items()
        if pool in forecasts
    )
    return Exposure(events, len(vms) * hardware_per_vm_h, len(vms), len(spot))


def notice_share(notices: tuple[int, int], *, prior: tuple[float, float] = NOTICE_PRIOR) -> float:
    """Return the expected share of preemptions whose emergency save is durable in time.

    The mean of a Beta posterior, from (saved in time, all) so far and a prior of that form.
    """
    saved, total = notices
    if not 0 <= saved <= total:
        raise ValueError(f"notices must be (saved, all) with 0 <= saved <= all, got {notices}")
    return (saved + prior[0]) / (total + prior[1])


def choose_interval(
    rule: IntervalRule, state: State, forecasts: Mapping[Pool, Forecast]
) -> IntervalChoice:
    """Return the work between checkpoints for the present fleet, within the rule's bounds.

    Expected waste is linear in the rate of losses, so the mean of the forecast rate is what
    counts, whatever its uncertainty. Raises ValueError, naming it, for a rate that is negative
    or not finite and for bounds that are not 0 < min <= max.
    """
    check_rule(rule)
    threat = exposure(state, forecasts)
    share = notice_share(state.notices)
    cost = state.save_cost
    rate = threat.preemptions_per_h + threat.failures_per_h
    harmful = threat.preemptions_per_h * (1 - share) + threat.failures_per_h
    best = asynchronous(
        cost.effective_ms, harmful / MS_PER_HOUR, persist=cost.stall_ms + cost.persist_ms
    )
    interval = round(min(max(best, rule.min_ms), rule.max_ms))
    if rule.fixed_ms is not None:
        interval = rule.fixed_ms
    return IntervalChoice(
        interval_ms=interval,
        reason=_reason(rule, interval, best, threat, share, cost.effective_ms),
        hazard_per_h=rate,
        notice_share=share,
        cost_ms=cost.effective_ms,
    )


def check_rule(rule: IntervalRule) -> None:
    """Raise ValueError, naming the field, for bounds that no interval can meet."""
    for name, value in (("min_ms", rule.min_ms), ("max_ms", rule.max_ms)):
        if value <= 0:
            raise ValueError(f"interval {name} must be over 0, got {value}")
    if rule.min_ms > rule.max_ms:
        raise ValueError(f"interval min_ms {rule.min_ms} is over max_ms {rule.max_ms}")
    if rule.fixed_ms is not None and rule.fixed_ms <= 0:
        raise ValueError(f"interval fixed_ms must be over 0, got {rule.fixed_ms}")


def _mean_time(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be over 0, got {value!r}")
    return value


def _events_per_h(forecast: Forecast, members: Sequence[Instance], now_ms: int) -> float:
    name = f"hazard of {forecast.pool}"
    ages = Counter(vm.age_ms(now_ms) for vm in members)  # VMs launched together share one look-up
    losses = math.fsum(n * checked(name, forecast.hazard_at(age)) for age, n in ages.items())
    share = checked(f"event share of {forecast.pool}", forecast.event_share)
    return losses / max(1.0, min(share, 1.0) * len(members))


def _reason(
    rule: IntervalRule,
    interval: int,
    best: float,
    threat: Exposure,
    share: float,
    cost_ms: float,
) -> str:
    if rule.fixed_ms is not None:
        return f"every {interval / 1000:.0f} s of work, as the job says"
    bound = ""
    if best > rule.max_ms:
        bound = f" (held to the longest allowed, {rule.max_ms / 1000:.0f} s)"
    elif best < rule.min_ms:
        bound = f" (held to the shortest allowed, {rule.min_ms / 1000:.0f} s)"
    return (
        f"every {interval / 1000:.0f} s of work{bound}: {threat.preemptions_per_h:.3g} losses/h "
        f"expected over {threat.vms} VMs in {threat.pools} spot pools, {share:.0%} of them saved "
        f"on notice, a save costs {cost_ms / 1000:.2g} s"
    )
