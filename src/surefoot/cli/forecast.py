"""`surefoot forecast`: what to expect of every pool, why, and how good such forecasts were."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from surefoot.cli import frame, outdir
from surefoot.core.event import State, apply
from surefoot.core.forecast import DEFAULT, Forecast, get_forecaster, predict_all
from surefoot.core.history import observe
from surefoot.core.market import Pool
from surefoot.core.trace import History
from surefoot.core.units import MS_PER_HOUR, usd
from surefoot.errors import ConfigError
from surefoot.traces import read_trace
from surefoot.traces.backtest import backtest, by_day, log_loss
from surefoot.traces.facts import history_of
from surefoot.traces.times import duration_ms

SAVE_H, RESTART_H = 30 / 3600, 180 / 3600
"""Cost of one checkpoint and of one recovery, assumed for ranking where nothing is measured."""


def forecast(
    pools: Annotated[
        list[str] | None,
        typer.Argument(help="Pools (provider/region/zone/type), or `score` for a backtest."),
    ] = None,
    horizon: Annotated[str, typer.Option(help="How far ahead: 15m, 1h, 6h.")] = "1h",
    history: Annotated[
        Path | None, typer.Option(help="A trace file or a run's folder; default: newest run here.")
    ] = None,
    model: Annotated[str, typer.Option(help="Forecasting model.")] = DEFAULT,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the forecasts there (png, svg).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forecast preemption and availability of each pool from what is known of it."""
    span_ms = _span(horizon)
    known = _history(history)
    if pools and pools[0] == "score":
        _score(known, model, span_ms, as_json=as_json)
        return
    wanted = [_pool(text) for text in pools or ()] or sorted(known.pools)
    beliefs = get_forecaster(model).fit(known, now_ms=known.now_ms)
    told = predict_all(beliefs, wanted, now_ms=known.now_ms)
    rows = sorted((_row(known, told[p], span_ms) for p in wanted), key=_rank)
    if figure is not None:
        _draw(rows, horizon, figure)
    if as_json:
        frame.print_json({"model": model, "horizon": horizon, "pools": rows})
    else:
        _print(rows, model, horizon)


def _span(text: str) -> int:
    try:
        return max(duration_ms(text), 1)
    except ValueError as error:
        raise ConfigError(f"--horizon: {error}") from None


