"""Putting one arena's bytes into a file: piece by piece, checksummed on the way, then fsync."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from surefoot.checkpoint.checksum import crc32c
from surefoot.checkpoint.gate import Ready
from surefoot.checkpoint.manifest import CHUNK_BYTES, File

PAGE_BYTES = 4096
_PIECE_BYTES = 4 * CHUNK_BYTES
_THREADS = 2
_PREALLOCATE_FROM_BYTES = 1 << 20
_NOT_THERE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def write_file(path: Path, memory: memoryview, ready: Ready | None = None) -> File:
    """Write `memory` (a whole number of pages) to the new file `path` and make it durable.

    `ready(n)` returns when the first n bytes are there, if they are still being copied.

    Uses O_DIRECT where the file system takes it, so that neither the page cache nor a copy is
    paid for. Raises OSError as the system gave it.
    """
    fd = _open_new(path)
    try:
        if len(memory) >= _PREALLOCATE_FROM_BYTES:
            _preallocate(fd, len(memory))
        crcs = _write_pieces(fd, memory, ready or _all_there)
        os.fsync(fd)
    finally:
        os.close(fd)
    return File(path.name, len(memory), tuple(crcs))


def _all_there(n_bytes: int) -> None:
    """Nothing is being copied: every byte is there."""


def _write_pieces(fd: int, memory: memoryview, ready: Ready) -> list[int]:
    """Write all pieces from two threads: while one waits for the device the other checksums."""
    starts = iter(range(0, len(memory), _PIECE_BYTES))
    if len(memory) <= _PIECE_BYTES:
        return list(itertools.chain.from_iterable(_piece(fd, memory, s, ready) for s in starts))
    work = _Pieces(fd, memory, starts, ready)
    threads = [threading.Thread(target=work.run, daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if work.error is not None:
        raise work.error
    return list(itertools.chain.from_iterable(work.crcs[start] for start in sorted(work.crcs)))


class _Pieces:
    """Pieces still to write, taken one by one by several threads; stops at the first error."""

    def __init__(self, fd: int, memory: memoryview, starts: Iterator[int], ready: Ready) -> None:
        self._fd, self._memory, self._starts, self._ready = fd, memory, starts, ready
        self._lock = threading.Lock()
        self.crcs: dict[int, list[int]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        """Write pieces until none is left or one failed."""
        while self.error is None:
            with self._lock:
                start = next(self._starts, None)
            if start is None:
                return
            try:
                self.crcs[start] = _piece(self._fd, self._memory, start, self._ready)
            except BaseException as error:
                self.error = error


def _piece(fd: int, memory: memoryview, start: int, ready: Ready) -> list[int]:
    piece = memory[start : start + _PIECE_BYTES]
    ready(start + len(piece))
    steps = range(0, len(piece), CHUNK_BYTES)
    crcs = [crc32c(piece[at : at + CHUNK_BYTES]) for at in steps]
    _write_at(fd, piece, start)
    return crcs


def _open_new(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    path.unlink(missing_ok=True)
    return os.open(path, flags, 0o666)


def _preallocate(fd: int, n_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, n_bytes)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        try:
            n = os.pwrite(fd, data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not _give_up_direct(fd):
                raise
            continue
        if n < len(data):
            n -= n % PAGE_BYTES  # direct I/O goes on at a page; the next write names the error
        data, offset = data[n:], offset + n


def _give_up_direct(fd: int) -> bool:
    """Go on through the page cache where a file system took O_DIRECT and then refuses it."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        return False
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return True
