"""What a run's folder says about itself, so that it can be told without its job file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.core.job import Job, Throughput, Work
from surefoot.core.market import Pool

JOURNAL, CARD = "journal.db", "run.json"
PLACE = "SUREFOOT_JOURNAL"
"""The environment variable that names another place for new runs' journals: a PostgreSQL URL."""


def journal_of(folder: Path) -> Path | str:
    """Return where the journal of the run in a folder is, or is to be.

    A file in the folder is it; without one the place that `SUREFOOT_JOURNAL` names.
    """
    file = folder / JOURNAL
    return file if file.exists() else os.environ.get(PLACE) or file


@dataclass(frozen=True, slots=True)
class Card:
    """What a run's folder says about itself: enough to report on it without its job file."""

    run: str
    name: str
    num_nodes: int
    policy: str
    pools: tuple[str, ...] = ()
    steps: int | None = None
    floor: float = 0.0
    ceiling: float = 0.0
    job_file: str = ""
    started_ms: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    """What the run is led by, key by key (see terms.py)."""

    def job(self) -> Job:
        """Return the terms that reports need."""
        floor = min(self.floor, max(self.ceiling, self.floor))
        return Job(
            name=self.name,
            num_nodes=self.num_nodes,
            pools=tuple(Pool.parse(pool) for pool in self.pools),
            throughput=Throughput(floor, max(self.ceiling, floor)),
            work=Work(total_steps=self.steps),
            policy=self.policy,
        )


def read_card(folder: Path) -> Card | None:
    """Return the folder's card; None when there is none that can be read."""
    try:
        body: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        known = {k: body[k] for k in Card.__slots__ if k in body}
        known["pools"] = tuple(known.get("pools", ()))
        return Card(**known)
    except (OSError, ValueError, TypeError, AttributeError):
        return None