def _pool(text: str) -> Pool:
    try:
        return Pool.parse(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _history(path: Path | None) -> History:
    """Read a history from a trace file, or from the journal in a run's folder."""
    if path is not None and path.is_file():
        return history_of(read_trace(path))
    return run_history(path or outdir.newest())


def run_history(folder: Path) -> History:
    """Return what a run has seen of its pools, from the journal in its folder.

    Raises ConfigError when there is no run in it.
    """
    known, state = History(), State()
    for event in outdir.read(folder).events:
        observe(known, event, state)
        state = apply(state, event)
    return known


def _row(known: History, told: Forecast, span_ms: int) -> dict[str, Any]:
    """Return one pool's figures. Cost: price of an hour over the share of it that is useful.

    Useful is what checkpoints (at the best interval, sqrt(2 C rate)) and recoveries leave.
    """
    record = known.pools.get(told.pool)
    price = usd(record.prices[-1].value or 0) if record and record.prices else None
    rate = told.events_per_h
    low, high = told.survival_band(MS_PER_HOUR, span_ms)
    why = list(told.notes)
    if told.extrapolates(MS_PER_HOUR, span_ms):
        why.append(f"extrapolated: no VM here was older than {told.seen_to_h:.1f} h")
    waste = min(0.95, math.sqrt(2 * SAVE_H * rate) + rate * RESTART_H)
    return {
        "pool": str(told.pool),
        "loss_odds": 1.0 - told.survival(MS_PER_HOUR, span_ms),
        "loss_odds_low": 1.0 - high,
        "loss_odds_high": 1.0 - low,
        "extrapolated": told.extrapolates(MS_PER_HOUR, span_ms),
        "loss_odds_fresh": 1.0 - told.survival(0, span_ms),
        "hazard_per_h": told.events_per_h * told.event_share,
        "hazard_low": told.hazard_low,
        "hazard_high": told.hazard_high,
        "launch_odds": told.launch_odds,
        "in_drought": told.in_drought,
        "spell_rest_h": told.window_h,
        "holdable": told.holdable,
        "events_per_h": rate,
        "event_share": told.event_share,
        "price_usd_h": price,
        "useful_usd_h": price / (1.0 - waste) if price is not None else None,
        "useful_share": 1.0 - waste,
        "weights": dict(told.weights),
        "why": why,
    }


def _rank(row: dict[str, Any]) -> tuple[bool, float, str]:
    cost = row["useful_usd_h"]
    return cost is None, cost if cost is not None else -row["useful_share"], row["pool"]


def _print(rows: list[dict[str, Any]], model: str, horizon: str) -> None:
    table = Table(title=f"forecast by {model}, cheapest useful hour first")
    heads = (
        "pool",
        f"lost in {horizon} (80 %)",
        "losses/VM-h (80 %)",
        "launch",
        "spell left",
        "can hold",
    )
    for head in (*heads, "$/useful h", "why"):
        table.add_column(head, overflow="fold")
    for row in rows:
        cost = row["useful_usd_h"]
        table.add_row(
            row["pool"],
            f"{row['loss_odds']:.1%} ({row['loss_odds_low']:.0%}..{row['loss_odds_high']:.0%})",
            f"{row['hazard_per_h']:.3f} ({row['hazard_low']:.3f}..{row['hazard_high']:.3f})",
            f"{row['launch_odds']:.0%}" + (" drought" if row["in_drought"] else ""),
            f"{row['spell_rest_h']:.1f} h",
            f"{row['holdable']:.1f}",
            f"{cost:.3f}" if cost is not None else "no price",
            "; ".join(row["why"]),
        )
    frame.wide().print(table)
    if rows and rows[0]["weights"]:
        shown = ", ".join(f"{name} {weight:.0%}" for name, weight in rows[0]["weights"].items())
        frame.out().print(f"model weights in {rows[0]['pool']}: {shown}")


def _draw(rows: list[dict[str, Any]], horizon: str, path: Path) -> None:
    """Draw each pool's hazard with its 80 % interval, and the odds of a launch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 0.4 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows, strict=True):
        left.plot((row["hazard_low"], row["hazard_high"]), (place, place), color="#8899aa", lw=4)
        left.plot(row["hazard_per_h"], place, "o", color="#c0392b")
        right.barh(place, row["launch_odds"], color="#2980b9", height=0.5)
    left.set_xscale("log")
    left.set_xlabel(f"losses per VM-hour, 80 % interval (horizon {horizon})")
    right.set_xlabel("odds that a launch succeeds now")
    right.set_xlim(0, 1)
    left.set_yticks(list(places), [row["pool"] for row in rows])
    figure.savefig(path)


def _score(known: History, model: str, span_ms: int, *, as_json: bool) -> None:
    """Backtest the model and climatology on this history; print skill and calibration by day."""
    guesses = backtest(known, get_forecaster(model), horizon_ms=span_ms)
    usual = backtest(known, get_forecaster("climatology"), horizon_ms=span_ms)
    if not guesses:
        raise ConfigError(
            "too little history to score: no VM was held long enough",
            hint="name a longer record with --history",
        )
    ours, base = log_loss(guesses), log_loss(usual)
    body = {
        "model": model,
        "guesses": len(guesses),
        "log_loss": ours,
        "log_loss_climatology": base,
        "skill": 1.0 - ours / base,
        "days": [
            {"day": d.day, "vms": d.vms, "foretold": d.foretold, "lost": d.lost}
            for d in by_day(guesses)
        ],
    }
    if as_json:
        frame.print_json(body)
        return
    table = Table(title=f"{model}: skill {body['skill']:+.3f} over climatology")
    for head in ("day", "VMs", "foretold", "lost"):
        table.add_column(head, justify="right")
    for d in by_day(guesses):
        table.add_row(str(d.day + 1), str(d.vms), f"{d.foretold:.1%}", f"{d.lost:.1%}")
    frame.wide().print(table)
