"""Reading a checkpoint back: every byte is checked before it counts, no code is ever run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.checksum import as_hex, crc32c
from surefoot.checkpoint.manifest import File, Manifest, Piece, TensorEntry
from surefoot.checkpoint.plan import dtype_of
from surefoot.checkpoint.storage import LocalStorage, Storage
from surefoot.errors import CheckpointError, CorruptError

_MAX_VECTOR = 512


class Source(Protocol):
    """One data file, open for reading."""

    def read_into(self, offset: int, views: list[memoryview]) -> int:
        """Fill `views` one after the other from `offset`; returns the bytes read."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class LocalSource:
    """A data file on a file system."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read_into(self, offset: int, views: list[memoryview]) -> int:
        """Read with as few calls as the system allows."""
        total = 0
        for first in range(0, len(views), _MAX_VECTOR):
            group = views[first : first + _MAX_VECTOR]
            wanted = sum(len(view) for view in group)
            got = os.preadv(self._fd, group, offset + total)
            total += got
            if got < wanted:
                break
        return total

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [offset, offset + len(view)) of a file and the memory that they go to."""

    offset: int
    view: memoryview


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """Return a folder's manifest; raises CorruptError when it is missing or damaged."""
    key = f"{folder}/{fmt.NAME}"
    try:
        return fmt.decode(storage.read(key), f"{storage.url}/{key}")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptError(
            f"{storage.url}/{folder} has no manifest: its save never ended"
        ) from error


def check_sizes(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Raise CorruptError if a data file is missing or has another length than the manifest says."""
    for file in manifest.files:
        key = f"{folder}/{file.name}"
        try:
            size = storage.size(key)
        except FileNotFoundError as error:
            raise CorruptError(f"{storage.url}/{key} is missing") from error
        if size != file.n_bytes:
            raise CorruptError(f"{storage.url}/{key} has {size} bytes, not {file.n_bytes}")


def open_source(storage: Storage, folder: str, file: File) -> Source:
    """Return a reader of one data file."""
    key = f"{folder}/{file.name}"
    if isinstance(storage, LocalStorage):
        return LocalSource(f"{storage.root}/{key}")
    raise CheckpointError(f"no reader for {storage.url}")


def read_tensors(
    storage: Storage, folder: str, manifest: Manifest, into: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return all tensors by name, read into those of `into` where dtype and shape match.

    Every chunk's checksum is compared; raises CorruptError naming file and chunk. The tensors of
    `into` are then part old, part new, and must be loaded from another checkpoint.
    """
    check_sizes(storage, folder, manifest)
    tensors, spans, boxes = {}, [[] for _ in manifest.files], []  # type: ignore[var-annotated]
    for name, entry in manifest.tensors.items():
        tensors[name] = _destination(name, entry, into)
        for piece in entry.pieces:
            target, box = _piece_target(tensors[name], entry, piece)
            spans[piece.file].append(Span(piece.offset, _bytes_of(target)))
            boxes += [(box, target)] if box is not None else []
    for number, file in enumerate(manifest.files):
        _read_file(storage, folder, manifest, file, spans[number])
    for box, target in boxes:
        box.copy_(target)
    _copy_back(tensors, into)
    return {name: into.get(name, tensor) for name, tensor in tensors.items()}


def verify_files(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Read every byte of every data file; raises CorruptError naming the first bad chunk."""
    check_sizes(storage, folder, manifest)
    for file in manifest.files:
        _read_file(storage, folder, manifest, file, [])


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
    direct = given.device.type == "cpu" and given.is_contiguous()
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


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    if tensor.numel() == 0:
        return memoryview(b"")
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _copy_back(tensors: Mapping[str, torch.Tensor], into: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors.items():
            given = into.get(name)
            if given is not None and given.data_ptr() != tensor.data_ptr():
                given.copy_(tensor)


def _read_file(
    storage: Storage, folder: str, manifest: Manifest, file: File, spans: list[Span]
) -> None:
    source = open_source(storage, folder, file)
    try:
        for number, (start, views) in enumerate(_chunks(file, manifest.chunk_bytes, spans)):
            _read_chunk(source, file, number, start, views, f"{storage.url}/{folder}/{file.name}")
    finally:
        source.close()


def _read_chunk(
    source: Source, file: File, number: int, start: int, views: list[memoryview], what: str
) -> None:
    wanted = sum(len(view) for view in views)
    try:
        got = source.read_into(start, views)
    except OSError as error:
        raise CorruptError(f"{what}: chunk {number} cannot be read: {error}") from error
    crc = 0
    for view in views:
        crc = crc32c(view, crc)
    if got != wanted or number >= len(file.crcs) or crc != file.crcs[number]:
        expected = as_hex(file.crcs[number]) if number < len(file.crcs) else "none"
        raise CorruptError(
            f"{what}: chunk {number} (bytes {start} to {start + wanted}) is damaged:"
            f" checksum {as_hex(crc)}, written {expected}"
        )


def _chunks(
    file: File, chunk_bytes: int, spans: list[Span]
) -> Iterator[tuple[int, list[memoryview]]]:
    """Yield each chunk's start and the memory for all its bytes; gaps go to scratch memory."""
    ordered = sorted((s for s in spans if len(s.view)), key=lambda s: s.offset)
    scratch = memoryview(bytearray(min(chunk_bytes, file.n_bytes)))
    index = 0
    for position in range(0, file.n_bytes, chunk_bytes):
        end = min(position + chunk_bytes, file.n_bytes)
        views: list[memoryview] = []
        at = position
        while at < end:
            span = ordered[index] if index < len(ordered) else None
            if span is None or span.offset >= end:
                views.append(scratch[at - position : end - position])
                break
            if at < span.offset:
                views.append(scratch[at - position : span.offset - position])
                at = span.offset
            stop = min(end, span.offset + len(span.view))
            if stop > at:
                views.append(span.view[at - span.offset : stop - span.offset])
                at = stop
            index += stop == span.offset + len(span.view)
        yield position, views
