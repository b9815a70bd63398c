"""Reading a checkpoint back: every byte is checked before it counts, no code is ever run."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.fetch import Span, fetch, open_file
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
    tensors: dict[str, torch.Tensor] = {}
    spans: list[list[Span]] = [[] for _ in manifest.files]
    boxes: list[tuple[torch.Tensor, torch.Tensor]] = []
    for name, entry in manifest.tensors.items():
        tensors[name] = _destination(name, entry, into)
        for piece in entry.pieces:
            target, box = _piece_target(tensors[name], entry, piece)
            spans[piece.file].append(_span(piece, target))
            boxes += [(box, target)] if box is not None else []
    for number, file in enumerate(manifest.files):
        _fetch_file(storage, folder, manifest, file, spans[number])
    for box, target in boxes:
        box.copy_(target)
    _copy_back(tensors, into)
    return {name: into.get(name, tensor) for name, tensor in tensors.items()}


def verify_files(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Read every byte of every data file; raises CorruptError naming the first bad chunk."""
    check_sizes(storage, folder, manifest)
    for file in manifest.files:
        _fetch_file(storage, folder, manifest, file, [])


def _destination(name: str, entry: TensorEntry, into: Mapping[str, torch.Tensor]) -> torch.Tensor:
    try:
        dtype = dtype_of(entry.dtype)
    except ValueError as error:
        raise CheckpointError(f"tensor {name}: {error}") from error
    given = into.get(name)
    if given is None:
        return torch.empty(entry.shape, dtype=dtype)
    if tuple(given.shape) != entry.shape or given.dtype != dtype:
        raise CheckpointError(
            f"tensor {name} is {entry.dtype}{list(entry.shape)} in the checkpoint and"
            f" {str(given.dtype).removeprefix('torch.')}{list(given.shape)} in the given state",
            hint="build the model as it was when it was saved, or load without a state",
        )
    direct = given.device.type == "cpu" and given.is_contiguous() and not is_dtensor(given)
    return given.detach() if direct else torch.empty(entry.shape, dtype=dtype)


def _piece_target(
    tensor: torch.Tensor, entry: TensorEntry, piece: Piece
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (contiguous memory to read into, the box to copy it to afterwards or None)."""
    if piece.shape == entry.shape:
        return tensor, None
    box = tensor
    for axis, (start, length) in enumerate(zip(piece.start, piece.shape)):
        box = box.narrow(axis, start, length)
    if box.is_contiguous():
        return box, None
    return torch.empty(piece.shape, dtype=tensor.dtype), box


def _span(piece: Piece, target: torch.Tensor) -> Span:
    return Span(piece.offset, target.numel() * target.element_size(), target.data_ptr())


def _copy_back(tensors: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors.items():
            given = into.get(name)
            if given is None:
                continue
            if is_dtensor(given):
                local, start = local_box(given)
                for axis, (at, length) in enumerate(zip(start, local.shape)):
                    tensor = tensor.narrow(axis, at, length)
                local.copy_(tensor)
            elif given.data_ptr() != tensor.data_ptr():
                given.copy_(tensor)


def _fetch_file(
    storage: Storage, folder: str, manifest: Manifest, file: File, spans: list[Span]
) -> None:
    source = open_file(storage, folder, file)
    try:
        fetch(source, file, manifest.chunk_bytes, spans, f"{storage.url}/{folder}/{file.name}")
    finally:
        source.close()
