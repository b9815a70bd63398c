"""What the local provider writes down, so that another process can take over its VMs and market."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from surefoot.core.market import Capacity, Pool
from surefoot.core.replay import Departure
from surefoot.errors import ConfigError
from surefoot.providers.base import Vm, VmState
from surefoot.providers.local.processes import ProcessId


@dataclass(frozen=True, slots=True)
class VmRecord:
    """One VM. `*_ms` are epoch, `*_trace_ms` are instants of the trace.

    `number` counts launches of this state folder and gives the VM its address.
    """

    instance_id: str
    number: int
    token: str
    run: str
    pool: Pool
    capacity: Capacity
    launched_ms: int
    launched_trace_ms: int
    address: str
    folder: str
    """The VM's scratch folder, which is also the mark of its processes."""
    process: ProcessId | None = None
    """The VM's first process; None until it is started."""
    doom: Departure | None = None
    """The departure that the VM has been told of."""
    ended_ms: int | None = None
    preempted: bool = False

    @property
    def state(self) -> VmState:
        """Return the state as the port names it."""
        if self.ended_ms is not None:
            return VmState.ENDED
        return VmState.PENDING if self.process is None else VmState.RUNNING

    def ended(self, at_ms: int, *, preempted: bool) -> VmRecord:
        """Return this record, ended; one that has ended stays as it is."""
        if self.ended_ms is not None:
            return self
        return replace(self, ended_ms=at_ms, preempted=preempted)

    def as_vm(self) -> Vm:
        """Return the VM as the port lists it."""
        return Vm(
            self.instance_id,
            self.token,
            self.run,
            self.pool,
            self.capacity,
            self.state,
            self.launched_ms,
            address=self.address,
            ended_ms=self.ended_ms,
            preempted=self.preempted,
        )


@dataclass(frozen=True, slots=True)
class MarketRecord:
    """How far the market has been replayed, how many VMs it launched, the metadata port."""

    trace: str = ""
    elapsed_ms: int = 0
    launches: int = 0
    metadata_port: int = 0


class StateFolder:
    """The provider's files below `root`; holds a lock, so that one provider at a time owns them.

    Raises ConfigError when a living process owns the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.vms = self.root / "vms"
        self.vms.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(
                f"{self.root} is in use by another running controller",
                hint="stop that run first, or give this one a folder of its own",
            ) from error

    def release(self) -> None:
        """Give up the lock."""
        os.close(self._lock)

    def save(self, record: VmRecord) -> None:
        """Write one VM's record."""
        body = asdict(record)
        body["pool"], body["capacity"] = str(record.pool), record.capacity.value
        _write(self.vms / f"{record.instance_id}.json", body)

    def load(self) -> Iterator[VmRecord]:
        """Yield all VM records, in order of launch; a torn file is skipped (its VM is orphaned)."""
        found = []
        for path in self.vms.glob("*.json"):
            body = _read(path)
            if body is not None:
                found.append(_record(body))
        yield from sorted(found, key=lambda record: record.number)

    def forget(self, record: VmRecord) -> None:
        """Remove one VM's record; its logs stay."""
        (self.vms / f"{record.instance_id}.json").unlink(missing_ok=True)

    def save_market(self, market: MarketRecord) -> None:
        """Write how far the market has come."""
        _write(self.root / "market.json", asdict(market))

    def load_market(self) -> MarketRecord:
        """Return how far the market had come; a fresh one when nothing is written."""
        body = _read(self.root / "market.json")
        return MarketRecord(**body) if body else MarketRecord()


def _record(body: dict[str, Any]) -> VmRecord:
    body["pool"], body["capacity"] = Pool.parse(body["pool"]), Capacity(body["capacity"])
    body["process"] = ProcessId(**body["process"]) if body["process"] else None
    body["doom"] = Departure(*body["doom"]) if body["doom"] else None
    return VmRecord(**body)


def _write(path: Path, body: dict[str, Any]) -> None:
    # No fsync: after a power cut there are no processes to take over either.
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(body))
    draft.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None
