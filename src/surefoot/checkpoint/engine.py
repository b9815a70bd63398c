"""The Checkpointer: save without stopping training, load what is good, never harm the last one."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import torch

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint import tree as trees
from surefoot.checkpoint.catalog import Catalog, Loaded
from surefoot.checkpoint.finite import first_nonfinite
from surefoot.checkpoint.gather import Meeting
from surefoot.checkpoint.link import WriterProcess
from surefoot.checkpoint.manifest import Manifest
from surefoot.checkpoint.persist import Order, Persister, data_name
from surefoot.checkpoint.plan import SavePlan, plan_save
from surefoot.checkpoint.preflight import problems
from surefoot.checkpoint.save import Pace, Saved, SaveHandle
from surefoot.checkpoint.shards import is_dtensor, plan_split, shards_of
from surefoot.checkpoint.stage import Arena, Arenas, Snapshot, owned_by, split
from surefoot.checkpoint.storage import open_storage
from surefoot.errors import CheckpointError, FencedError

_PROCESS_FROM_BYTES = 64 << 20
_GRACE_S = 2.0


@dataclass(slots=True)
class _InFlight:
    """One save on its way through the persist thread."""

    handle: SaveHandle
    snapshot: Snapshot
    plan: SavePlan
    tree: Mapping[str, Any]
    metadata: Mapping[str, Any]
    kind: str
    started_s: float


class Checkpointer:
    """Saves and loads nested state (tensors plus JSON-able values) under one path.

    `path`: a folder. `keep`: how many checkpoints stay. `generation`: the fence; opening for
    writing takes charge of the path, and whoever had it before gets FencedError. `rank` and
    `world`: in data-parallel training rank 0 writes and the others' saves settle at once; with
    `split=True` all ranks call `save` alike, each writes its share (its boxes of DTensors, an even
    part of the rest), and rank 0 commits when all are durable, or voids the save on all of them.
    `overlap=True`: the caller promises to call `barrier()` before anything writes to the saved
    tensors; copies of large tensors then run beside the next forward and backward (`guard` gives
    the same promise through optimizer hooks). Otherwise `save` returns when the copy is taken.
    `read_only=True`: never takes charge; only `load`, `latest`, `steps` and `verify` work.
    `writer`: "process" writes from a process of its own, which leaves the interpreter and the page
    cache alone and finishes its save even if the trainer dies; "thread" writes from a thread;
    "auto" takes the process from 64 MB of state on. `arenas`: snapshots held in memory at a time;
    with 2 a save need not wait until the one before is durable. `finite_only=True` voids the save
    of a state with a NaN or infinity in it, so that it never pushes out a good one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: int = 3,
        *,
        generation: int = 0,
        rank: int = 0,
        world: int = 1,
        split: bool = False,
        part_timeout_s: float = 120.0,
        overlap: bool = False,
        read_only: bool = False,
        writer: Literal["auto", "process", "thread"] = "auto",
        arenas: int = 1,
        finite_only: bool = False,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep must be at least 1, not {keep}")
        if arenas < 1:
            raise CheckpointError(f"arenas must be at least 1, not {arenas}")
        self.catalog = Catalog(open_storage(path))
        self.rank, self.world, self.overlap, self._split = rank, world, overlap, split
        self._generation, self._part_timeout_s = generation, part_timeout_s
        self._abort = threading.Event()
        self._pid = os.getpid()
        self.failures = 0
        self.last_durable: Saved | None = None
        self._pace = Pace()
        self._looked_ahead = False
        self._persister = Persister(self.catalog.storage.url, keep, attempt=0)
        self._persister.corrupt = self.catalog.corrupt
        self._writer, self._process = writer, WriterProcess()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._finite_only = finite_only
        self._arenas = Arenas(arenas)
        self._copying: Snapshot | None = None
        self._in_flight: list[SaveHandle] = []
        self._queue: queue.SimpleQueue[_InFlight | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._fenced: FencedError | None = None
        self._read_only = read_only
        if self._coordinates:
            self._persister.claim(generation)
        atexit.register(self._at_exit)

    # -- saving ---------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        state: Any,
        *,
        metadata: Mapping[str, Any] | None = None,
        blocking: bool = False,
        kind: str = "periodic",
    ) -> SaveHandle:
        """Start saving `state` as of now; `blocking=True` returns only when it is durable.

        The handle settles at the commit; retention acts after that.

        Waits for an earlier save if as many are in flight as there are arenas. `metadata` must be
        JSON-able; `kind` ("periodic", "emergency", "final") is kept for listings. Raises
        FencedError when a newer writer took over, CheckpointError for state that only pickle could
        store; trouble while writing is reported by the handle and a warning, and counted in
        `failures`.
        """
        handle = SaveHandle(step)
        if not self._writes:
            handle.settle(None)
            return handle
        if self._fenced is not None:
            raise self._fenced
        started_s = time.monotonic()
        job = self._stage(handle, state, _plain(metadata or {}), kind, started_s)
        self._persist_later(job)  # last: from here on the copy competes for cores
        handle.stall_s += time.monotonic() - started_s
        if blocking:
            self.barrier()
            handle.tidied.wait()
            handle.wait()
        return handle

    def barrier(self) -> None:
        """Return when the copy in flight is taken: call it before the optimizer writes."""
        copying = self._copying
        if copying is not None:
            started_s = time.monotonic()
            copying.barrier()
            self._copying = None
            self._in_flight[-1].stall_s += time.monotonic() - started_s

    def guard(self, *optimizers: torch.optim.Optimizer) -> None:
        """Call `barrier()` before each step of these optimizers, so that copies may overlap.

        Their parameters and state are then copied beside the next forward and backward; all
        other tensors (buffers such as running means) are copied before `save` returns.
        """
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self.barrier())
            self._optimizers.append(optimizer)

    def advance(
        self, generation: int, *, rank: int | None = None, world: int | None = None
    ) -> None:
        """Go on in a newer generation (after the group re-formed) with the arena kept warm.

        Waits for saves in flight first (a moment only, where they wait for ranks that may be
        gone). Raises FencedError if a still newer one has the path.
        """
        self._let_go()
        self._settle_all()
        self._abort.clear()
        self._generation, self._persister.attempt = generation, 0
        self.rank = self.rank if rank is None else rank
        self.world = self.world if world is None else world
        self._fenced = None
        if self._coordinates:
            self._persister.claim(generation)

    @property
    def busy(self) -> bool:
        """Whether a save is in flight (a further one would wait for it)."""
        return any(not handle.done for handle in self._in_flight)

    def margin_s(self, left_s: float) -> float | None:
        """Return the seconds to spare if a save of the last size began now and had `left_s`.

        By the slowest of the last eight saves; negative if it would not fit, None before the
        first. A save that does not fit is void and harms nothing: the last good one stays.
        """
        if self.last_durable is None:
            return None
        expected_s = self._pace.expect_s(self.last_durable.n_bytes)
        return None if expected_s is None else left_s - expected_s

    @property
    def reports(self) -> list[str]:
        """What was set aside as damaged, and why, in words."""
        return self.catalog.reports

    def wait(self) -> None:
        """Return when no save is in flight; raises the error of the newest one if it failed."""
        handles = self._settle_all()
        if handles:
            handles[-1].wait()

    def close(self) -> None:
        """Finish what is in flight and let go of memory; raises if the last save failed."""
        try:
            self.wait()
        finally:
            self._stop()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._at_exit()

    # -- loading --------------------------------------------------------------------------------

    def latest(self) -> int | None:
        """Return the highest step with a committed checkpoint whose files are whole, or None."""
        return self.catalog.latest()

    def steps(self) -> list[int]:
        """Return the committed steps, newest first."""
        return [live.step for live in self.catalog.candidates()]

    def load(self, state: Any = None, *, step: int | None = None) -> Loaded:
        """Return (step, state, metadata) of the newest good checkpoint, or of exactly `step`.

        With `state` given, tensors found in it by path are filled in place (and checked for dtype
        and shape); tensors that the checkpoint has beyond it are returned fresh. A damaged
        checkpoint is reported by a warning and the one before is loaded. Raises CheckpointError
        when there is none, CorruptError when none is good (then `state` may be half filled).
        """
        return self.catalog.load(state, step=step)

    def verify(self, step: int) -> Manifest:
        """Read every byte of a checkpoint; returns its manifest or raises CorruptError."""
        return self.catalog.verify(step)

    # -- inside ---------------------------------------------------------------------------------

    @property
    def _coordinates(self) -> bool:
        return self.rank == 0 and not self._read_only

    @property
    def _writes(self) -> bool:
        return self._coordinates or (self._shares and not self._read_only)

    @property
    def _shares(self) -> bool:
        return self._split and self.world > 1

    def _let_go(self) -> None:
        """Give saves in flight a moment, then end their waiting for other ranks."""
        if not self._shares:
            return
        self.barrier()
        for handle in self._in_flight:
            handle.settled(_GRACE_S)
        self._abort.set()

    def _stage(
        self,
        handle: SaveHandle,
        state: Any,
        metadata: Mapping[str, Any],
        kind: str,
        started_s: float,
    ) -> _InFlight:
        tree, leaves = trees.flatten(state)
        plan, leaves = self._plan(leaves)
        self.barrier()
        guarded = owned_by(self._optimizers) if self._optimizers else None
        pairs = [(slot, leaves[slot.name]) for slot in plan.slots]
        now, beside = split(pairs, guarded, overlap=self.overlap)
        snapshot = Snapshot(self._arenas.take(plan.total_bytes), now, beside)
        self._copying = snapshot if snapshot.overlaps else None
        self._in_flight = [h for h in self._in_flight if not h.done] + [handle]
        return _InFlight(handle, snapshot, plan, tree, metadata, kind, started_s)

    def _plan(self, leaves: dict[str, torch.Tensor]) -> tuple[SavePlan, dict[str, torch.Tensor]]:
        """Return this rank's layout and the memory that goes into it, by name."""
        if self._shares:
            shards = shards_of(leaves, self.rank, self.world)
            return plan_split(shards, self.rank), {s.name: s.view for s in shards}
        spread = next((name for name, t in leaves.items() if is_dtensor(t)), None)
        if spread is not None:
            raise CheckpointError(
                f"state[{spread}] is spread over ranks (DTensor)",
                hint="open the Checkpointer with split=True, rank and world on every rank",
            )
        return plan_save(leaves), leaves

    def _persist_later(self, job: _InFlight) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._persist_loop, name="surefoot-persist", daemon=True
            )
            self._thread.start()
        self._queue.put(job)

    def _persist_loop(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                saved = self._persist(job)
            except BaseException as error:  # whatever it was, the handle's owner gets it
                self._arenas.give_back(job.snapshot.arena)
                self._note_failure(job.handle, error)
            else:
                self._arenas.give_back(job.snapshot.arena)
                self.failures, self.last_durable = 0, saved
                self._pace.note(saved)
                job.handle.settle(saved)
                self._tidy(saved)
            job.handle.tidied.set()

    def _tidy(self, saved: Saved) -> None:
        """Let retention act, where the writer process does not."""
        if self._coordinates and (self._shares or not self._by_process(saved.n_bytes)):
            self._persister.tidy(saved.folder)

    def _persist(self, job: _InFlight) -> Saved:
        step = job.handle.step
        job.snapshot.work()
        if job.snapshot.torn:
            raise CheckpointError(
                f"step {step} was not saved: {job.snapshot.torn}",
                hint="call barrier() before optimizer.step(), or use guard(optimizer)",
            )
        if self._finite_only:
            self._refuse_nonfinite(job)
        self._look_ahead(job.plan.total_bytes)
        self._persister.attempt += 1
        tensors = {name: fmt.tensor_json(entry) for name, entry in job.plan.entries.items()}
        n_bytes = job.plan.total_bytes
        order = Order(step, job.kind, n_bytes, self.world, tensors, job.tree, job.metadata)
        folder = self._write(order, job.snapshot.arena)
        persist_s = time.monotonic() - job.started_s
        return Saved(step, folder, n_bytes, job.handle.stall_s, persist_s)

    def _refuse_nonfinite(self, job: _InFlight) -> None:
        entries, arena = job.plan.entries, job.snapshot.arena
        parts = [(s.name, entries[s.name].dtype, s.offset, s.n_bytes) for s in job.plan.slots]
        name = first_nonfinite(arena, parts)
        if name:
            raise CheckpointError(
                f"step {job.handle.step} was not saved: state[{name}] holds a NaN or infinity",
                hint="go back to the last checkpoint and look at loss, learning rate and data",
            )

    def _look_ahead(self, n_bytes: int) -> None:
        """Before the first save, warn of what is bound to go wrong later."""
        if not self._looked_ahead and self._coordinates:
            self._looked_ahead = True
            with contextlib.suppress(OSError):
                size = n_bytes * (self.world if self._shares else 1)
                for problem in problems(self.catalog.storage, size, self._persister.keep):
                    self.reports.append(problem)
                    warnings.warn(problem, stacklevel=2)

    def _write(self, order: Order, arena: Arena) -> str:
        if self._shares:
            return self._persister.persist_part(
                order, self.rank, self._meeting(order.step), lambda f: self._data(f, order, arena)
            )
        if self._by_process(order.n_bytes):
            return self._process.persist(self._persister, order, arena)
        with memoryview(arena.memory) as memory, memory[: order.n_bytes] as part:
            return self._persister.persist(order, part)

    def _data(self, folder: str, order: Order, arena: Arena) -> fmt.File:
        storage, name = self.catalog.storage, data_name(self.rank)
        if self._by_process(order.n_bytes):
            return self._process.write_data(storage.url, folder, name, arena, order.n_bytes)
        with memoryview(arena.memory) as memory, memory[: order.n_bytes] as part:
            return storage.write_data(folder, name, part)

    def _by_process(self, n_bytes: int) -> bool:
        big = n_bytes >= _PROCESS_FROM_BYTES
        return self._writer == "process" or (self._writer == "auto" and big)

    def _meeting(self, step: int) -> Meeting:
        return Meeting(
            self.catalog.storage,
            step,
            self._generation,
            self._persister.attempt,
            self.world,
            self._part_timeout_s,
            self._abort,
        )

    def _note_failure(self, handle: SaveHandle, error: BaseException) -> None:
        self.failures += 1
        if isinstance(error, FencedError):
            self._fenced = error
        handle.fail(error)
        warnings.warn(f"the save of step {handle.step} failed: {error}", stacklevel=2)

    def _settle_all(self) -> list[SaveHandle]:
        self.barrier()
        handles, self._in_flight = self._in_flight, []
        for handle in handles:
            handle.tidied.wait()
        return handles

    def _stop(self) -> None:
        atexit.unregister(self._at_exit)
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._process.close()
        self._arenas.close()

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the trainer: the threads, and thus the saves, are not here
        self._settle_all()
        self._stop()


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"metadata must be plain JSON: {error}") from error
    return copy
