"""Reading a checkpoint back: every byte is checked before it counts, no code is ever run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.fetch import Span, fetch, open_file
from surefoot.checkpoint.keeper import find
from surefoot.checkpoint.manifest import File, Manifest, Piece, TensorEntry
from surefoot.checkpoint.plan import dtype_of
from surefoot.checkpoint.shards import is_dtensor, local_box
from surefoot.checkpoint.storage import Storage, check_sizes
from surefoot.errors import CheckpointError, CorruptError


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """Return a folder's manifest; raises CorruptError when it is missing or damaged."""
    key = f"{folder}/{fmt.NAME}"
    try:
        return fmt.decode(storage.read(key), f"{storage.url}/{key}")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptError(
            f"{storage.url}/{folder} has no manifest: its save never ended"
        ) from error


def read_tensors(
    storage: Storage, folder: str, manifest: Manifest, into: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return all tensors by name, read into those of `into` where dtype and shape match.

    Every chunk's checksum is compared; raises CorruptError naming file and chunk. The tensors of
    `into` are then part old, part new, and must be loaded from another checkpoint.
    """
    check_sizes(storage, folder, manifest)
    plan = _ReadPlan(len(manifest.files))
    tensors = {
        name: plan.add(name, entry, into.get(name)) for name, entry in manifest.tensors.items()
    }
    for number, file in enumerate(manifest.files):
        if plan.spans[number] or not plan.is_partial:
            _fetch_file(
                storage,
                folder,
                manifest,
                file,
                plan.spans[number],
                sparse=plan.is_partial,
                from_memory=True,
            )
    with torch.no_grad():
        for target, source in plan.copies:
            target.copy_(source)
    return tensors


def verify_files(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Read every byte of every data file; raises CorruptError naming the first bad chunk."""
    check_sizes(storage, folder, manifest)
    for file in manifest.files:
        _fetch_file(storage, folder, manifest, file, [])


class _ReadPlan:
    """Where each byte that is read goes, by file, and what is copied on from there afterwards.

    `is_partial`: some tensor is spread over ranks, so only the ranges of this rank's parts count.
    """

    def __init__(self, n_files: int) -> None:
        self.spans: list[list[Span]] = [[] for _ in range(n_files)]
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.is_partial = False

    def add(self, name: str, entry: TensorEntry, given: torch.Tensor | None) -> torch.Tensor:
        """Plan for one tensor; returns the one that will hold it."""
        dtype = _dtype(name, entry, given)
        if given is None:
            given = torch.empty(entry.shape, dtype=dtype)
        local, start = given.detach(), (0,) * len(entry.shape)
        if is_dtensor(given):
            local, start = local_box(given)
            local, self.is_partial = local.detach(), True
        whole = local
        if local.device.type != "cpu" or not local.is_contiguous():
            whole = torch.empty(local.shape, dtype=dtype)
        for piece in entry.pieces:
            self._add_piece(piece, whole, start)
        if whole is not local:
            self.copies.append((local, whole))
        return given

    def _add_piece(self, piece: Piece, local: torch.Tensor, start: tuple[int, ...]) -> None:
        """Plan for the part of one piece that lies in `local`, whose first element is at `start`.

        What is read is whole rows of the piece; what of them is not asked for is dropped.
        """
        low = [max(a, b) for a, b in zip(piece.start, start)]
        high = [
            min(a + n, b + m) for a, n, b, m in zip(piece.start, piece.shape, start, local.shape)
        ]
        if any(a >= b for a, b in zip(low, high)):
            return
        target = local
        for axis, (a, b) in enumerate(zip(low, high)):
            target = target.narrow(axis, a - start[axis], b - a)
        rows = (high[0] - low[0], *piece.shape[1:]) if piece.shape else ()
        item = local.element_size()
        skip = (low[0] - piece.start[0]) * math.prod(piece.shape[1:]) * item if rows else 0
        source = target
        if tuple(target.shape) != rows or not target.is_contiguous():
            source = box = torch.empty(rows, dtype=local.dtype)
            for axis in range(1, len(rows)):
                at = low[axis] - piece.start[axis]
                box = box.narrow(axis, at, high[axis] - low[axis])
            self.copies.append((target, box))
        n_bytes = math.prod(rows) * item
        self.spans[piece.file].append(Span(piece.offset + skip, n_bytes, source.data_ptr()))


def _dtype(name: str, entry: TensorEntry, given: torch.Tensor | None) -> torch.dtype:
    """Return the dtype of a tensor in the checkpoint; raises CheckpointError if `given` differs."""
    try:
        dtype = dtype_of(entry.dtype)
    except ValueError as error:
        raise CheckpointError(f"tensor {name}: {error}") from error
    if given is not None and (tuple(given.shape) != entry.shape or given.dtype != dtype):
        raise CheckpointError(
            f"tensor {name} is {entry.dtype}{list(entry.shape)} in the checkpoint and"
            f" {str(given.dtype).removeprefix('torch.')}{list(given.shape)} in the given state",
            hint="build the model as it was when it was saved, or load without a state",
        )
    return dtype


def _fetch_file(
    storage: Storage,
    folder: str,
    manifest: Manifest,
    file: File,
    spans: list[Span],
    *,
    sparse: bool = False,
    from_memory: bool = False,
) -> None:
    """Read one data file, out of a keeper's memory if one has it and it is right."""
    what = f"{storage.url}/{folder}/{file.name}"
    kept = find(storage.url, folder, file.name, file.n_bytes) if from_memory else None
    if kept is not None:
        try:
            fetch(kept, file, manifest.chunk_bytes, spans, f"memory of {what}", sparse=sparse)
            return
        except CorruptError as error:
            warnings.warn(f"{error}: the file is read instead", stacklevel=2)
        finally:
            kept.close()
    source = open_file(storage, folder, file)
    try:
        fetch(source, file, manifest.chunk_bytes, spans, what, sparse=sparse)
    finally:
        source.close()
