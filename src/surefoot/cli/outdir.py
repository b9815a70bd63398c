"""A run's folder on this machine: what lies in it, whose it is, and when it is set aside."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from surefoot.config import JobFile
from surefoot.controller.store import Store, may_be_there
from surefoot.core.event import Event, RunEnded, RunStarted
from surefoot.errors import ConfigError
from surefoot.report.card import CARD as CARD
from surefoot.report.card import JOURNAL as JOURNAL
from surefoot.report.card import Card as Card
from surefoot.report.card import journal_of as journal_of
from surefoot.report.card import read_card as read_card
from surefoot.report.strict import strict_json

WHICH = "The run's `out` folder; without it the newest one here."
SUMMARY, REPORT = "summary.json", "report.html"


@dataclass(frozen=True, slots=True)
class Found:
    """A run's folder as found: its card and its events, in order."""

    folder: Path
    card: Card
    events: list[Event]

    @property
    def outcome(self) -> str | None:
        """How the run ended, None while it has not (or was taken up again)."""
        for event in reversed(self.events):
            if isinstance(event, RunEnded):
                return event.outcome
            if isinstance(event, RunStarted):
                return None
        return None


def read(folder: Path) -> Found:
    """Read a run's folder. Raises ConfigError when there is no run in it."""
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: there is no such folder",
            hint="name the `out` folder of a run: surefoot status FOLDER",
        )
    card = read_card(folder)
    if card is None:
        raise ConfigError(f"{folder}: there is no run in this folder", hint="see `out:` in the job")
    journal = journal_of(folder)
    return Found(folder, card, _events(journal, card.run) if may_be_there(journal) else [])


def newest() -> Path:
    """Return the folder in the current directory whose run began last.

    Raises ConfigError when there is none.
    """
    cards = {p.parent: read_card(p.parent) for p in Path().glob(f"*/{CARD}")}
    known = {p: c for p, c in cards.items() if c is not None and p.suffix != ".previous"}
    if not known:
        raise ConfigError("there is no run in this folder", hint="name the `out` folder of a run")
    return max(known, key=lambda p: (known[p].started_ms, str(p)))


def _events(journal: Path | str, run: str) -> list[Event]:
    store = Store(journal)
    try:
        return [event for _, event in store.events(run)]
    finally:
        store.close()


def claim(job_file: JobFile, *, now_ms: int) -> Found:
    """Make the folder of a job ready for `surefoot run`: a new run, or the unfinished one.

    A finished run's folder is renamed to `<out>.previous`. Raises ConfigError when the folder
    holds something that is not ours, or another job's unfinished run.
    """
    folder = job_file.out
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: out: this is a file, not a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return _begin(job_file, now_ms)
    if read_card(folder) is None:
        raise ConfigError(
            f"{folder}: out: the folder is not empty and holds no run of ours",
            hint="choose another `out`, or empty the folder",
        )
    found = read(folder)
    if found.outcome == "done":
        _set_aside(folder)
        return _begin(job_file, now_ms)
    if found.card.name != job_file.job.name:
        raise ConfigError(
            f"{folder}: out: the folder holds the unfinished run of another job,"
            f" {found.card.name!r}",
            hint="choose another `out`, or remove the folder",
        )
    return found


def _begin(job_file: JobFile, now_ms: int) -> Found:
    folder, job = job_file.out, job_file.job
    card = Card(
        run=f"{job.name}-{now_ms // 1000:x}",
        name=job.name,
        num_nodes=job.num_nodes,
        policy=job.policy,
        steps=job.work.total_steps,
        floor=job.throughput.floor,
        ceiling=job.throughput.ceiling,
        job_file=str(job_file.path.absolute()),
        started_ms=now_ms,
    )
    return Found(folder, card, [])


def write_card(folder: Path, card: Card) -> None:
    """Write the run's card, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{CARD}.new"
    new.write_text(strict_json(card) + "\n", encoding="utf-8")
    new.replace(folder / CARD)


def _set_aside(folder: Path) -> None:
    """Rename a finished run's folder; the one set aside before it is removed if it is ours."""
    previous = folder.with_name(folder.name + ".previous")
    if previous.exists():
        if not previous.is_dir() or read_card(previous) is None:
            raise ConfigError(
                f"{previous}: is in the way and holds no run of ours", hint="move it away"
            )
        shutil.rmtree(previous)
    folder.rename(previous)
