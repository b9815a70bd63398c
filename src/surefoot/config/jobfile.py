"""What a job file means: the core's `Job` and where, how and with what it is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from surefoot.core.job import Job
from surefoot.core.market import Pool
from surefoot.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Place:
    """Where VMs may come from: patterns for cloud, region, zone and instance type."""

    cloud: str = "*"
    region: str = "*"
    zone: str = "*"
    instance_type: str = "*"

    def admits(self, pool: Pool) -> bool:
        """Return whether the pool lies in this place."""
        parts = (pool.provider, pool.region, pool.zone, pool.instance_type)
        wanted = (self.cloud, self.region, self.zone, self.instance_type)
        return all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))

    def __str__(self) -> str:
        return "/".join((self.cloud, self.region, self.zone, self.instance_type))


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The local provider: which market to replay, what a VM is, how fast one may work.

    `pace`: samples per second of one VM; None lets it run free.
    """

    trace: Path
    vms: str = "auto"
    pace: float | None = None


@dataclass(frozen=True, slots=True)
class Deadline:
    """By when the work should be done: an instant, or a duration from the run's first start."""

    at_ms: int | None = None
    after_ms: int | None = None

    def instant(self, start_ms: int) -> int | None:
        """Return the deadline in epoch ms for a run that first began at `start_ms`."""
        if self.at_ms is not None:
            return self.at_ms
        return start_ms + self.after_ms if self.after_ms is not None else None


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file that has been read and checked.

    `job` has neither pools nor a deadline yet: both need the market and the clock, see `terms`.
    """

    path: Path
    job: Job
    command: str
    workdir: Path
    places: tuple[Place, ...]
    checkpoint: str
    """Folder or URL of the checkpoints."""
    keep: int = 3
    drain_to: str = ""
    """Folder or URL to which the newest checkpoint is copied in the background; empty: none."""
    drain_every_ms: int = 600_000
    setup: str = ""
    engine: str = "auto"
    """What starts the command: live (it holds a Session), torchrun, or auto."""
    workers: int = 1
    """Processes in a VM, one for each GPU."""
    script: Mapping[str, str] = field(default_factory=dict)
    """The section `script`: how to speak with a command that does not import Surefoot."""
    envs: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Where the value of each secret variable comes from: ("env", name) or ("file", path)."""
    deadline: Deadline = Deadline()
    local: LocalSettings | None = None
    aws: Mapping[str, Any] = field(default_factory=dict)
    """The section `aws`, under the names of the provider's settings."""
    ssh: Mapping[str, Any] = field(default_factory=dict)
    """The section `ssh`: `hosts` as a list of mappings, and the provider's other settings."""
    hub: tuple[str | None, int] = (None, 0)
    """Address at which the VMs of a cloud reach the controller (None: this machine's), port."""
    has_workdir: bool = False
    """Whether the file names a `workdir`."""
    out: Path = Path("surefoot-out")

    @property
    def clouds(self) -> tuple[str, ...]:
        """The providers that are named, in the order of the file; `*` where one is open."""
        return tuple(dict.fromkeys(place.cloud for place in self.places))

    def terms(self, pools: Iterable[Pool], *, start_ms: int) -> Job:
        """Return the job over those of `pools` that the file admits, with its deadline set.

        Raises ConfigError when no pool is left.
        """
        offered = tuple(sorted(pools))
        admitted = tuple(p for p in offered if any(place.admits(p) for place in self.places))
        if not admitted:
            raise ConfigError(
                f"{self.path}: resources: no pool on offer fits {_list(self.places)}",
                hint=f"on offer: {_list(offered[:8]) or 'nothing at all'}",
            )
        limits = replace(self.job.limits, deadline_ms=self.deadline.instant(start_ms))
        return replace(self.job, pools=admitted, limits=limits)


def _list(things: Iterable[object]) -> str:
    return ", ".join(str(thing) for thing in things)
