"""Which markets a verb replays, and a job's terms on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from surefoot.cli import frame, local
from surefoot.config import JobFile, duration_ms
from surefoot.core.job import Job
from surefoot.core.market import Pool
from surefoot.core.policy import get_policy
from surefoot.core.trace import Trace
from surefoot.errors import ConfigError
from surefoot.report.comparison import ORACLE
from surefoot.sim import CostModel
from surefoot.traces import READERS, read_trace


def read_markets(job_file: JobFile, paths: Sequence[Path]) -> dict[str, Trace]:
    """Return the traces of files and folders by name; without any, the job's own market.

    Names are file names without their ending; equal ones get a number. Raises ConfigError for a
    path that is not there or a folder without traces, TraceError for a file that is no trace.
    """
    if not paths:
        return {"local market": local.read_market(job_file)}
    found: dict[str, Trace] = {}
    for file in [file for path in paths for file in _files(path, job_file)]:
        name, count = file.stem, 2
        while name in found:
            name, count = f"{file.stem} ({count})", count + 1
        found[name] = read_trace(file)
    return found


def _files(path: Path, job_file: JobFile) -> list[Path]:
    if not path.is_dir():
        return [path]
    own = job_file.path.resolve()
    inside = sorted(p for p in path.iterdir() if p.suffix.lower() in READERS and p.is_file())
    inside = [p for p in inside if p.resolve() != own]
    if not inside:
        raise ConfigError(
            f"{path}: there is no trace in this folder",
            hint=f"traces end in {', '.join(READERS)}",
        )
    return inside


def terms_on(job_file: JobFile, trace: Trace, *, now_ms: int) -> Job:
    """Return the job over the trace's pools, its deadline as a duration (as sweeps take it)."""
    return duration_terms(job_file, trace.pools, now_ms=now_ms)


def duration_terms(job_file: JobFile, pools: Iterable[Pool], *, now_ms: int) -> Job:
    """Return the job over some pools, its deadline as a duration from now."""
    job = job_file.terms(pools, start_ms=0)
    at_ms = job_file.deadline.at_ms
    if at_ms is None:
        return job
    if at_ms <= now_ms:
        raise ConfigError(f"{job_file.path}: deadline: it is in the past")
    return replace(job, limits=replace(job.limits, deadline_ms=at_ms - now_ms))


def costs_of(job_file: JobFile) -> CostModel:
    """Return what boots, saves and the rest cost in a simulation of the job."""
    return local.COSTS if job_file.local is not None else CostModel()


def policies(text: str) -> list[str]:
    """Return the names in a comma-separated list. Raises ConfigError for an unknown one."""
    names = [name.strip().replace("_", "-") for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--policies: name at least one, such as hybrid,on_demand")
    for name in names:
        if name != ORACLE:
            get_policy(name)
    return list(dict.fromkeys(names))


def span_ms(option: str, text: str | None) -> int | None:
    """Return an option's duration in ms, None where it was left out."""
    if text is None:
        return None
    try:
        return duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}; found {text!r}") from None


def at_least(option: str, value: int, least: int) -> int:
    """Return the value of an option. Raises ConfigError below `least`."""
    if value < least:
        raise ConfigError(f"{option}: must be {least} or more, got {value}")
    return value


def horizon_for(traces: Mapping[str, Trace], asked_ms: int | None, starts: int) -> int | None:
    """Return how long each run may last: with many starts, half of the shortest trace at most."""
    if asked_ms is not None or starts == 1:
        return asked_ms
    return min(trace.end_ms - trace.start_ms for trace in traces.values()) // 2


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr where that is a terminal; yields a function of (done, all)."""
    console = frame.err()
    if not console.is_terminal:
        yield lambda _done, _all: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        row = bar.add_task(what, total=None)
        yield lambda done, all_: bar.update(row, completed=done, total=all_)
