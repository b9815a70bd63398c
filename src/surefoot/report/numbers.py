"""Figures as people read them, and the summary as rows; a missing figure is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DASH = "-"


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def number(value: Any) -> str:
    """Write a count or figure: whole numbers with thin groups, others with 4 digits."""
    known = _finite(value)
    if known is None:
        return DASH
    return f"{int(known):,}" if known == int(known) else f"{known:.4g}"


def percent(value: Any) -> str:
    """Write a share as percent with one decimal."""
    known = _finite(value)
    return DASH if known is None else f"{100 * known:.1f} %"


def dollars(value: Any) -> str:
    """Write US dollars; small amounts with enough digits to compare."""
    known = _finite(value)
    if known is None:
        return DASH
    return f"${known:,.2f}" if abs(known) >= 10 or known == 0 else f"${known:.4f}"


def clock(value_s: Any) -> str:
    """Write seconds: `8.4 s`, `2 min 41 s`, `3 h 5 min`, `2 d 4 h`."""
    known = _finite(value_s)
    if known is None:
        return DASH
    if abs(known) < 60:
        return f"{known:.1f} s"
    minutes, rest_s = divmod(round(known), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    full, minutes = divmod(minutes, 60)
    if full < 48:
        return f"{full} h {minutes} min"
    days, full = divmod(full, 24)
    return f"{days} d {full} h"


def rows_of(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the summary as (label, value) rows, in the order in which people ask."""
    preempted = summary.get("preemptions") or {}
    recovery = [s for s in summary.get("recovery_s") or [] if _finite(s) is not None]
    before, after = summary.get("val_loss_before"), summary.get("val_loss_after")
    return [
        ("steps done", number(summary.get("steps"))),
        ("validation loss, before and after", f"{number(before)} to {number(after)}"),
        (
            "preemptions",
            f"{number(preempted.get('notice'))} with notice,"
            f" {number(preempted.get('silent'))} silent",
        ),
        ("steps lost", number(summary.get("lost_steps"))),
        ("recoveries", ", ".join(clock(s) for s in recovery) or "none"),
        ("checkpoints", number(summary.get("checkpoints"))),
        ("on-demand stepped in", _times(summary.get("on_demand_fallbacks"))),
        ("went back to spot", _times(summary.get("returns_to_spot"))),
        ("grew past the size asked for", _times(summary.get("scale_ups"))),
        ("time", clock(summary.get("wall_s"))),
        ("goodput", percent(summary.get("goodput"))),
        ("bill", dollars(summary.get("bill_usd"))),
        ("on-demand, same time", dollars(summary.get("on_demand_usd_same_time"))),
        ("on-demand, same work", dollars(summary.get("on_demand_usd_same_work"))),
        ("saving for the same work", percent(summary.get("saving_same_work"))),
    ]


def _times(value: Any) -> str:
    known = _finite(value)
    if known is None:
        return DASH
    return {0: "never", 1: "once", 2: "twice"}.get(int(known), f"{int(known)} times")
