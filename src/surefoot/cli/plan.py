"""`surefoot plan`: the priced plan of a job, before any money is spent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from surefoot.cli import frame, local, markets
from surefoot.config import JobFile, load_job
from surefoot.controller.clock import RealClock
from surefoot.core.forecast.port import Forecast
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Decision, Launch
from surefoot.core.replay import Replay
from surefoot.core.units import usd
from surefoot.errors import LimitError
from surefoot.report import prospect
from surefoot.report.clean import clean
from surefoot.report.futures import Resampled
from surefoot.report.numbers import DASH, clock, dollars, number, percent
from surefoot.traces import read_trace
from surefoot.traces.facts import history_of


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan with its figures: what is foretold, and what would be done first."""

    question: prospect.Question
    decision: Decision
    forecasts: Mapping[Pool, Forecast]
    figures: Mapping[str, Any]


def plan(
    job: Annotated[Path, typer.Argument(help="The job file (YAML).")],
    history: Annotated[
        Path | None,
        typer.Option(
            help="A trace of these pools: forecasts learn from it, futures are cut of it."
        ),
    ] = None,
    futures: Annotated[int, typer.Option(help="How many futures are simulated.")] = 20,
    workers: Annotated[int, typer.Option(help="Processes; 0 is one a core.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Tell what a job would do first, how long it would take and what it would cost.

    Nothing is started. Terms that cannot be met are refused with what would be possible."""
    job_file, now_ms = load_job(job, now_ms=RealClock().now_ms()), RealClock().now_ms()
    markets.at_least("--futures", futures, 1)
    question = ask(job_file, history, now_ms=now_ms)
    priced = price(question, count=futures, workers=workers or os.cpu_count() or 1)
    if as_json:
        _print_json(priced)
        return
    show(priced, frame.wide())
    refuse_hopeless(priced)


def _print_json(priced: Priced) -> None:
    """Print one document; a refusal is part of it."""
    try:
        refuse_hopeless(priced)
    except LimitError as error:
        frame.print_json({**as_dict(priced), "error": frame.error_body(error)})
        raise typer.Exit(frame.REFUSED) from None
    frame.print_json(as_dict(priced))


def ask(job_file: JobFile, history: Path | None, *, now_ms: int) -> prospect.Question:
    """Return what is to be foretold, from a record's end on, or on the job's own market."""
    if history is not None:
        record = read_trace(history)
        offers = Replay(record).offerings(record.end_ms - 1)
        learned, start_ms = history_of(record), record.end_ms
    elif job_file.local is None and any(cloud != "local" for cloud in job_file.clouds):
        from surefoot.cli import clouds

        return clouds.question(job_file, now_ms=now_ms)
    else:
        record = local.read_market(job_file)
        offers, learned, start_ms = Replay(record).offerings(record.start_ms), None, 0
    terms = markets.terms_on(job_file, record, now_ms=now_ms)
    return prospect.Question(
        job=terms,
        offers=tuple(o for o in offers if o.pool in terms.pools),
        futures=Resampled(record),
        start_ms=start_ms,
        model=markets.costs_of(job_file),
        **({} if learned is None else {"history": learned}),
    )


def price(question: prospect.Question, *, count: int, workers: int) -> Priced:
    """Return the priced plan. Raises LimitError for terms that nothing could meet."""
    prospect.check_possible(question.job, question.offers)
    decision, forecasts = prospect.first_decision(question)
    with markets.progress_bar("simulating") as progress:
        found = prospect.samples(question, count, workers=workers, progress=progress)
    return Priced(question, decision, forecasts, prospect.outlook(question, found))


def refuse_hopeless(priced: Priced) -> None:
    """Raise LimitError when no simulated future meets the deadline or the budget."""
    figures, limits = priced.figures, priced.question.job.limits
    finish, cost = figures["finish_s"] or {}, figures["cost_usd"] or {}
    if figures["odds_late"] == 1.0:
        told = clock(finish.get("p50")) if finish.get("p50") else "longer than was looked ahead"
        raise LimitError(
            f"the deadline is missed in all {figures['futures']} futures: the job takes {told}",
            hint=f"possible in 9 of 10: a deadline of {clock(finish.get('p90'))}"
            if finish.get("p90")
            else "lower the work, raise throughput.ceiling, or allow on-demand VMs",
        )
    if limits.budget_micro_usd is not None and figures["odds_done"] == 0.0:
        least = figures["on_demand_usd"]
        raise LimitError(
            f"the work is not done within the budget in any of {figures['futures']} futures"
            f" (spent: {dollars(cost.get('p50'))})",
            hint=f"on demand it costs {dollars(least)}" if least else "raise budget.total",
        )


def as_dict(priced: Priced) -> dict[str, Any]:
    """Return the plan as JSON values."""
    decision = priced.decision
    return {
        "job": priced.question.job.name,
        "policy": decision.policy,
        "forecaster": decision.forecaster,
        "pools": [_pool(priced, pool) for pool in _ranked(priced)],
        "first": {
            "actions": [_words(a) for a in decision.plan.actions],
            "reason": decision.plan.reason,
            "interval_s": decision.interval.interval_ms / 1000,
            "interval_reason": decision.interval.reason,
        },
        **priced.figures,
    }


def _ranked(priced: Priced) -> list[Pool]:
    """Return the pools, the cheapest VM's worth of spot first."""

    def key(pool: Pool) -> tuple[float, Pool]:
        offer = _offer(priced, pool, Capacity.SPOT)
        return (offer.price_micro_usd_h / offer.speed if offer else float("inf"), pool)

    return sorted(priced.question.job.pools, key=key)


def _offer(priced: Priced, pool: Pool, capacity: Capacity) -> Offering | None:
    offers = priced.question.offers
    return next((o for o in offers if (o.pool, o.capacity) == (pool, capacity)), None)


def _pool(priced: Priced, pool: Pool) -> dict[str, Any]:
    belief = priced.forecasts[pool]
    spot, safe = (_offer(priced, pool, c) for c in (Capacity.SPOT, Capacity.ON_DEMAND))
    return {
        "pool": str(pool),
        "spot_usd_h": usd(spot.price_micro_usd_h) if spot else None,
        "on_demand_usd_h": usd(safe.price_micro_usd_h) if safe else None,
        "speed": (spot or safe).speed if spot or safe else None,  # type: ignore[union-attr]
        "loss_within_1h": 1 - belief.survival(0, 3_600_000),
        "hazard_per_h": [belief.hazard_low, belief.hazard_high],
        "mttp_h": belief.mttp_h,
        "launch_odds": belief.launch_odds,
        "in_drought": belief.in_drought,
        "observed_losses": belief.observed_losses,
        "notes": list(belief.notes),
    }


def _words(action: Any) -> str:
    if isinstance(action, Launch):
        kind = action.capacity.value.replace("_", "-")
        return f"launch {action.count} {kind} in {action.pool}"
    return f"{type(action).__name__.lower()} {getattr(action, 'token', '')}".strip()


def show(priced: Priced, console: Console) -> None:
    """Print the plan for people."""
    body = as_dict(priced)
    console.print(_pools(body))
    first = body["first"]
    console.print(Text("first: ", "bold") + Text("; ".join(first["actions"]) or "nothing"))
    console.print(Text(f"  because {clean(first['reason'], limit=600)}", "dim"))
    console.print(Text(f"  saves {clean(first['interval_reason'], limit=300)}", "dim"))
    table = Table.grid(padding=(0, 2))
    for label, value in _figures(body):
        table.add_row(Text(label, "cyan"), Text(value))
    console.print(table)


def _pools(body: Mapping[str, Any]) -> Table:
    title = f"{clean(body['job'])}: {body['policy']} policy, {body['forecaster']} forecasts"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("pool", "spot", "on-demand", "lost in 1 h", "lasts", "launch works", "seen"):
        table.add_column(name, justify="left" if name == "pool" else "right")
    for row in body["pools"]:
        odds = percent(row["launch_odds"]) + (" (drought)" if row["in_drought"] else "")
        table.add_row(
            Text(clean(row["pool"])),
            dollars(row["spot_usd_h"]),
            dollars(row["on_demand_usd_h"]),
            percent(row["loss_within_1h"]),
            f"{row['mttp_h']:.1f} h",
            odds,
            f"{number(row['observed_losses'])} losses",
        )
    return table


def _figures(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    finish, cost, rate = body["finish_s"], body["cost_usd"], body["cost_usd_per_h"]
    rows = [("futures", f"{body['futures']}, {clean(body['source'])}")]
    if finish is not None:
        rows += [
            ("done after", f"{_or_never(finish['p50'])} (P50), {_or_never(finish['p90'])} (P90)"),
            ("costs", f"{dollars(cost['p50'])} (P50), {dollars(cost['p90'])} (P90)"),
            ("on demand", dollars(body["on_demand_usd"])),
        ]
    rows.append(("per hour", f"{dollars(rate['p50'])} against {_per_h(body)} on demand"))
    rows.append(("speed", f"{body['speed']:.2f} VMs' worth on average"))
    rows.append(("preemptions", f"{body['preemptions']:.1f} on average"))
    if body["odds_late"] is not None:
        rows.append(("late", percent(body["odds_late"])))
    for bind in body["binds"]:
        rows.append((f"{bind['limit']} binds", bind["how"]))
    return rows


def _or_never(value: float | None) -> str:
    return clock(value) if value is not None else "not as far as was looked ahead"


def _per_h(body: Mapping[str, Any]) -> str:
    value = body["on_demand_usd_per_h"]
    return dollars(value) if value is not None else DASH
