"""The timeline figure of a run: fleet, money, interval and hazard, forecast losses, loss."""

from __future__ import annotations

import io
import math
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from surefoot.report.foretold import band, foretold
from surefoot.report.story import Course, Story

SPOT, ON_DEMAND, INK, SOFT = "#2a9d8f", "#e9a23b", "#22333b", "#8d99a6"
NOTICE, SILENT = "#c77d00", "#c1121f"

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "surefoot",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def timeline_svg(story: Story) -> str:
    """Return the figure as an SVG element; works for a run of any length, even an empty one."""
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 10), layout="constrained")
        panels = figure.subplots(5, 1, sharex=True, height_ratios=[1.5, 1, 1, 0.8, 1])
        scale, unit = _time_unit(story)
        draw = _Panels(story, scale)
        draw.fleet(panels[0])
        draw.money(panels[1])
        draw.interval(panels[2])
        draw.foretold(panels[3])
        draw.loss(panels[4])
        panels[4].set_xlabel(f"time since the start, {unit}")
        panels[4].set_xlim(0, max(draw.end, 1e-9))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _time_unit(story: Story) -> tuple[float, str]:
    """Return ms per unit and the unit's name, by the length of the run."""
    length_ms = story.state.now_ms - (story.began_ms or story.state.now_ms)
    if length_ms > 3 * 86_400_000:
        return 86_400_000.0, "days"
    if length_ms > 3 * 3_600_000:
        return 3_600_000.0, "hours"
    if length_ms > 600_000:
        return 60_000.0, "minutes"
    return 1_000.0, "seconds"


class _Panels:
    """Draws the panels of one story; x is time since its start."""

    def __init__(self, story: Story, scale: float) -> None:
        self.story = story
        self.scale = scale
        self.start = story.began_ms or 0
        self.end = self.x(story.state.now_ms) if story.began_ms is not None else 0.0

    def x(self, at_ms: int) -> float:
        """Return an instant on the figure's axis."""
        return (at_ms - self.start) / self.scale

    def series(self, course: Course, *, carry: bool = True) -> tuple[list[float], list[float]]:
        """Return x and y of the finite points, carried on to the end of the run."""
        points = [(self.x(t), v) for t, v in course.points if math.isfinite(v)]
        if points and carry and points[-1][0] < self.end:
            points.append((self.end, points[-1][1]))
        return [p[0] for p in points], [p[1] for p in points]

    def fleet(self, ax: Any) -> None:
        """Stack VMs by capacity; a line for those in the group; signs for preemptions."""
        times = sorted({t for c in (self.story.spot, self.story.on_demand) for t, _ in c.points})
        xs = [self.x(t) for t in times] + [self.end]
        spot = _held(self.story.spot, times)
        both = [a + b for a, b in zip(spot, _held(self.story.on_demand, times), strict=True)]
        ax.fill_between(xs[: len(spot)], 0, spot, step="post", color=SPOT, alpha=0.75, label="spot")
        ax.fill_between(
            xs[: len(spot)], spot, both, step="post", color=ON_DEMAND, alpha=0.85, label="on-demand"
        )
        tx, ty = self.series(self.story.training)
        ax.step(tx, ty, where="post", color=INK, lw=1.2, label="training")
        asked = self.story.job.num_nodes
        ax.axhline(asked, color=SOFT, lw=0.8, ls=":", label=f"asked for: {asked}")
        top = max([*both, asked, 1]) * 1.18
        for kind, color, marker in (("notice", NOTICE, "v"), ("silent", SILENT, "X")):
            at = [self.x(m.at_ms) for m in self.story.marks if m.kind == kind]
            if at:
                y = [top * 0.95] * len(at)
                ax.plot(at, y, marker, color=color, ms=7, ls="", label=_MARKS[kind])
        ax.set_ylim(0, top)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("VMs")
        _legend(ax)

    def money(self, ax: Any) -> None:
        """Compare what is spent with the on-demand fleet of the size asked for."""
        x, y = self.series(self.story.spent, carry=False)
        rx, ry = self.series(self.story.reference, carry=False)
        ax.plot(x, y, color=SPOT, lw=1.6, label="spent")
        label = f"{self.story.job.num_nodes} VMs on demand, same time"
        ax.plot(rx, ry, color=ON_DEMAND, lw=1.2, ls="--", label=label)
        ax.set_ylim(bottom=0)
        ax.set_ylabel("US dollars")
        _legend(ax)

    def interval(self, ax: Any) -> None:
        """Show the interval in force, and on the other side the forecast hazard of the fleet."""
        x, y = self.series(self.story.interval_s)
        ax.step(x, y, where="post", color=INK, lw=1.4, label="checkpoint interval")
        if y and max(y) > 20 * max(min(y), 1e-9):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter("{x:g}")  # the usual one writes maths, which is off
        else:
            ax.set_ylim(0, 1.15 * max(y, default=1.0))
        ax.set_ylabel("interval, s")
        other = ax.twinx()
        hx, hy = self.series(self.story.hazard_per_h)
        other.step(hx, hy, where="post", color=SILENT, lw=1, alpha=0.7, label="forecast hazard")
        other.set_ylim(bottom=0)
        other.set_ylabel("losses per hour")
        lines = [*ax.get_lines(), *other.get_lines()]
        _legend(ax, lines)

    def foretold(self, ax: Any) -> None:
        """Add up the losses that were forecast, with a 90 % band, and those that happened."""
        told = foretold(self.story)
        x = [self.x(t) for t, _ in told.expected]
        mean = [total for _, total in told.expected]
        edges = [band(total) for total in mean]
        low, high = [b[0] for b in edges], [b[1] for b in edges]
        ax.fill_between(x, low, high, step="post", color=SILENT, alpha=0.12, lw=0, label="9 of 10")
        ax.plot(x, mean, color=SILENT, lw=1.2, alpha=0.7, label="losses forecast")
        seen = [0.0, *(self.x(t) for t in told.seen), self.end]
        counts = [*range(len(told.seen) + 1), len(told.seen)]
        ax.step(seen, counts, where="post", color=INK, lw=1.4, label="losses seen (pool events)")
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel("losses")
        _legend(ax)

    def loss(self, ax: Any) -> None:
        """Show training loss, and val_loss where the script logs it, at the time of each step."""
        times = {int(step): at_ms for at_ms, step in self.story.steps.points}
        rows = [(self.x(t), self.story.losses.get(s)) for s, t in sorted(times.items())]
        kept = [(x, v) for x, v in rows if v is not None and math.isfinite(v)]
        ax.plot([x for x, _ in kept], [v for _, v in kept], color=INK, lw=1.1, label="loss")
        ax.set_ylabel("loss")
        _legend(ax)


_MARKS = {"notice": "preempted with notice", "silent": "lost silently"}


def _held(course: Course, times: list[int]) -> list[float]:
    """Return the step function's value at each of `times`, and once more for the end."""
    values: list[float] = []
    index, current = 0, 0.0
    for at_ms in times:
        while index < len(course.points) and course.points[index][0] <= at_ms:
            current = course.points[index][1]
            index += 1
        values.append(current)
    return [*values, current]


def _legend(ax: Any, lines: list[Any] | None = None) -> None:
    found = lines if lines is not None else ax.get_legend_handles_labels()[0]
    if found:
        labels = [line.get_label() for line in found]
        ax.legend(found, labels, loc="upper left", ncols=len(found), bbox_to_anchor=(0, 1.16))
