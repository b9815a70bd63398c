"""The live view of a run in a terminal, and its plain twin for pipes and logs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from surefoot.core.event import Event, StepsDone
from surefoot.core.fleet import InstanceState
from surefoot.core.units import usd
from surefoot.report.clean import clean
from surefoot.report.numbers import DASH, clock, dollars, number
from surefoot.report.story import Story
from surefoot.report.words import Tone

STYLES = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.WARN: "yellow",
    Tone.BAD: "bold red",
    Tone.QUIET: "dim",
}
PULSE_MS = 250
SAY_MS = 10_000
"""How often the plain view tells the progress."""

MARKS = {
    InstanceState.READY: ("●", "green"),
    InstanceState.STARTING: ("◌", "cyan"),
    InstanceState.REQUESTED: ("·", "dim"),
    InstanceState.NOTICED: ("▼", "yellow"),
    InstanceState.DRAINING: ("◍", "magenta"),
}


class View(Protocol):
    """Shows a story as it grows; used as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def happened(self, event: Event) -> None:
        """Take note of an event that the story has already taken in."""

    def pulse(self, now_ms: int) -> None:
        """Show the present state if it is time to."""

    def tell(self, line: str) -> None:
        """Say something that is no event."""


def choose_view(story: Story, *, as_json: bool) -> View:
    """Return the live view on a terminal that can show it, else plain lines (stderr for JSON)."""
    console = Console(highlight=False)
    if as_json:
        return PlainView(story, lambda line: print(line, file=sys.stderr, flush=True))
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(story, console)
    return PlainView(story, lambda line: print(line, flush=True))


class PlainView:
    """One line for each event that is worth telling, and the progress every few seconds."""

    def __init__(self, story: Story, write: Callable[[str], None]) -> None:
        self.story = story
        self.write = write
        self._told = story.told
        self._said_ms = 0
        self._trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def happened(self, event: Event) -> None:
        """Write the lines that the story gained; a step count only now and then."""
        for at_ms, (_, text) in self.story.lines_after(self._told):
            self.write(f"{_since(self.story, at_ms)}  {text}")
        self._told = self.story.told
        if isinstance(event, StepsDone) and event.at_ms - self._said_ms >= SAY_MS:
            self._said_ms = event.at_ms
            self.write(f"{_since(self.story, event.at_ms)}  {status_line(self.story)}")

    def pulse(self, now_ms: int) -> None:
        """Tell new trouble; everything else comes with events."""
        trouble = self.story.trouble
        if trouble != self._trouble and trouble:
            self.write(f"{_since(self.story, now_ms)}  waiting: {clean(trouble)}")
        self._trouble = trouble

    def tell(self, line: str) -> None:
        """Write the line."""
        self.write(line)


class LiveView:
    """A screen that is drawn anew a few times a second, from the run's own thread."""

    def __init__(self, story: Story, console: Console) -> None:
        self.story = story
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn_ms = 0

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def happened(self, event: Event) -> None:
        """Nothing: the next pulse shows it."""

    def pulse(self, now_ms: int) -> None:
        """Draw the screen, at most every `PULSE_MS`."""
        if now_ms - self._drawn_ms >= PULSE_MS:
            self._drawn_ms = now_ms
            self._live.update(screen(self.story, now_ms), refresh=True)

    def tell(self, line: str) -> None:
        """Print the line above the screen."""
        self.console.print(Text(line, "bold"))


def screen(story: Story, now_ms: int) -> RenderableType:
    """Return the whole view: title, fleet, figures, last events."""
    boxes = Table.grid(expand=True)
    boxes.add_column(ratio=1)
    boxes.add_column(ratio=1)
    boxes.add_row(
        Panel(_training(story), title="training", border_style="cyan"),
        Panel(_money(story, now_ms), title="forecast and money", border_style="cyan"),
    )
    trouble = [Text(f"waiting: {clean(story.trouble)}", "bold yellow")] if story.trouble else []
    return Group(
        _title(story, now_ms),
        *trouble,
        Panel(_fleet(story), title="fleet", border_style="cyan"),
        boxes,
        Panel(_events(story), title="what happened", border_style="cyan"),
    )


