"""What can be known to go wrong before the first save: too little room, storage that dies."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from surefoot.checkpoint.storage import LocalStorage, Storage

_GONE_WITH_VM = ("tmpfs", "ramfs", "devtmpfs")


def problems(storage: Storage, n_bytes: int, keep: int) -> list[str]:
    """Return, in words, what will go wrong with `keep` checkpoints of `n_bytes` and one in flight.

    The write itself decides in the end: a quota may end it earlier.
    """
    if not isinstance(storage, LocalStorage):
        return []
    found = []
    place = next((p for p in (storage.root, *storage.root.parents) if p.is_dir()), Path("/"))
    held = sum(sum(storage.sizes(f).values()) for f in storage.folders() if f.startswith("step-"))
    needed, free = n_bytes * (keep + 1) - held, shutil.disk_usage(place).free
    if needed > free:
        found.append(
            f"{storage.url}: {keep} checkpoints and one in flight need {needed / 1e9:.2f} GB more,"
            f" {free / 1e9:.2f} GB are free: the disk will be full"
        )
    kind = file_system_of(place)
    if kind in _GONE_WITH_VM:
        found.append(
            f"{storage.url} is memory ({kind}): it goes with the VM, and so do checkpoints"
        )
    return found


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds `path`, empty where that is unknown."""
    best, kind = -1, ""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, where, name = line.split()[:3]
            point = Path(where.encode().decode("unicode_escape"))
            if (path == point or point in path.parents) and len(point.parts) > best:
                best, kind = len(point.parts), name
    return kind
