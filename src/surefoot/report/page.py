"""The report as one HTML file: no scripts, no outside files, everything foreign escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from surefoot.report.clean import clean
from surefoot.report.numbers import DASH, clock, dollars, number, percent, rows_of
from surefoot.report.story import Story

MOST_LINES = 1_500

STYLE = """
:root { color-scheme: light; --ink: #22333b; --soft: #6b7884; --line: #e3e8ec; --tint: #f6f8f9; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); margin: 0 auto; max-width: 1080px;
  padding: 28px 20px 60px; background: #fff; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 10px; }
.under { color: var(--soft); margin: 4px 0 22px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card { background: var(--tint); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 14px; }
.card b { display: block; font-size: 24px; line-height: 1.25; }
.card span { color: var(--soft); font-size: 13px; }
.figure svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { text-align: left; padding: 5px 10px; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; width: 42%; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 28px; }
.bar { height: 9px; border-radius: 3px; display: inline-block; min-width: 1px; }
.good-bar { background: #2a9d8f; } .bad-bar { background: #e9a23b; }
.events { max-height: 460px; overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
.events td:first-child { white-space: nowrap; color: var(--soft); width: 90px; }
.good { color: #1b7f5c; } .warn { color: #a35c00; } .bad { color: #c1121f; font-weight: 600; }
.quiet { color: var(--soft); }
"""


def page(story: Story, summary: Mapping[str, Any]) -> str:
    """Return the report of a run, whole or half done, as a complete HTML document."""
    from surefoot.report.figure import timeline_svg  # matplotlib: slow to import, needed only here

    title = f"{clean(story.job.name)}: Surefoot report"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy"'
            " content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            _head(story, summary),
            _cards(summary),
            f'<h2>Timeline</h2><div class="figure">{timeline_svg(story)}</div>',
            '<div class="two">',
            f"<div><h2>Figures</h2>{_table(rows_of(summary))}</div>",
            f"<div><h2>Where the time went</h2>{_badput(summary)}</div>",
            "</div>",
            _forecast(summary),
            _events(story),
            "</body></html>",
        )
    )


def _head(story: Story, summary: Mapping[str, Any]) -> str:
    outcome = story.state.outcome or ("under way" if story.began_ms is not None else "not begun")
    parts = [
        f"run {clean(story.state.run)}" if story.state.run else "no event yet",
        clean(outcome),
        f"{clean(story.job.policy)} policy",
        f"{story.job.num_nodes} VMs asked for",
        clock(summary.get("wall_s")),
    ]
    name = escape(clean(story.job.name))
    return f'<h1>{name}</h1><p class="under">{escape(" · ".join(parts))}</p>'


def _cards(summary: Mapping[str, Any]) -> str:
    preempted = summary.get("preemptions") or {}
    cards = (
        (percent(summary.get("saving_same_work")), "saved against on-demand, same work"),
        (percent(summary.get("goodput")), "of the time became kept training"),
        (dollars(summary.get("bill_usd")), "spent"),
        (number(summary.get("steps")), "steps done"),
        (
            f"{number(preempted.get('notice'))} + {number(preempted.get('silent'))}",
            "preemptions with and without notice",
        ),
        (number(summary.get("lost_steps")), "steps lost"),
    )
    body = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label in cards
    )
    return f'<div class="cards">{body}</div>'


def _table(rows: Iterable[Sequence[str]]) -> str:
    body = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in rows
    )
    return f"<table>{body}</table>"


def _badput(summary: Mapping[str, Any]) -> str:
    """Show each cause of lost time as its share of the run, largest first."""
    parts = {"kept training": summary.get("goodput"), **(summary.get("badput") or {})}
    wall_s = summary.get("wall_s")
    rows = []
    for name, share in sorted(parts.items(), key=lambda item: -(item[1] or 0.0)):
        known = share if isinstance(share, int | float) else 0.0
        color = "good" if name == "kept training" else "bad"
        bar = f'<span class="bar {color}-bar" style="width:{min(100.0, 100 * known):.1f}%"></span>'
        took = clock(known * wall_s) if wall_s and share is not None else DASH
        label, value = escape(str(name).replace("_", " ")), escape(f"{percent(share)} · {took}")
        rows.append(f"<tr><th>{label}</th><td>{value}<br>{bar}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _forecast(summary: Mapping[str, Any]) -> str:
    """Say how many losses were forecast, how many came, and what to make of it."""
    told = summary.get("pool_events") or {}
    if told.get("expected") is None:
        return ""
    odds = told["odds"]
    verdict = "what chance alone explains" if odds >= 0.1 else "hard to explain by chance"
    text = (
        f"The forecasts in force expected {number(told['expected'])} events in which a pool takes"
        f" VMs ({number(told['low'])} to {number(told['high'])} in 9 of 10 runs);"
        f" {number(told['seen'])} came: {verdict} (a count at least as far off has odds of"
        f" {percent(odds)}). Losses of one pool within three minutes are one event."
    )
    return f"<h2>Forecast against what happened</h2><p>{escape(text)}</p>"


def _events(story: Story) -> str:
    lines = list(story.lines)
    shown, start = lines[-MOST_LINES:], story.began_ms or 0
    cut = f" (the last {MOST_LINES} of {len(lines)})" if len(lines) > len(shown) else ""
    rows = "".join(
        f"<tr><td>{escape(clock((at_ms - start) / 1000))}</td>"
        f'<td class="{tone.value}">{escape(text)}</td></tr>'
        for at_ms, (tone, text) in shown
    )
    body = f"<table>{rows}</table>" if rows else "<p>No event yet.</p>"
    return f'<h2>What happened{cut}</h2><div class="events">{body}</div>'
