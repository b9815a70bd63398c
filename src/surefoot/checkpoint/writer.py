"""Putting one arena's bytes into a file: chunk by chunk, checksummed on the way, then fsync."""

from __future__ import annotations

import os
from pathlib import Path

from surefoot.checkpoint.checksum import crc32c
from surefoot.checkpoint.manifest import CHUNK_BYTES, File

PAGE_BYTES = 4096
_PREALLOCATE_FROM_BYTES = 1 << 20


def write_file(path: Path, memory: memoryview) -> File:
    """Write `memory` (a whole number of pages) to the new file `path` and make it durable.

    Uses O_DIRECT where the file system takes it. Raises OSError as the system gave it.
    """
    fd = _open_new(path)
    try:
        if len(memory) >= _PREALLOCATE_FROM_BYTES:
            _preallocate(fd, len(memory))
        crcs = []
        for start in range(0, len(memory), CHUNK_BYTES):
            chunk = memory[start : start + CHUNK_BYTES]
            crcs.append(crc32c(chunk))
            _write_at(fd, chunk, start)
        os.fsync(fd)
    finally:
        os.close(fd)
    return File(path.name, len(memory), tuple(crcs))


def _open_new(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != 22:  # EINVAL: this file system has no direct I/O
            raise
    path.unlink(missing_ok=True)
    return os.open(path, flags, 0o666)


def _preallocate(fd: int, n_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, n_bytes)
    except OSError as error:
        if error.errno not in (95, 22):  # EOPNOTSUPP, EINVAL: a hint, not a need
            raise


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        n = os.pwrite(fd, data, offset)
        if n < len(data):
            n -= n % PAGE_BYTES  # direct I/O goes on at a page; the next write names the error
        data, offset = data[n:], offset + n
