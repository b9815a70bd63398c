"""Reading a file fast whether or not the page cache has it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_CACHED_SHARE = 0.9


class LocalSource:
    """A file read from the page cache where it is there, else past it with direct I/O."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._direct = -1
        if cached_share(self._fd) < _CACHED_SHARE:
            with contextlib.suppress(OSError):
                self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(self, offset: int, into: memoryview) -> int:
        """Read; `into` must start at a page, as must `offset`, for direct I/O."""
        if self._direct >= 0:
            with contextlib.suppress(OSError):
                n = os.preadv(self._direct, [into], offset)
                if n == len(into):
                    return n
        done = 0
        while done < len(into) and (n := os.preadv(self._fd, [into[done:]], offset + done)):
            done += n
        return done

    def scatter(self, offset: int, into: list[memoryview]) -> bool:
        """Read straight to where the bytes go, whatever its alignment: from the page cache alone.

        False where the file is read past the cache, or where not all could be read.
        """
        if self._direct >= 0:
            return False
        with contextlib.suppress(OSError):
            return os.preadv(self._fd, into, offset) == sum(len(part) for part in into)
        return False

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._fd)
        if self._direct >= 0:
            os.close(self._direct)


def cached_share(fd: int) -> float:
    """Return which share of an open file's pages is in the page cache; 1 where unknown."""
    n_bytes = os.fstat(fd).st_size
    if n_bytes == 0:
        return 1.0
    pages = -(-n_bytes // mmap.PAGESIZE)
    with mmap.mmap(fd, n_bytes, flags=mmap.MAP_PRIVATE) as mapped:  # writable, to take its address
        pin = ctypes.c_char.from_buffer(mapped)
        found = (ctypes.c_ubyte * pages)()
        failed = _LIBC.mincore(ctypes.addressof(pin), n_bytes, found)
        del pin
    sample = bytes(found)[:: max(1, pages // 4096)]
    return 1.0 if failed else sum(page & 1 for page in sample) / len(sample)
