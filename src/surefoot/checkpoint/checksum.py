"""The one checksum of the format: CRC-32C (Castagnoli), written as eight hexadecimal digits."""

from __future__ import annotations

import mmap

import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview | mmap.mmap


def crc32c(data: Buffer, before: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `before`; releases the GIL for large data."""
    return int(_crc32c.crc32c(data, before))


def as_hex(value: int) -> str:
    """Return a checksum as the manifest spells it."""
    return f"{value:08x}"
