"""The Checkpointer: save without stopping training, load what is good, never harm the last one."""

from __future__ import annotations

import atexit
import json
import math
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch

from surefoot.checkpoint import keeper
from surefoot.checkpoint import tree as trees
from surefoot.checkpoint.arena import Arenas
from surefoot.checkpoint.catalog import Catalog, Loaded
from surefoot.checkpoint.drain import DEFAULT_EVERY_S, Drain, DrainTarget
from surefoot.checkpoint.manifest import Manifest
from surefoot.checkpoint.persist import Persister, data_name
from surefoot.checkpoint.pipeline import Group, InFlight, Pipeline, Writer
from surefoot.checkpoint.plan import SavePlan, plan_save
from surefoot.checkpoint.retention import Keep, rules_of
from surefoot.checkpoint.save import Saved, SaveHandle
from surefoot.checkpoint.shards import is_dtensor, plan_split, shards_of
from surefoot.checkpoint.stage import Snapshot, owned_by, split
from surefoot.checkpoint.storage import open_storage
from surefoot.errors import CheckpointError

_GRACE_S = 2.0


class Checkpointer:
    """Saves and loads nested state (tensors plus JSON-able values) under one path.

    `path`: a folder. `keep`: how many checkpoints stay, or rules for it
    (`Latest(n)`, `EveryNHours(h)`, `Best(n)` by the `score` given to `save`, a list of them).
    `generation`: the fence; opening for writing takes charge of the path, and whoever had it
    before gets FencedError. `rank` and
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
    with 2 a save need not wait until the one before is durable. `memory_budget_bytes` bounds what
    they hold together: a second one that does not fit is not made, a first one that does not is an
    error. `finite_only=True` voids the save of a state with a NaN or infinity in it, so that it
    never pushes out a good one. `hold_s`: if this process dies, its writer process keeps the last
    snapshot for so long, and a restarted one on this machine loads it from memory. `drain_to`:
    a bucket or a folder to which rank 0 copies the newest committed checkpoint of the local `path`
    every `drain_every_s` seconds and at `close`; loading takes the newest good copy of both.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: Keep = 3,
        *,
        generation: int = 0,
        rank: int = 0,
        world: int = 1,
        split: bool = False,
        part_timeout_s: float = 120.0,
        overlap: bool = False,
        read_only: bool = False,
        writer: Writer = "auto",
        arenas: int = 1,
        memory_budget_bytes: int | None = None,
        finite_only: bool = False,
        hold_s: float = 0.0,
        drain_to: str | os.PathLike[str] | None = None,
        drain_every_s: float = DEFAULT_EVERY_S,
    ) -> None:
        rules_of(keep)
        if arenas < 1:
            raise CheckpointError(f"arenas must be at least 1, not {arenas}")
        second = None if drain_to is None else Catalog(open_storage(drain_to))
        self.catalog = Catalog(open_storage(path), second)
        self.overlap = overlap
        self._group = Group(rank, world, split, generation, part_timeout_s)
        self._pid, self._finite_only = os.getpid(), finite_only
        self._persister = Persister(self.catalog.storage.url, keep, attempt=0)
        self._persister.corrupt = self.catalog.corrupt
        self.drain: Drain | None = None
        if drain_to is not None and not read_only:
            target = DrainTarget(os.fspath(drain_to), drain_every_s)
            self.drain = Drain(self._persister.url, target, keep)
        self._optimizers: list[torch.optim.Optimizer] = []
        self._arenas = Arenas(arenas, memory_budget_bytes)
        self._pipeline = Pipeline(
            self._persister,
            self._arenas,
            self._group,
            writer=writer,
            finite_only=finite_only,
            hold_s=hold_s,
            reports=self.catalog.reports,
        )
        self._copying: Snapshot | None = None
        self._in_flight: list[SaveHandle] = []
        self._read_only = read_only
        self._settled = self._dismissed = False
        if self._coordinates:
            self._settle()
            self._claim()
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
        score: float | None = None,
    ) -> SaveHandle:
        """Start saving `state` as of now; `blocking=True` returns only when it is durable.

        The handle settles at the commit; retention acts after that.

        Waits for an earlier save if as many are in flight as there are arenas. `metadata` must be
        JSON-able; `score` is what `Best` goes by; `kind` ("periodic", "emergency", "final") is
        kept for listings. Raises FencedError when a newer writer took over,
        CheckpointError for state that only pickle could
        store; trouble while writing is reported by the handle and a warning, and counted in
        `failures`.
        """
        handle = SaveHandle(step)
        if not self._writes:
            handle.settle(None)
            return handle
        if self._pipeline.fenced is not None:
            raise self._pipeline.fenced
        started_s = time.monotonic()
        job = self._stage(handle, state, _plain(metadata or {}), kind, started_s)
        job.score = _number(score)
        if job.snapshot.is_small:
            job.snapshot.begin()
            self._pipeline.put(job)  # last: from here on the copy competes for cores
        else:
            self._pipeline.put(job)  # first: its thread and the writer do their part of it
            job.snapshot.begin()
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
        group = self._group
        group.abort.clear()
        group.generation, self._persister.attempt = generation, 0
        group.rank = group.rank if rank is None else rank
        group.world = group.world if world is None else world
        self._pipeline.fenced = None
        if self._coordinates:
            self._claim()
        elif self.drain is not None:
            self.drain.abandon()

    @property
    def rank(self) -> int:
        """This rank."""
        return self._group.rank

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return self._group.world

    @property
    def failures(self) -> int:
        """How many saves have failed since the last that became durable."""
        return self._pipeline.failures

    @property
    def last_durable(self) -> Saved | None:
        """The newest save of this Checkpointer that is durable."""
        return self._pipeline.last_durable

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
        expected_s = self._pipeline.pace.expect_s(self.last_durable.n_bytes)
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
            if self.drain is not None and self._coordinates:
                self.drain.finish()

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
        self._settle()
        return self.catalog.latest()

    def steps(self) -> list[int]:
        """Return the committed steps, newest first."""
        self._settle()
        return self.catalog.steps()

    def load(self, state: Any = None, *, step: int | None = None) -> Loaded:
        """Return (step, state, metadata) of the newest good checkpoint, or of exactly `step`.

        With `state` given, tensors found in it by path are filled in place (and checked for dtype
        and shape); tensors that the checkpoint has beyond it are returned fresh. A damaged
        checkpoint is reported by a warning and the one before is loaded. Raises CheckpointError
        when there is none, CorruptError when none is good (then `state` may be half filled).
        """
        self._settle()
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
        return self._coordinates or (self._group.shares and not self._read_only)

    def _claim(self) -> None:
        """Take charge of the path, and of what it is drained to with the first copy."""
        self._persister.claim(self._group.generation)
        if self.drain is not None:
            self.drain.start(self._group.generation)

    def _settle(self) -> None:
        """Once: let the writer of a process that died before us finish what it had."""
        if not self._settled:
            self._settled = True
            keeper.settle(self._persister.url, data_name(self.rank))

    def _dismiss(self) -> None:
        """Once: free the memory that a writer kept for us."""
        if not self._dismissed:
            self._dismissed = True
            keeper.dismiss(self._persister.url, data_name(self.rank))

    def _let_go(self) -> None:
        """Give saves in flight a moment, then end their waiting for other ranks."""
        if not self._group.shares:
            return
        self.barrier()
        for handle in self._in_flight:
            handle.settled(_GRACE_S)
        self._group.abort.set()

    def _stage(
        self,
        handle: SaveHandle,
        state: Any,
        metadata: Mapping[str, Any],
        kind: str,
        started_s: float,
    ) -> InFlight:
        tree, leaves = trees.flatten(state)
        plan, leaves = self._plan(leaves)
        self.barrier()
        guarded = owned_by(self._optimizers) if self._optimizers else None
        pairs = [(slot, leaves[slot.name]) for slot in plan.slots]
        now, beside = split(pairs, guarded, overlap=self.overlap)
        self._dismiss()
        arena = self._arenas.take(plan.total_bytes)
        try:
            snapshot = Snapshot(arena, now, beside, final=not self._finite_only)
        except BaseException:
            self._arenas.give_back(arena)
            raise
        self._copying = snapshot if snapshot.overlaps else None
        self._in_flight = [h for h in self._in_flight if not h.done] + [handle]
        return InFlight(handle, snapshot, plan, tree, metadata, kind, started_s)

    def _plan(self, leaves: dict[str, torch.Tensor]) -> tuple[SavePlan, dict[str, torch.Tensor]]:
        """Return this rank's layout and the memory that goes into it, by name."""
        if self._group.shares:
            shards = shards_of(leaves, self.rank, self.world)
            return plan_split(shards, self.rank), {s.name: s.view for s in shards}
        spread = next((name for name, t in leaves.items() if is_dtensor(t)), None)
        if spread is not None:
            raise CheckpointError(
                f"state[{spread}] is spread over ranks (DTensor)",
                hint="open the Checkpointer with split=True, rank and world on every rank",
            )
        return plan_save(leaves), leaves

    def _settle_all(self) -> list[SaveHandle]:
        self.barrier()
        handles, self._in_flight = self._in_flight, []
        for handle in handles:
            handle.tidied.wait()
        return handles

    def _stop(self, *, keeps: bool = False) -> None:
        atexit.unregister(self._at_exit)
        self._pipeline.stop(keeps=keeps)
        self._arenas.close()

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the trainer: the threads, and thus the saves, are not here
        if self.drain is not None:
            self.drain.abandon()
        self._settle_all()
        self._stop(keeps=True)


def _number(score: float | None) -> float | None:
    """Return a score that can be compared; one that is not finite counts as none."""
    return float(score) if score is not None and math.isfinite(score) else None


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, value in metadata.items():
        try:
            copy.update(json.loads(json.dumps({key: value}, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"metadata[{key!r}] must be plain JSON: {error}") from error
    return copy
