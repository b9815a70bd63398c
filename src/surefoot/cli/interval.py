"""`surefoot interval`: why the present checkpoint interval, or one from your own figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from surefoot.cli import frame, markets, outdir
from surefoot.config import say_ms
from surefoot.core import interval as formulas
from surefoot.errors import ConfigError
from surefoot.report import Story
from surefoot.report.clean import clean
from surefoot.report.numbers import percent


def interval(
    out: Annotated[Path | None, typer.Argument(help=outdir.WHICH)] = None,
    cost: Annotated[
        str | None, typer.Option(help="What one save takes from training, such as 12s.")
    ] = None,
    mtbf: Annotated[str | None, typer.Option(help="Mean time between losses, such as 4h.")] = None,
    notice_share: Annotated[
        float, typer.Option(help="Share of losses that a save on notice makes harmless.")
    ] = 0.0,
    persist: Annotated[
        str | None, typer.Option(help="Time until a save is durable; default: none.")
    ] = None,
    restart: Annotated[
        str | None, typer.Option(help="Time from a loss until training goes on; default: none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a run's present interval, or compute one: with --cost and --mtbf, no run is read."""
    if (cost is None) != (mtbf is None):
        raise ConfigError("--cost and --mtbf go together", hint="--cost 12s --mtbf 4h")
    if cost is None:
        body = present(out or outdir.newest())
        if as_json:
            frame.print_json(body)
            return
        _print_present(body)
        return
    figures = [markets.span_ms(*given) for given in (("--cost", cost), ("--mtbf", mtbf))]
    given = {
        "cost_s": (figures[0] or 0) / 1000,
        "mtbf_s": (figures[1] or 0) / 1000,
        "notice_share": notice_share,
        "persist_s": (markets.span_ms("--persist", persist) or 0) / 1000,
        "restart_s": (markets.span_ms("--restart", restart) or 0) / 1000,
    }
    if not 0 <= notice_share <= 1:
        raise ConfigError(f"--notice-share: must be within 0 and 1, got {notice_share}")
    rows = computed(**given)
    if as_json:
        frame.print_json({**given, "formulas": rows})
        return
    _print(rows)


def computed(
    *, cost_s: float, mtbf_s: float, notice_share: float, persist_s: float, restart_s: float
) -> list[dict[str, Any]]:
    """Return each formula's interval in seconds (None: never) and the share of time it wastes.

    The waste is first order, with the notices taken into account for all of them: C/t +
    rate ((1 - q)(t/2 + p) + R).
    """
    harmful = (1 - notice_share) / mtbf_s
    found = {
        "young": formulas.young(cost_s, mtbf_s),
        "daly, first order": formulas.daly_first_order(cost_s, mtbf_s, restart_s),
        "daly, higher order": formulas.daly_higher_order(cost_s, mtbf_s),
        "exact": formulas.exact(cost_s, mtbf_s),
        "surefoot": formulas.asynchronous(
            cost_s, 1 / mtbf_s, persist=persist_s, notice_share=notice_share
        ),
    }

    def waste(t: float) -> float:
        saves = 0.0 if math.isinf(t) else cost_s / max(t, 1e-9)
        lost = 0.0 if not harmful else harmful * (t / 2 + persist_s)
        return saves + lost + restart_s / mtbf_s

    return [
        {
            "formula": name,
            "interval_s": t if math.isfinite(t) else None,
            "waste": waste(t) if math.isfinite(waste(t)) else None,
            "what": WHAT[name],
        }
        for name, t in found.items()
    ]


WHAT = {
    "young": "sqrt(2 C M)",
    "daly, first order": "sqrt(2 C (M + R)) - C",
    "daly, higher order": "Young's with two more terms, less C",
    "exact": "M (1 + W(-exp(-1 - C/M))): losses come at random, saves stop training",
    "surefoot": "exact, for losses without a saving notice; not under the time to persist",
}


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("formula", "save every", "time wasted", ""):
        table.add_column(name, justify="left" if name in ("formula", "") else "right")
    for row in rows:
        every = row["interval_s"]
        shown = "never" if every is None else say_ms(max(1, round(1000 * every)))
        style = "bold" if row["formula"] == "surefoot" else ""
        cells = (row["formula"], shown, percent(row["waste"]), row["what"])
        table.add_row(*(Text(cell, style) for cell in cells))
    frame.wide().print(table)


def present(folder: Path) -> dict[str, Any]:
    """Return a run's interval in force, what it follows from, and what other formulas give."""
    found = outdir.read(folder)
    story = Story(found.card.job()).add_all(found.events)
    if story.decision is None:
        raise ConfigError(f"{folder}: nothing was decided yet in this run")
    choice, state = story.decision.interval, story.state
    cost, fleet = state.save_cost, state.fleet_cost
    rate = choice.hazard_per_h / 3600
    rows = []
    if rate > 0:
        rows = computed(
            cost_s=max(choice.cost_ms, 1) / 1000,
            mtbf_s=1 / rate,
            notice_share=choice.notice_share,
            persist_s=cost.persist_ms / 1000,
            restart_s=(fleet.detect_ms + fleet.reform_ms) / 1000,
        )
    return {
        "run": found.card.run,
        "interval_s": choice.interval_ms / 1000,
        "reason": choice.reason,
        "losses_per_h": choice.hazard_per_h,
        "notice_share": choice.notice_share,
        "saved_on_notice": state.notices[0],
        "preemptions": state.notices[1],
        "cost_s": choice.cost_ms / 1000,
        "persist_s": cost.persist_ms / 1000,
        "restore_s": cost.restore_ms / 1000,
        "reform_s": fleet.reform_ms / 1000,
        "formulas": rows,
    }


def _print_present(body: dict[str, Any]) -> None:
    console = frame.out()
    console.print(Text(f"{clean(body['run'])}: {clean(body['reason'], limit=600)}"))
    console.print(
        Text(
            f"measured: a save takes {body['cost_s'] * 1000:.0f} ms of training and is durable"
            f" after {body['persist_s']:.1f} s; loading takes {body['restore_s']:.1f} s,"
            f" re-forming {body['reform_s']:.1f} s; {body['saved_on_notice']} of"
            f" {body['preemptions']} preemptions saved on notice",
            "dim",
        )
    )
    if body["formulas"]:
        _print(body["formulas"])
