"""What one checkpoint holds: files with their chunk checksums, tensors with their pieces, the tree.

A manifest is one JSON object whose last member is the CRC-32C of every byte before that member's
comma, so that it can be checked without parsing it. docs/explain/checkpoint-format.md is the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from surefoot.checkpoint.checksum import as_hex, crc32c
from surefoot.errors import CheckpointError, CorruptError

FORMAT = "surefoot-checkpoint"
VERSION = 1
NAME = "manifest.json"
CHUNK_BYTES = 4 << 20
_TAIL = b',\n"crc32c": "00000000"}\n'


@dataclass(frozen=True, slots=True)
class File:
    """One data file: its length and the CRC-32C of each `chunk_bytes` of it, in order.

    With `part_bytes` it is stored as numbered parts of that length (object stores).
    """

    name: str
    n_bytes: int
    crcs: tuple[int, ...]
    part_bytes: int = 0

    def stored(self) -> dict[str, int]:
        """Return the names that it is stored under, in order, with their lengths."""
        if not self.part_bytes:
            return {self.name: self.n_bytes}
        starts = range(0, max(1, self.n_bytes), self.part_bytes)
        return {
            part_name(self.name, number): min(self.part_bytes, self.n_bytes - start)
            for number, start in enumerate(starts)
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor (`start`, `shape`, row-major) at `offset` bytes of file number `file`."""

    file: int
    offset: int
    start: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A whole tensor's dtype and shape, and the pieces that cover it."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that a reader needs; `tree` and `metadata` are plain JSON values."""

    step: int
    generation: int
    writer: str
    world: int
    created_unix_ms: int
    files: tuple[File, ...]
    tensors: Mapping[str, TensorEntry]
    tree: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    chunk_bytes: int = CHUNK_BYTES

    @property
    def n_bytes(self) -> int:
        """Bytes in all data files."""
        return sum(file.n_bytes for file in self.files)


def part_name(name: str, number: int) -> str:
    """Return the name of a part of a data file."""
    return f"{name}.{number:05d}"


def seal(body: Mapping[str, Any]) -> bytes:
    """Return `body` as JSON bytes that end with their own checksum."""
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    inner = text[:-1]
    return inner + _TAIL.replace(b"00000000", as_hex(crc32c(inner)).encode())


def unseal(raw: bytes, what: str) -> dict[str, Any]:
    """Return the body that `seal` wrote; raises CorruptError naming `what` if a bit differs."""
    inner, tail = raw[: -len(_TAIL)], raw[-len(_TAIL) :]
    expected = _TAIL.replace(b"00000000", as_hex(crc32c(inner)).encode())
    if len(raw) <= len(_TAIL) or tail != expected:
        raise CorruptError(f"{what}: its checksum does not match ({len(raw)} bytes)")
    try:
        body = json.loads(inner + b"}")
    except ValueError as error:
        raise CorruptError(f"{what}: it is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise CorruptError(f"{what}: it is not a JSON object")
    return body


def decode(raw: bytes, what: str = NAME) -> Manifest:
    """Return the manifest in `raw`; raises CorruptError, or CheckpointError for a newer version."""
    body = unseal(raw, what)
    if body.get("format") != FORMAT:
        raise CheckpointError(f"{what} is not a Surefoot manifest (format {body.get('format')!r})")
    if body.get("version") != VERSION:
        raise CheckpointError(
            f"{what} has format version {body.get('version')}; this Surefoot reads {VERSION}",
            hint="upgrade Surefoot: pip install -U surefoot",
        )
    try:
        return _checked(_from_json(body))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptError(f"{what}: a member is missing or wrong ({error!r})") from error


def file_json(file: File) -> dict[str, Any]:
    """Return one data file as the manifest spells it."""
    crcs = [as_hex(crc) for crc in file.crcs]
    body = {"name": file.name, "bytes": file.n_bytes, "crc32c": crcs}
    return {**body, "part_bytes": file.part_bytes} if file.part_bytes else body


def file_from_json(body: Mapping[str, Any]) -> File:
    """Return the file that `file_json` spelled."""
    crcs = tuple(int(crc, 16) for crc in body["crc32c"])
    return File(body["name"], int(body["bytes"]), crcs, int(body.get("part_bytes", 0)))


def tensor_json(entry: TensorEntry) -> dict[str, Any]:
    """Return one tensor as the manifest spells it."""
    pieces = [[p.file, p.offset, list(p.start), list(p.shape)] for p in entry.pieces]
    return {"dtype": entry.dtype, "shape": list(entry.shape), "pieces": pieces}


def _tensor_from_json(body: Mapping[str, Any]) -> TensorEntry:
    pieces = tuple(Piece(p[0], p[1], tuple(p[2]), tuple(p[3])) for p in body["pieces"])
    return TensorEntry(body["dtype"], tuple(body["shape"]), pieces)


def _checked(manifest: Manifest) -> Manifest:
    """Refuse what no writer of ours makes: odd file names, pieces outside files, holes."""
    for file in manifest.files:
        chunks = -(-file.n_bytes // manifest.chunk_bytes)
        if "/" in file.name or file.name in ("", ".", "..") or len(file.crcs) != chunks:
            raise ValueError(f"file {file.name!r}")
        if file.part_bytes < 0 or file.part_bytes % manifest.chunk_bytes:
            raise ValueError(f"the parts of file {file.name!r}")
    for name, entry in manifest.tensors.items():
        if sum(math.prod(p.shape) for p in entry.pieces) != math.prod(entry.shape):
            raise ValueError(f"the pieces of tensor {name!r} do not cover it")
        if any(not 0 <= p.offset <= manifest.files[p.file].n_bytes for p in entry.pieces):
            raise ValueError(f"a piece of tensor {name!r} lies outside its file")
    return manifest


def _from_json(body: Mapping[str, Any]) -> Manifest:
    return Manifest(
        step=int(body["step"]),
        generation=int(body["generation"]),
        writer=str(body["writer"]),
        world=int(body["world"]),
        created_unix_ms=int(body["created_unix_ms"]),
        files=tuple(file_from_json(f) for f in body["files"]),
        tensors={name: _tensor_from_json(t) for name, t in body["tensors"].items()},
        tree=body["tree"],
        metadata=body["metadata"],
        chunk_bytes=int(body["chunk_bytes"]),
    )
