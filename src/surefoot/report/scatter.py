"""The figure of many simulated runs: cost of the work against training speed, by policy."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from surefoot.errors import ConfigError
from surefoot.report.clean import clean
from surefoot.report.figure import INK, SOFT, STYLE

COLORS = ("#2a9d8f", "#e9a23b", "#c1121f", "#3d5a80", "#8e5ea2", "#6a994e", "#bc6c25", "#577590")
FORMATS = ("svg", "png", "pdf")


def draw(
    rows: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    *,
    optima: Sequence[tuple[float, float]] = (),
) -> Figure:
    """Return the figure: one dot a run, one large one a policy's mean, a cross an optimum.

    `rows` are runs, `lines` their sums by policy; `optima` are (VMs' worth, USD per 1,000
    steps) of offline optima.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 5), layout="constrained")
        ax = figure.subplots()
        names = list(dict.fromkeys((line["policy"], line["label"]) for line in lines))
        for index, (policy, label) in enumerate(names):
            color = COLORS[index % len(COLORS)]
            mine = [r for r in rows if (r["policy"], r.get("label", "")) == (policy, label)]
            dots = [(r["worth"], r["usd_per_kstep"]) for r in mine if _known(r)]
            ax.plot([x for x, _ in dots], [y for _, y in dots], "o", color=color, ms=4, alpha=0.35)
            (line,) = (e for e in lines if (e["policy"], e["label"]) == (policy, label))
            if _known(line):
                name = clean(f"{policy} {label}".strip())
                x, y = [line["worth"]], [line["usd_per_kstep"]]
                ax.plot(x, y, "o", color=color, ms=10, label=name)
        if optima:
            x, y = [x for x, _ in optima], [y for _, y in optima]
            ax.plot(x, y, "x", color=INK, ms=8, label="offline optimum")
        ax.set_xlabel("training speed, VMs' worth")
        ax.set_ylabel("US dollars per 1,000 steps")
        ax.set_ylim(bottom=0)
        ax.grid(color=SOFT, alpha=0.2)
        if names:
            ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _known(row: Mapping[str, Any]) -> bool:
    return row["worth"] is not None and row["usd_per_kstep"] is not None


def as_svg(figure: Figure) -> str:
    """Return a figure as an SVG element."""
    with rc_context(STYLE):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG, PNG or PDF, by the name's ending. Raises ConfigError for others."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"--figure: {path.name}: must end in .{', .'.join(FORMATS)}")
    with rc_context(STYLE):
        figure.savefig(path, format=kind, dpi=150)
