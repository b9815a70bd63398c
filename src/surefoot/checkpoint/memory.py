"""How much memory can be had, as the system and the control group tell; imports no torch."""

from __future__ import annotations

import contextlib
from pathlib import Path


def available_bytes() -> int | None:
    """Return memory that can be had without swapping, or None where the system does not say."""
    found = [limit for limit in (_meminfo(), _cgroup()) if limit is not None]
    return min(found) if found else None


def _meminfo() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _cgroup() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return None if limit == "max" else int(limit) - used
    return None
