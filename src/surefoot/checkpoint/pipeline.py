"""From staged snapshots to durable checkpoints: the thread of the trainer that sees saves through.

Where a process writes, it has its order before the copy begins and writes what is copied so far;
it commits only once this side has called the copy whole.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.arena import Arenas
from surefoot.checkpoint.finite import first_nonfinite
from surefoot.checkpoint.gate import Fill
from surefoot.checkpoint.gather import Meeting
from surefoot.checkpoint.link import WriterProcess
from surefoot.checkpoint.persist import Order, Persister, data_name
from surefoot.checkpoint.plan import SavePlan
from surefoot.checkpoint.preflight import problems
from surefoot.checkpoint.retention import at_least
from surefoot.checkpoint.save import Pace, Saved, SaveHandle
from surefoot.checkpoint.stage import Snapshot
from surefoot.errors import CheckpointError, FencedError

_PROCESS_FROM_BYTES = 64 << 20

Writer = Literal["auto", "process", "thread"]


@dataclass(slots=True)
class InFlight:
    """One save on its way."""

    handle: SaveHandle
    snapshot: Snapshot
    plan: SavePlan
    tree: Mapping[str, Any]
    metadata: Mapping[str, Any]
    kind: str
    started_s: float
    score: float | None = None


@dataclass(slots=True)
class Group:
    """The ranks that save together, as of this generation."""

    rank: int
    world: int
    split: bool
    generation: int
    part_timeout_s: float
    abort: threading.Event = field(default_factory=threading.Event)

    @property
    def shares(self) -> bool:
        """Whether every rank writes a part."""
        return self.split and self.world > 1


class Pipeline:
    """Takes one save after the other to its commit and reports how it ended."""

    def __init__(
        self,
        persister: Persister,
        arenas: Arenas,
        group: Group,
        *,
        writer: Writer,
        finite_only: bool,
        hold_s: float,
        reports: list[str],
    ) -> None:
        self._persister, self._arenas, self.group = persister, arenas, group
        self._writer, self._finite_only, self._reports = writer, finite_only, reports
        self._process = WriterProcess(hold_s)
        self.failures = 0
        self.last_durable: Saved | None = None
        self.fenced: FencedError | None = None
        self.pace = Pace()
        self._looked_ahead = False
        self._tensors: tuple[SavePlan | None, dict[str, Any]] = (None, {})
        self._queue: queue.SimpleQueue[InFlight | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, job: InFlight) -> None:
        """See a save through in the background."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="surefoot-persist", daemon=True)
            self._thread.start()
        self._queue.put(job)

    def stop(self, *, keeps: bool) -> None:
        """End the thread after the saves it has, and the writer process.

        `keeps`: let it keep the last snapshot in memory, as after a crash.
        """
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._process.close(keeps=keeps)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                saved = self._persist(job)
            except BaseException as error:  # whatever it was, the handle's owner gets it
                self._arenas.give_back(job.snapshot.arena)
                self._note_failure(job.handle, error)
            else:
                self._arenas.give_back(job.snapshot.arena)
                self.failures, self.last_durable = 0, saved
                self.pace.note(saved)
                job.handle.settle(saved)
                self._tidy(saved)
            job.handle.tidied.set()

    def _note_failure(self, handle: SaveHandle, error: BaseException) -> None:
        self.failures += 1
        if isinstance(error, FencedError):
            self.fenced = error
        handle.fail(error)
        warnings.warn(f"the save of step {handle.step} failed: {error}", stacklevel=2)

    def _tidy(self, saved: Saved) -> None:
        """Let retention act, where the writer process does not."""
        group = self.group
        if group.rank == 0 and (group.shares or not self._by_process(saved.n_bytes)):
            self._persister.tidy(saved.folder)

    def _persist(self, job: InFlight) -> Saved:
        self._look_ahead(job.plan.total_bytes)
        self._persister.attempt += 1
        n_bytes = job.plan.total_bytes
        tensors = self._entries(job.plan)
        step, world = job.handle.step, self.group.world
        order = Order(step, job.kind, n_bytes, world, tensors, job.tree, job.metadata, job.score)
        folder = self._write(order, job)
        persist_s = time.monotonic() - job.started_s
        return Saved(step, folder, n_bytes, job.handle.stall_s, persist_s)

    def _entries(self, plan: SavePlan) -> dict[str, Any]:
        """Return the plan's tensors as the manifest spells them; the same plan asks once."""
        if self._tensors[0] is not plan:
            spelled = {name: fmt.tensor_json(entry) for name, entry in plan.entries.items()}
            self._tensors = (plan, spelled)
        return self._tensors[1]

    def _write(self, order: Order, job: InFlight) -> str:
        if self.group.shares:
            return self._persister.persist_part(
                order, self.group.rank, self._meeting(order.step), self._part_of(order, job)
            )
        if self._by_process(order.n_bytes):
            return self._process.persist(
                self._persister, order, job.snapshot, lambda: self._fill(job)
            )
        self._fill(job)
        with memoryview(job.snapshot.arena.memory) as memory, memory[: order.n_bytes] as part:
            return self._persister.persist(order, part)

    def _part_of(self, order: Order, job: InFlight) -> Callable[[str], fmt.File]:
        """Return what writes this rank's data file, and raises if the copy is not good."""
        storage, name = self._persister.storage, data_name(self.group.rank)
        job.snapshot.work()  # now: meeting the others may take a while

        def write(folder: str) -> fmt.File:
            if self._by_process(order.n_bytes):
                return self._process.write_data(
                    storage.url, folder, name, job.snapshot, order.n_bytes, lambda: self._fill(job)
                )
            self._fill(job)
            with memoryview(job.snapshot.arena.memory) as memory, memory[: order.n_bytes] as part:
                return storage.write_data(folder, name, part)

        return write

    def _fill(self, job: InFlight) -> None:
        """Copy what is left and call the copy whole; raises CheckpointError if it is not good."""
        snapshot = job.snapshot
        try:
            snapshot.work()
            if snapshot.torn:
                raise CheckpointError(
                    f"step {job.handle.step} was not saved: {snapshot.torn}",
                    hint="call barrier() before optimizer.step(), or use guard(optimizer)",
                )
            if self._finite_only:
                _refuse_nonfinite(job)
        except BaseException:
            snapshot.call(Fill.VOID)
            raise
        snapshot.call(Fill.WHOLE)

    def _look_ahead(self, n_bytes: int) -> None:
        """Before the first save, warn of what is bound to go wrong later."""
        group = self.group
        if self._looked_ahead or group.rank != 0:
            return
        self._looked_ahead = True
        with contextlib.suppress(OSError):
            size = n_bytes * (group.world if group.shares else 1)
            for problem in problems(self._persister.storage, size, at_least(self._persister.keep)):
                self._reports.append(problem)
                warnings.warn(problem, stacklevel=2)

    def _by_process(self, n_bytes: int) -> bool:
        big = n_bytes >= _PROCESS_FROM_BYTES
        return self._writer == "process" or (self._writer == "auto" and big)

    def _meeting(self, step: int) -> Meeting:
        group = self.group
        return Meeting(
            self._persister.storage,
            step,
            group.generation,
            self._persister.attempt,
            group.world,
            group.part_timeout_s,
            group.abort,
        )


def _refuse_nonfinite(job: InFlight) -> None:
    entries, arena = job.plan.entries, job.snapshot.arena
    parts = [(s.name, entries[s.name].dtype, s.offset, s.n_bytes) for s in job.plan.slots]
    name = first_nonfinite(arena, parts)
    if name:
        raise CheckpointError(
            f"step {job.handle.step} was not saved: state[{name}] holds a NaN or infinity",
            hint="go back to the last checkpoint and look at loss, learning rate and data",
        )
