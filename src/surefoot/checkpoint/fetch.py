"""Bytes of one data file into memory: chunk by chunk, every chunk checked."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from surefoot.checkpoint.checksum import as_hex, crc32c
from surefoot.checkpoint.manifest import File
from surefoot.checkpoint.storage import Source, Storage
from surefoot.errors import CorruptError

_PAGE_BYTES = 4096
_THREADS = 3
_ALONE_BELOW_BYTES = 16 << 20
_MOST_TARGETS = 1000  # what one call of the system takes, and a little less
_LIBC = ctypes.CDLL(None)
_LIBC.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LIBC.memcpy.restype = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [offset, offset + n_bytes) of a file and the memory address that they go to."""

    offset: int
    n_bytes: int
    address: int


def open_file(storage: Storage, folder: str, file: File) -> Source:
    """Return a reader of one data file, however it is stored."""
    sources = [storage.source(f"{folder}/{name}") for name in file.stored()]
    return _Parts(sources, file.part_bytes) if file.part_bytes else sources[0]


class _Parts:
    """A data file stored as parts; no chunk crosses from one to the next."""

    def __init__(self, sources: list[Source], part_bytes: int) -> None:
        self._sources, self._part_bytes = sources, part_bytes

    def read(self, offset: int, into: memoryview) -> int:
        number, within = divmod(offset, self._part_bytes)
        return self._sources[number].read(within, into)

    def close(self) -> None:
        for source in self._sources:
            source.close()


def fetch(
    source: Source,
    file: File,
    chunk_bytes: int,
    spans: list[Span],
    what: str,
    *,
    sparse: bool = False,
) -> None:
    """Read and check the whole file, and place what `spans` ask for; the rest is only checked.

    `sparse` reads no chunk that no span touches. Raises CorruptError naming `what` and the first
    bad chunk found; the memory of the spans may then hold anything.
    """
    work = _Chunks(source, file, chunk_bytes, spans, what, sparse=sparse)
    if file.n_bytes < _ALONE_BELOW_BYTES:
        work.run()
    else:
        threads = [threading.Thread(target=work.run, daemon=True) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if work.error is not None:
        raise work.error


class _Chunks:
    """Chunks still to read, taken one by one by several threads; stops at the first error."""

    def __init__(
        self,
        source: Source,
        file: File,
        chunk_bytes: int,
        spans: list[Span],
        what: str,
        *,
        sparse: bool,
    ) -> None:
        self._source, self._file, self._chunk_bytes, self._what = source, file, chunk_bytes, what
        starts = range(0, file.n_bytes, chunk_bytes)
        touching = _by_chunk(spans, len(starts), chunk_bytes)
        todo = zip(range(len(starts)), starts, touching)
        self._todo = iter([item for item in todo if item[2] or not sparse])
        self._scatter = getattr(source, "scatter", None)
        self.error: BaseException | None = None

    def run(self) -> None:
        """Read chunks until none is left or one failed."""
        size = min(self._chunk_bytes, -(-self._file.n_bytes // _PAGE_BYTES) * _PAGE_BYTES)
        with mmap.mmap(-1, max(size, _PAGE_BYTES)) as buffer:
            pin = ctypes.c_char.from_buffer(buffer)
            address = ctypes.addressof(pin)
            with memoryview(buffer) as memory:
                for number, start, spans in self._todo:
                    if self.error is not None:
                        break
                    try:
                        self._take(number, start, spans, memory, address)
                    except BaseException as error:
                        self.error = error
            del pin

    def _take(
        self, number: int, start: int, spans: list[Span], memory: memoryview, address: int
    ) -> None:
        """Read one chunk straight to where it goes, or else to a buffer and from there."""
        wanted = min(self._chunk_bytes, self._file.n_bytes - start)
        if self._scatter is not None:
            targets = _targets(start, wanted, spans, address)
            if targets and self._scatter(start, targets):
                crc = 0
                for target in targets:
                    crc = crc32c(target, crc)
                self._check(number, start, wanted, wanted, crc)
                return
        with memory[:wanted] as part:
            try:
                got = self._source.read(start, part)
            except OSError as error:
                text = f"{self._what}: chunk {number} cannot be read: {error}"
                raise CorruptError(text) from error
            self._check(number, start, wanted, got, crc32c(part))
        _place(address, start, start + wanted, spans)

    def _check(self, number: int, start: int, wanted: int, got: int, crc: int) -> None:
        if got != wanted or crc != self._file.crcs[number]:
            raise CorruptError(
                f"{self._what}: chunk {number} (bytes {start} to {start + wanted}) is damaged:"
                f" checksum {as_hex(crc)}, written {as_hex(self._file.crcs[number])}"
            )


def _targets(start: int, n_bytes: int, spans: list[Span], spare: int) -> list[memoryview]:
    """Return the memory, in order, that a chunk's bytes go to, gaps to address `spare`.

    Empty where spans overlap or are too many for one call.
    """
    at, end, targets = start, start + n_bytes, []
    for span in sorted(spans, key=lambda span: span.offset):
        first, last = max(at, span.offset), min(end, span.offset + span.n_bytes)
        if span.offset < at and at > start:
            return []
        if first > at:
            targets.append(_memory_at(spare, first - at))
        targets.append(_memory_at(span.address + first - span.offset, last - first))
        at = last
    if at < end:
        targets.append(_memory_at(spare, end - at))
    return targets if len(targets) <= _MOST_TARGETS else []


def _memory_at(address: int, n_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * n_bytes).from_address(address)).cast("B")


def _by_chunk(spans: list[Span], count: int, chunk_bytes: int) -> Iterator[list[Span]]:
    """Yield, for each chunk, the spans that touch it."""
    touching: list[list[Span]] = [[] for _ in range(count)]
    for span in spans:
        if span.n_bytes:
            last = (span.offset + span.n_bytes - 1) // chunk_bytes
            for number in range(span.offset // chunk_bytes, last + 1):
                touching[number].append(span)
    yield from touching


def _place(address: int, start: int, end: int, spans: list[Span]) -> None:
    """Copy the part of each span that lies in bytes [start, end), found at `address`."""
    for span in spans:
        first, last = max(start, span.offset), min(end, span.offset + span.n_bytes)
        _LIBC.memcpy(span.address + first - span.offset, address + first - start, last - first)