def status_line(story: Story) -> str:
    """Return the state of a run in one line."""
    progress = story.state.progress
    parts = [
        f"step {progress.steps_done}{_of_total(story)}",
        f"{progress.members} VMs train" if progress.members != 1 else "1 VM trains",
        f"loss {number(story.loss)}",
        f"safe up to {progress.steps_safe}",
        f"{dollars(usd(story.account.bill.total))} spent",
        f"{dollars(_reference(story))} on demand",
    ]
    return ", ".join(parts)


def _title(story: Story, now_ms: int) -> Text:
    name = clean(story.job.name)
    line = Text.assemble((" surefoot ", "bold black on cyan"), (f"  {name}", "bold"))
    line.append(f"   {_since(story, now_ms).strip()}", "cyan")
    line.append(f"   {clean(story.job.policy)} policy, {story.job.num_nodes} VMs asked for", "dim")
    return line


def _fleet(story: Story) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(ratio=3, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=2, no_wrap=True)
    table.add_column(ratio=3, no_wrap=True, style="dim")
    rows = story.fleet_rows()
    for pool, capacity, counts in rows:
        dots = Text()
        for state, (mark, style) in MARKS.items():
            dots.append(mark * counts.get(state, 0), style)
        words = ", ".join(f"{n} {state.value}" for state, n in counts.items())
        color = "green" if capacity == "spot" else "yellow"
        table.add_row(clean(pool), Text(capacity.replace("_", "-"), color), dots, words)
    if not rows:
        table.add_row("no VM yet", "", "", "")
    return table


def _training(story: Story) -> RenderableType:
    progress = story.state.progress
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)
    total = story.job.work.total_steps
    step = Text(f"{progress.steps_done}{_of_total(story)}", "bold")
    table.add_row("step", step)
    if total:
        table.add_row("", ProgressBar(total=total, completed=min(progress.steps_done, total)))
    table.add_row("loss", number(story.loss))
    table.add_row("tokens/s", number(round(story.tokens_per_s)) if story.tokens_per_s else DASH)
    table.add_row("training", f"{progress.members} VMs, generation {progress.generation}")
    table.add_row("safe", f"step {progress.steps_safe}; {progress.steps_lost} steps lost so far")
    return table


def _money(story: Story, now_ms: int) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)
    choice = story.decision.interval if story.decision else None
    hazard = f"{choice.hazard_per_h:.2f} losses/h" if choice else DASH
    table.add_row("hazard forecast", hazard)
    table.add_row("save every", clock(choice.interval_ms / 1000) if choice else DASH)
    spent, reference = usd(story.account.bill_at(now_ms).total), _reference(story)
    table.add_row("spent", Text(dollars(spent), "bold green"))
    table.add_row("all on demand", dollars(reference))
    saving = f"{100 * (1 - spent / reference):.0f} %" if reference else DASH
    table.add_row("saving so far", Text(saving, "bold"))
    reason = clean(story.decision.plan.reason, limit=120) if story.decision else DASH
    table.add_row("plan", Text(reason, "dim"))
    return table


def _events(story: Story) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for at_ms, (tone, text) in story.recent(9):
        table.add_row(_since(story, at_ms), Text(text, STYLES[tone]))
    return table


def _since(story: Story, at_ms: int) -> str:
    """Write the time since the run began as m:ss, or h:mm:ss."""
    total_s = max(0, at_ms - (story.began_ms if story.began_ms is not None else at_ms)) // 1000
    minutes, s = divmod(total_s, 60)
    full, minutes = divmod(minutes, 60)
    return f"{full}:{minutes:02}:{s:02}" if full else f"{minutes:3}:{s:02}"


def _of_total(story: Story) -> str:
    total = story.job.work.total_steps
    return f" of {total}" if total else ""


def _reference(story: Story) -> float | None:
    micros = story.account.on_demand_same_time()
    return None if micros is None else usd(micros)
