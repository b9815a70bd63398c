"""The Checkpointer: save without stopping training, load what is good, never harm the last one."""

from __future__ import annotations

import atexit
import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from surefoot.checkpoint import load as reading
from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint import tree as trees
from surefoot.checkpoint.commit import Commits, Live, folder_name, parse_folder, read_log
from surefoot.checkpoint.manifest import Manifest
from surefoot.checkpoint.plan import SavePlan, Slot, plan_save
from surefoot.checkpoint.retention import to_drop
from surefoot.checkpoint.save import Saved, SaveHandle
from surefoot.checkpoint.stage import Arena, copy_in
from surefoot.checkpoint.storage import LocalStorage, open_storage, typed
from surefoot.checkpoint.writer import write_file
from surefoot.errors import CheckpointError, CorruptError, FencedError, NotBuiltError

Pair = tuple[Slot, torch.Tensor]
_SMALL_BYTES = 1 << 20


@dataclass(slots=True)
class _Order:
    """One save on its way through the persist thread."""

    handle: SaveHandle
    plan: SavePlan
    tree: Mapping[str, Any]
    metadata: Mapping[str, Any]
    kind: str
    started_s: float
    copied: threading.Event
    versions: list[tuple[torch.Tensor, int]]
    torn: str = ""


class Checkpointer:
    """Saves and loads nested state (tensors plus JSON-able values) under one path.

    `path`: a folder or URL. `keep`: how many checkpoints stay. `generation`: the fence; opening
    for writing takes charge of the path, and whoever had it before gets FencedError. `rank` and
    `world`: in data-parallel training rank 0 writes and the others' saves settle at once.
    `overlap=True`: the caller promises to call `barrier()` before anything writes to the saved
    tensors; copies of large tensors then run beside the next forward and backward (`guard` gives
    the same promise through optimizer hooks). Otherwise `save` returns when the copy is taken.
    `read_only=True`: never takes charge; only `load`, `latest` and `verify` work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: int = 3,
        *,
        generation: int = 0,
        rank: int = 0,
        world: int = 1,
        overlap: bool = False,
        read_only: bool = False,
    ) -> None:
        if keep < 1:
            raise CheckpointError(f"keep must be at least 1, not {keep}")
        self.storage = open_storage(path)
        self.keep, self.rank, self.world, self.overlap = keep, rank, world, overlap
        self.failures = 0
        self.last_durable: Saved | None = None
        self._commits = Commits(self.storage)
        self._corrupt: set[str] = set()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._arena: Arena | None = None
        self._attempt = 0
        self._copying: threading.Thread | None = None
        self._in_flight: list[SaveHandle] = []
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._persister: threading.Thread | None = None
        self._fenced: FencedError | None = None
        self._writes = not read_only and rank == 0
        if self._writes:
            self._guarded(self._commits.claim, generation)
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

        Waits for the previous save if that is still in flight. `metadata` must be JSON-able;
        `kind` ("periodic", "emergency", "final") is kept for listings. Raises FencedError when a
        newer writer took over, CheckpointError for state that only pickle could store; trouble
        while writing is reported by the handle, and counted in `failures`.
        """
        handle = SaveHandle(step)
        if not self._writes:
            handle.settle(None)
            return handle
        if self._fenced is not None:
            raise self._fenced
        started_s = time.monotonic()
        order = self._stage(step, state, metadata or {}, kind, handle, started_s)
        self._in_flight.append(handle)
        self._persist_later(order)
        handle.stall_s = time.monotonic() - started_s
        if blocking:
            handle.wait()
        return handle

    def barrier(self) -> None:
        """Return when the copy in flight is taken: call it before the optimizer writes."""
        copying = self._copying
        if copying is not None:
            started_s = time.monotonic()
            copying.join()
            self._copying = None
            if self._in_flight:
                self._in_flight[-1].stall_s += time.monotonic() - started_s

    def guard(self, *optimizers: torch.optim.Optimizer) -> None:
        """Call `barrier()` before each step of these optimizers, so that copies may overlap.

        Their parameters and state are then copied beside the next forward and backward; all
        other tensors (buffers such as running means) are copied before `save` returns.
        """
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self.barrier())
            self._optimizers.append(optimizer)

    def advance(self, generation: int, *, rank: int | None = None, world: int | None = None) -> None:
        """Go on in a newer generation (after the group re-formed) with the arena kept warm.

        Waits for saves in flight first. Raises FencedError if a still newer one has the path.
        """
        self._settle_all()
        self.rank = self.rank if rank is None else rank
        self.world = self.world if world is None else world
        self._writes = self.rank == 0
        self._fenced = None
        if self._writes:
            self._guarded(self._commits.claim, generation)

    @property
    def busy(self) -> bool:
        """Whether a save is in flight (a further one would wait for it)."""
        return any(not handle.done for handle in self._in_flight)

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
            self._settle_all()
            self._stop()

    # -- loading --------------------------------------------------------------------------------

    def latest(self) -> int | None:
        """Return the highest step with a committed checkpoint whose files are whole, or None."""
        for live in self._candidates():
            try:
                self._manifest(live.folder)
                return live.step
            except CorruptError as error:
                self._set_aside(live, error)
        return None

    def steps(self) -> list[int]:
        """Return the committed steps, newest first."""
        return [live.step for live in self._candidates()]

    def load(self, state: Any = None, *, step: int | None = None) -> reading.Loaded:
        """Return (step, state, metadata) of the newest good checkpoint, or of exactly `step`.

        With `state` given, tensors found in it by path are filled in place (and checked for dtype
        and shape); tensors that the checkpoint has beyond it are returned fresh. A damaged
        checkpoint is reported by a warning and the one before is loaded, unless `step` was named.
        Raises CheckpointError when there is none, CorruptError when none is good.
        """
        into = trees.flatten(state)[1] if state is not None else {}
        candidates = [c for c in self._candidates() if step is None or c.step == step]
        last: CorruptError | None = None
        for live in candidates:
            try:
                return self._load(live, into)
            except CorruptError as error:
                self._set_aside(live, error)
                last = error
        if last is not None:
            raise CorruptError(
                f"no good checkpoint is left in {self.storage.url}: {last}",
                hint=f"surefoot checkpoints verify {self.storage.url}",
            ) from last
        which = "" if step is None else f" of step {step}"
        raise CheckpointError(f"there is no checkpoint{which} in {self.storage.url}")

    def verify(self, step: int) -> Manifest:
        """Read every byte of a checkpoint; returns its manifest or raises CorruptError."""
        for live in self._candidates():
            if live.step == step:
                manifest = self._manifest(live.folder)
                reading.verify_files(self.storage, live.folder, manifest)
                return manifest
        raise CheckpointError(f"there is no checkpoint of step {step} in {self.storage.url}")

    def _load(self, live: Live, into: Mapping[str, torch.Tensor]) -> reading.Loaded:
        manifest = self._manifest(live.folder)
        missing = sorted(into.keys() - manifest.tensors.keys())
        if missing:
            raise CheckpointError(
                f"{self.storage.url}/{live.folder} lacks {len(missing)} tensors of the given"
                f" state, such as {missing[0]}",
                hint="build the model as it was when it was saved, or load without a state",
            )
        tensors = reading.read_tensors(self.storage, live.folder, manifest, into)
        restored = trees.restore(dict(manifest.tree), tensors)
        return manifest.step, restored, dict(manifest.metadata)

    def _manifest(self, folder: str) -> Manifest:
        manifest = reading.read_manifest(self.storage, folder)
        reading.check_sizes(self.storage, folder, manifest)
        return manifest

    def _candidates(self) -> list[Live]:
        """Committed checkpoints, newest first; then whole ones that no log names (copied here)."""
        log = self._guarded(read_log, self.storage)
        named = sorted(reversed(list(log.live.values())), key=lambda c: c.step, reverse=True)
        found = [(parse_folder(name), name) for name in self.storage.folders()]
        strays = [
            Live(name, parsed[0], "unlisted")
            for parsed, name in found
            if parsed is not None and name not in log.live and parsed[1] not in log.writers
        ]
        strays.sort(key=lambda c: c.step, reverse=True)
        return [c for c in named + strays if c.folder not in self._corrupt]

    def _set_aside(self, live: Live, error: CorruptError) -> None:
        self._corrupt.add(live.folder)
        warnings.warn(f"checkpoint of step {live.step} is set aside: {error}", stacklevel=3)

    # -- staging (caller's thread) --------------------------------------------------------------

    def _stage(
        self,
        step: int,
        state: Any,
        metadata: Mapping[str, Any],
        kind: str,
        handle: SaveHandle,
        started_s: float,
    ) -> _Order:
        tree, leaves = trees.flatten(state)
        metadata = _plain(metadata)
        plan = plan_save(leaves)
        self._settle_all()
        arena = self._arena_of(plan.total_bytes)
        now, later = self._split([(slot, leaves[slot.name]) for slot in plan.slots])
        order = _Order(handle, plan, tree, metadata, kind, started_s, threading.Event(), [])
        copy_in(arena, now)
        if later:
            order.versions = [(tensor, _version(tensor)) for _, tensor in later]
            self._copying = threading.Thread(
                target=_copy_beside, args=(arena, later, order), name="surefoot-copy", daemon=True
            )
            self._copying.start()
        else:
            order.copied.set()
        return order

    def _split(self, pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
        """Return (copy before save returns, copy beside training)."""
        if self._optimizers:
            guarded = {tensor.data_ptr() for o in self._optimizers for tensor in _owned(o)}
            beside = [pair[1].data_ptr() in guarded for pair in pairs]
        else:
            beside = [self.overlap and pair[0].n_bytes > _SMALL_BYTES for pair in pairs]
        now = [pair for pair, later in zip(pairs, beside) if not later]
        return now, [pair for pair, later in zip(pairs, beside) if later]

    def _arena_of(self, n_bytes: int) -> Arena:
        if self._arena is not None and self._arena.n_bytes == n_bytes:
            return self._arena
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._arena = Arena(n_bytes)
        return self._arena

    # -- persisting (background thread) ---------------------------------------------------------

    def _persist_later(self, order: _Order) -> None:
        if self._persister is None:
            self._persister = threading.Thread(
                target=self._persist_loop, name="surefoot-persist", daemon=True
            )
            self._persister.start()
        self._orders.put(order)

    def _persist_loop(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                order.copied.wait()
                saved = self._guarded(self._persist, order)
            except BaseException as error:  # whatever it was, the handle's owner gets it
                self._note_failure(order, error)
            else:
                self.failures, self.last_durable = 0, saved
                order.handle.settle(saved)

    def _persist(self, order: _Order) -> Saved:
        if order.torn:
            raise CheckpointError(
                f"step {order.handle.step} was not saved: {order.torn} was written to before"
                " barrier() let it",
                hint="call barrier() before optimizer.step(), or use guard(optimizer)",
            )
        storage = self.storage
        if not isinstance(storage, LocalStorage) or self._arena is None:
            raise NotBuiltError("saving to object stores is not built yet")
        self._attempt += 1
        folder = folder_name(order.handle.step, self._commits.writer, self._attempt)
        try:
            path = storage.make_folder(folder)
            memory = memoryview(self._arena.memory)[: order.plan.total_bytes]
            file = write_file(path / "rank-00000.bin", memory)
            memory.release()
            storage.put(f"{folder}/{fmt.NAME}", fmt.encode(self._manifest_of(order, file)))
            live = Live(folder, order.handle.step, order.kind)
            self._commits.commit(live)
        except BaseException:
            storage.delete_folder(folder)
            raise
        self._retain(folder)
        persist_s = time.monotonic() - order.started_s
        return Saved(
            order.handle.step, folder, order.plan.total_bytes, order.handle.stall_s, persist_s
        )

    def _manifest_of(self, order: _Order, file: fmt.File) -> Manifest:
        return Manifest(
            step=order.handle.step,
            generation=self._commits.generation,
            writer=self._commits.writer,
            world=self.world,
            created_unix_ms=time.time_ns() // 1_000_000,
            files=(file,),
            tensors=order.plan.entries,
            tree=order.tree,
            metadata=order.metadata,
        )

    def _retain(self, newest: str) -> None:
        """Delete what retention lets go, and what earlier writers left half done."""
        state = self._commits.state
        gone = to_drop(state.live.values(), self.keep, corrupt=self._corrupt, protect={newest})
        self._commits.drop(gone)
        for folder in gone:
            self.storage.delete_folder(folder)
        for folder in self.storage.folders():
            parsed = parse_folder(folder)
            if parsed is None or folder in state.live or parsed[1] not in state.writers:
                continue
            self.storage.delete_folder(folder)

    def _note_failure(self, order: _Order, error: BaseException) -> None:
        self.failures += 1
        if isinstance(error, FencedError):
            self._fenced = error
        order.handle.fail(error)
        warnings.warn(f"the save of step {order.handle.step} failed: {error}", stacklevel=2)

    def _guarded(self, act: Any, *args: Any) -> Any:
        try:
            return act(*args)
        except OSError as error:
            raise typed(error, error.filename or self.storage.url) from error

    def _settle_all(self) -> list[SaveHandle]:
        self.barrier()
        handles, self._in_flight = self._in_flight, []
        for handle in handles:
            handle._settled.wait()
        return handles

    def _stop(self) -> None:
        if self._persister is not None:
            self._orders.put(None)
            self._persister.join()
            self._persister = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self._settle_all()
        self._stop()


def _copy_beside(arena: Arena, pairs: list[Pair], order: _Order) -> None:
    try:
        copy_in(arena, pairs)
        for (slot, tensor), (_, version) in zip(pairs, order.versions):
            if _version(tensor) != version:
                order.torn = f"state[{slot.name}]"
    except BaseException as error:
        order.torn = f"the copy failed ({error!r}) and the state"
    finally:
        order.copied.set()


def _version(tensor: torch.Tensor) -> int:
    """Return the counter that every in-place write raises; 0 for inference tensors."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _owned(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    for state in optimizer.state.values():
        owned += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return owned


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"metadata must be plain JSON: {error}") from error
    return copy
