"""What a job is likely to take and cost, before any money is spent: Monte Carlo over futures."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.core.decide import Observation, decide
from surefoot.core.event import (
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    State,
    apply,
)
from surefoot.core.forecast import get_forecaster
from surefoot.core.forecast.port import Forecast, predict_all
from surefoot.core.interval import choose_interval
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Decision, Launch
from surefoot.core.policy import get_policy
from surefoot.core.trace import History
from surefoot.core.units import MS_PER_HOUR, usd
from surefoot.errors import LimitError
from surefoot.report.futures import Futures
from surefoot.report.numbers import clock, dollars
from surefoot.sim import CostModel, simulate

LONGEST_MS = 120 * 24 * MS_PER_HOUR
OPEN_MS = 24 * MS_PER_HOUR
"""How far ahead an open-ended job is looked at."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be foretold. The job's deadline is a duration from `start_ms`."""

    job: Job
    offers: tuple[Offering, ...]
    futures: Futures
    start_ms: int = 0
    history: History = field(default_factory=History)
    model: CostModel = field(default_factory=CostModel)

    @property
    def timed(self) -> Job:
        """The job with its deadline as an instant."""
        limits = self.job.limits
        if limits.deadline_ms is None:
            return self.job
        limits = replace(limits, deadline_ms=self.start_ms + limits.deadline_ms)
        return replace(self.job, limits=limits)

    @property
    def length_ms(self) -> int:
        """How far the futures reach: three times the work, and well past the deadline."""
        steps, deadline = self.job.work.total_steps, self.job.limits.deadline_ms or 0
        if steps is None:
            return OPEN_MS
        work = steps * self.job.work.step_ms
        return min(LONGEST_MS, max(3 * work, deadline + deadline // 2) + 20 * 60_000)


def check_possible(job: Job, offers: Sequence[Offering]) -> None:
    """Refuse terms that no course of events could meet, and say what would be possible.

    Looks only at what is certain: the work at the ceiling against the deadline (a duration),
    the work at the lowest price on offer against the budget, the price cap against all offers.
    Raises LimitError.
    """
    allowed = _allowed(job, offers)
    if not allowed:
        least = min((o.price_micro_usd_h for o in offers), default=None)
        told = "nothing is on offer" if least is None else f"the least is {dollars(usd(least))}"
        cap = job.limits.max_price_micro_usd_h
        shown = "" if cap is None else f" of {dollars(usd(cap))}"
        raise LimitError(
            f"nothing can be bought under these terms: {told} per VM-hour, budget.max_price{shown}",
            hint="raise budget.max_price, or allow more pools or capacities",
        )
    if job.work.total_steps is None:
        return
    worth_ms = job.work.total_steps * job.work.step_ms * job.num_nodes
    _check_deadline(job, worth_ms, most_worth(job, allowed))
    _check_budget(job, worth_ms, allowed)


def most_worth(job: Job, offers: Sequence[Offering]) -> float:
    """Return the greatest training speed that the terms admit, in VMs' worth."""
    most = max(job.throughput.ceiling, float(job.num_nodes))
    if job.limits.max_vms is not None:
        most = min(most, job.limits.max_vms * max(o.speed for o in offers))
    return most


def _allowed(job: Job, offers: Sequence[Offering]) -> list[Offering]:
    cap = job.limits.max_price_micro_usd_h
    return [
        o
        for o in offers
        if o.capacity in job.capacities
        and o.pool in job.pools
        and o.speed > 0
        and (cap is None or o.price_micro_usd_h <= cap)
    ]


def _check_deadline(job: Job, worth_ms: int, most: float) -> None:
    deadline = job.limits.deadline_ms
    if deadline is None or worth_ms / most <= deadline:
        return
    need = math.ceil(worth_ms / deadline)
    least = clock(worth_ms / most / 1000)
    raise LimitError(
        f"the deadline cannot be met: the work takes {least} even at {most:g} VMs' worth without"
        f" a pause, and {clock(deadline / 1000)} are left",
        hint=f"possible: a deadline of more than {least}, or throughput.ceiling of {need} and more",
    )


def _check_budget(job: Job, worth_ms: int, offers: Sequence[Offering]) -> None:
    budget = job.limits.budget_micro_usd
    best = min(offers, key=lambda o: (o.price_micro_usd_h / o.speed, o.pool))
    least = best.price_micro_usd_h / best.speed * worth_ms / MS_PER_HOUR
    if budget is None or least <= budget:
        return
    steps = math.floor((job.work.total_steps or 0) * budget / least)
    raise LimitError(
        f"the budget cannot be met: the work costs {dollars(usd(round(least)))} even at the lowest"
        f" price on offer ({dollars(usd(best.price_micro_usd_h))} per VM-hour, {best.pool}) and"
        f" without a pause; budget.total is {dollars(usd(budget))}",
        hint=f"possible: a budget of more than {dollars(usd(round(least)))},"
        f" or about {steps} steps for this one",
    )


def on_demand_usd(job: Job, offers: Sequence[Offering]) -> float | None:
    """Return what the work costs on an on-demand fleet of the asked size; per hour if open."""
    prices = [o.price_micro_usd_h / o.speed for o in offers if o.capacity is Capacity.ON_DEMAND]
    if not prices:
        return None
    work_ms = (job.work.total_steps or 0) * job.work.step_ms or MS_PER_HOUR
    return min(prices) * job.num_nodes * work_ms / MS_PER_HOUR / 1e6


def first_decision(question: Question) -> tuple[Decision, dict[Pool, Forecast]]:
    """Return what the policy would do at once, and the forecasts that it rests on.

    The interval is the one for the fleet that the first launches give.
    """
    job, model, now = question.timed, question.model, question.start_ms
    forecaster = get_forecaster(job.forecaster)
    state = State(
        save_cost=model.save_cost,
        fleet_cost=model.fleet_cost(model.boot_ms if model.boot_ms is not None else 60_000),
    )
    state = replace(state, market=state.market.updated(question.offers, at_ms=now), now_ms=now)
    seen = Observation(now_ms=now, state=state)
    beliefs = forecaster.fit(question.history, now_ms=now)
    decision = decide(job, get_policy(job.policy), beliefs, seen, forecaster=forecaster.name)
    forecasts = dict(predict_all(beliefs, job.pools, now_ms=now))
    interval = choose_interval(job.interval, _granted(state, decision), forecasts)
    return replace(decision, interval=interval), forecasts


def _granted(state: State, decision: Decision) -> State:
    """Return the state once all launches of a decision are granted and ready."""
    now, offers = state.now_ms, state.market
    for launch in (a for a in decision.plan.actions if isinstance(a, Launch)):
        offer = offers.get(launch.pool, launch.capacity)
        for index in range(launch.count):
            token = f"{launch.pool}-{launch.capacity.value}-{index}"
            speed = offer.speed if offer else 1.0
            asked = InstanceRequested(now, token, launch.pool, launch.capacity, speed)
            for event in (asked, InstanceLaunched(now, token, token), InstanceReady(now, token)):
                state = apply(state, event)
    return state


@dataclass(frozen=True, slots=True)
class Sample:
    """One simulated future of the job."""

    result: str
    wall_s: float
    bill_usd: float
    steps: int
    preemptions: int
    fallbacks: int
    goodput: float | None
    worth: float
    late: bool


def sample(question: Question, seed: int) -> Sample:
    """Return one future of the job; equal seeds give equal futures."""
    job, start = question.timed, question.start_ms
    length = question.length_ms
    market = question.futures.market(seed, start_ms=start, length_ms=length)
    outcome = simulate(
        job, market, model=question.model, seed=seed, history=_copied(question.history)
    )
    wall_ms = outcome.end_ms - outcome.start_ms
    deadline = job.limits.deadline_ms
    done = outcome.result == "done"
    counts = outcome.counts
    work_ms = counts.steps * job.work.step_ms * job.num_nodes
    return Sample(
        result=outcome.result,
        wall_s=wall_ms / 1000,
        bill_usd=usd(outcome.bill.total),
        steps=counts.steps,
        preemptions=counts.notice + counts.silent,
        fallbacks=counts.on_demand_fallbacks,
        goodput=outcome.goodput.share,
        worth=work_ms / wall_ms if wall_ms else 0.0,
        late=deadline is not None and not (done and outcome.end_ms <= deadline),
    )


def _copied(history: History) -> History:
    """Return a history that may grow; through pickle, which is much faster than deepcopy."""
    copy: History = pickle.loads(pickle.dumps(history))
    return copy


def samples(
    question: Question,
    count: int,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Sample]:
    """Return the futures of seeds 0 to `count` - 1, whatever the number of workers."""
    found: dict[int, Sample] = {}
    for seed, one in _run(question, count, workers):
        found[seed] = one
        if progress is not None:
            progress(len(found), count)
    return [found[seed] for seed in range(count)]


def _run(question: Question, count: int, workers: int) -> Iterator[tuple[int, Sample]]:
    if min(workers, count) <= 1:
        for seed in range(count):
            yield seed, sample(question, seed)
        return
    with ProcessPoolExecutor(workers, initializer=_share, initargs=(question,)) as pool:
        waiting = {pool.submit(_one, seed): seed for seed in range(count)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


_QUESTION: list[Question] = []


def _share(question: Question) -> None:
    """Hand the question to a worker process once, not with every future."""
    _QUESTION[:] = [question]


def _one(seed: int) -> Sample:
    return sample(_QUESTION[0], seed)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that at least `share` of the values do not pass; None if infinite."""
    ordered = sorted(values)
    found = ordered[max(0, math.ceil(share * len(ordered)) - 1)]
    return found if math.isfinite(found) else None


def outlook(question: Question, found: Sequence[Sample]) -> dict[str, Any]:
    """Return the figures of a prospect: quantiles over futures, odds, and what binds."""
    job = question.job
    ends = [s.wall_s if s.result == "done" else math.inf for s in found]
    known_end = job.work.total_steps is not None
    bills = [s.bill_usd for s in found]
    per_hour = [s.bill_usd / (s.wall_s / 3600) for s in found if s.wall_s]
    return {
        "futures": len(found),
        "source": question.futures.words,
        "finish_s": {p: quantile(ends, q) for p, q in QUANTILES} if known_end else None,
        "cost_usd": {p: quantile(bills, q) for p, q in QUANTILES} if known_end else None,
        "cost_usd_per_h": {p: quantile(per_hour, q) for p, q in QUANTILES},
        "on_demand_usd": on_demand_usd(job, question.offers) if known_end else None,
        "on_demand_usd_per_h": on_demand_usd(
            replace(job, work=replace(job.work, total_steps=None)), question.offers
        ),
        "odds_done": sum(s.result == "done" for s in found) / len(found) if known_end else None,
        "odds_late": sum(s.late for s in found) / len(found) if job.limits.deadline_ms else None,
        "preemptions": sum(s.preemptions for s in found) / len(found),
        "speed": sum(s.worth for s in found) / len(found),
        "binds": binding(question, found),
    }


QUANTILES = (("p50", 0.5), ("p90", 0.9))


def binding(question: Question, found: Sequence[Sample]) -> list[dict[str, str]]:
    """Return which of the job's limits shape the run, the hardest first, and how."""
    job, count = question.job, len(found)
    binds = []
    broke = sum(s.result == "refused" for s in found)
    if broke:
        binds.append(("budget", f"spent before the work is done in {broke} of {count} futures"))
    late = sum(s.late for s in found)
    if late:
        binds.append(("deadline", f"missed in {late} of {count} futures"))
    cap = job.limits.max_price_micro_usd_h
    shut = [o for o in question.offers if cap is not None and o.price_micro_usd_h > cap]
    if shut:
        binds.append(("max_price", f"shuts out {len(shut)} of {len(question.offers)} offers"))
    stood_in = sum(s.fallbacks > 0 for s in found)
    if stood_in:
        why = f"on-demand VMs stand in for it in {stood_in} of {count} futures"
        binds.append(("floor", why))
    mean = sum(s.worth for s in found) / count
    if mean >= 0.9 * most_worth(job, question.offers):
        binds.append(("ceiling", f"the fleet is near it most of the time ({mean:.2f})"))
    return [{"limit": limit, "how": how} for limit, how in binds]
