"""Where checkpoints live: the few operations that the engine needs, and local paths."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Protocol

from surefoot.checkpoint.gate import Ready
from surefoot.checkpoint.manifest import File, Manifest
from surefoot.checkpoint.writer import write_file
from surefoot.errors import AskUserError, AuthError, CheckpointError, CorruptError, NoSpaceError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}


class Source(Protocol):
    """One data file, open for reading from several threads."""

    def read(self, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset`; returns the bytes read, fewer at the end of the file."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class Storage(Protocol):
    """Keys are relative, '/'-separated names; every write is durable when it returns."""

    @property
    def url(self) -> str:
        """The place as the user named it, for messages."""
        ...

    @property
    def requests(self) -> int:
        """Requests sent that a store may charge for; 0 for a folder."""
        ...

    def folders(self) -> list[str]:
        """Return the names of folders directly under the root (links and strangers too)."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`; empty when there is no such folder."""
        ...

    def read(self, key: str) -> bytes:
        """Return a whole object; raises FileNotFoundError."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that must not exist yet; returns False if somebody else made it first."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object as one indivisible act."""
        ...

    def delete(self, key: str) -> None:
        """Delete one object; no error if it is gone."""
        ...

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and all in it."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the objects directly in `folder` with their lengths in bytes."""
        ...

    def write_data(
        self, folder: str, name: str, memory: memoryview, ready: Ready | None = None
    ) -> File:
        """Make a new data file durable; `memory` is a whole number of pages.

        `ready(n)` returns when its first n bytes are there, if they are still being copied.
        """
        ...

    def source(self, key: str) -> Source:
        """Open a data file for reading."""
        ...


def open_storage(path: str | os.PathLike[str]) -> Storage:
    """Return the storage for a local path or a URL such as s3://bucket/prefix."""
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        from surefoot.checkpoint.objects import ObjectStorage

        return ObjectStorage(text)
    return LocalStorage(Path(text.removeprefix("file://")))


def check_sizes(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Raise CorruptError if a data file is missing or has another length than the manifest says."""
    sizes = storage.sizes(folder)
    for file in manifest.files:
        for name, n_bytes in file.stored().items():
            what = f"{storage.url}/{folder}/{name}"
            if name not in sizes:
                raise CorruptError(f"{what} is missing")
            if sizes[name] != n_bytes:
                raise CorruptError(f"{what} has {sizes[name]} bytes, not {n_bytes}")


def typed(error: OSError, what: str) -> CheckpointError | AskUserError:
    """Return the error that says what to do about an operating-system error on `what`."""
    name = errno.errorcode.get(error.errno or 0, "error")
    if error.errno in _NO_SPACE:
        free = _free_text(what)
        return NoSpaceError(
            f"{what}: no space or quota left ({name}){free}",
            hint="free space, lower `keep`, or prune: surefoot checkpoints prune PATH --keep 1",
        )
    if error.errno in _NO_RIGHT:
        return AuthError(
            f"{what}: not allowed to write ({name})",
            hint="check owner, mode and read-only mounts of the checkpoint path",
        )
    return CheckpointError(f"{what}: {name}: {error.strerror or error}")


def _free_text(what: str) -> str:
    for parent in (Path(what), *Path(what).parents):
        with contextlib.suppress(OSError):
            return f"; the file system reports {shutil.disk_usage(parent).free / 1e9:.1f} GB free"
    return ""


class LocalStorage:
    """A folder on a local or shared file system."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self.root)

    @property
    def requests(self) -> int:
        """None: a folder costs nothing a request."""
        return 0

    def folders(self) -> list[str]:
        """Return folder names under the root; links are not followed."""
        try:
            with os.scandir(self.root) as entries:
                return [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`."""
        try:
            return [entry.name for entry in (self.root / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, key: str) -> bytes:
        """Return a whole file."""
        return (self.root / key).read_bytes()

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the files directly in `folder` with their lengths."""
        try:
            found = list((self.root / folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {path.name: path.stat().st_size for path in found if path.is_file()}

    def write_data(
        self, folder: str, name: str, memory: memoryview, ready: Ready | None = None
    ) -> File:
        """Write a new data file in `folder`, which is made if it is not there."""
        with contextlib.suppress(FileExistsError):
            self._make_folder(folder)
        return write_file(self.root / folder / name, memory, ready)

    def source(self, key: str) -> Source:
        """Open a data file for reading."""
        from surefoot.checkpoint.source import LocalSource

        return LocalSource(str(self.root / key))

    def create(self, key: str, data: bytes) -> bool:
        """Write a file whole under a temporary name, then link it to `key` if that is free.

        Where there are no hard links the file itself is made exclusively; if the machine dies
        within that write the entry is unreadable, which readers skip.
        """
        target = self.root / key
        temporary = self._write_temporary(target, data)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._create_in_place(target, data)
        finally:
            temporary.unlink()
        sync_folder(target.parent)
        return True

    def _create_in_place(self, target: Path, data: bytes) -> bool:
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(target.parent)
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write a file whole under a temporary name, then rename it over `key`."""
        target = self.root / key
        temporary = self._write_temporary(target, data)
        temporary.rename(target)
        sync_folder(target.parent)

    def delete(self, key: str) -> None:
        """Delete one file."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / key).unlink()

    def delete_folder(self, folder: str) -> None:
        """Delete a folder; a half-deleted one is left without its manifest, so it cannot load."""
        target = self.root / folder
        with contextlib.suppress(FileNotFoundError):
            (target / "manifest.json").unlink()
            sync_folder(target)
        shutil.rmtree(target, ignore_errors=True)

    def _make_folder(self, folder: str) -> None:
        """Make a folder, durable in its parent; raises FileExistsError if it is there."""
        self._make_root()
        (self.root / folder).mkdir()
        sync_folder(self.root)

    def _make_root(self) -> None:
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            sync_folder(self.root.parent)

    def _write_temporary(self, target: Path, data: bytes) -> Path:
        if not target.parent.is_dir():
            self._make_root()
            target.parent.mkdir(exist_ok=True)
            sync_folder(self.root)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            write_all(fd, data)
            os.fsync(fd)
        except BaseException:
            temporary.unlink()
            raise
        finally:
            os.close(fd)
        return temporary


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of `data` at the file's position."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
