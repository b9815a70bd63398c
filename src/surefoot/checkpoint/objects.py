"""Checkpoints in an object store (S3, GCS, Azure), through obstore and its credentials.

A data file is stored as numbered parts of 64 MiB, each a plain put: several fly at once, a retry
costs one part, and a killed upload leaves only objects that a listing shows and a sweep deletes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions as obx
from obstore.store import from_url

from surefoot.checkpoint.checksum import crc32c
from surefoot.checkpoint.gate import Ready
from surefoot.checkpoint.manifest import CHUNK_BYTES, File, part_name
from surefoot.errors import AuthError, CheckpointError, ConfigError, ThrottledError

PART_BYTES = 64 << 20
_AT_ONCE = 6
_RETRY = {
    "max_retries": 12,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {
        "init_backoff": timedelta(milliseconds=200),
        "max_backoff": timedelta(seconds=20),
        "base": 2,
    },
}
_BUSY = re.compile(r"\b(503|429)\b|SlowDown|TooManyRequests", re.IGNORECASE)
_EXPIRED = re.compile(r"ExpiredToken|InvalidToken|credential", re.IGNORECASE)


class ObjectStorage:
    """One prefix of a bucket. `store`: an obstore store of that prefix, for tests."""

    def __init__(self, url: str, *, store: Any = None) -> None:
        self._url = url.rstrip("/")
        self._requests = 0
        self._count = threading.Lock()
        try:
            self._store = store or from_url(self._url, retry_config=_RETRY)
        except (obx.BaseError, ValueError) as error:
            raise ConfigError(f"{url} is not a checkpoint URL: {_short(error)}") from error

    @property
    def url(self) -> str:
        """The URL as the user gave it."""
        return self._url

    @property
    def requests(self) -> int:
        """Requests sent, without those that the client repeats and further pages of a listing."""
        return self._requests

    def folders(self) -> list[str]:
        """Return the names of the prefixes directly under the root."""
        with self._typed("list"):
            found = obstore.list_with_delimiter(self._store)
        return [prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in found["common_prefixes"]]

    def names(self, folder: str) -> list[str]:
        """Return the names directly in `folder`."""
        return list(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the objects directly in `folder` with their lengths."""
        with self._typed(folder):
            found = obstore.list_with_delimiter(self._store, folder)
        objects = {item["path"]: int(item["size"]) for item in found["objects"]}
        objects.pop(folder, None)  # some stores list an emptied folder as an object
        return {path.rsplit("/", 1)[-1]: n_bytes for path, n_bytes in objects.items()}

    def read(self, key: str) -> bytes:
        """Return a whole object; raises FileNotFoundError."""
        with self._typed(key):
            return bytes(obstore.get(self._store, key).bytes())

    def source(self, key: str) -> ObjectSource:
        """Open an object for reading."""
        return ObjectSource(self, key)

    def create(self, key: str, data: bytes) -> bool:
        """Put an object that must not exist yet; returns False if it does."""
        try:
            with self._typed(key):
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write or replace an object."""
        with self._typed(key):
            obstore.put(self._store, key, data, use_multipart=False)

    def delete(self, key: str) -> None:
        """Delete one object; no error if it is gone."""
        try:
            with self._typed(key):
                obstore.delete(self._store, key)
        except FileNotFoundError:
            return

    def delete_folder(self, folder: str) -> None:
        """Delete all objects of a folder, the manifest first."""
        names = sorted(self.names(folder), key=lambda name: name != "manifest.json")
        for name in names:
            self.delete(f"{folder}/{name}")

    def write_data(
        self, folder: str, name: str, memory: memoryview, ready: Ready | None = None
    ) -> File:
        """Put `memory` as numbered parts, several at once, checksummed on the way."""
        count = max(1, -(-len(memory) // PART_BYTES))

        def put(number: int) -> list[int]:
            part = memory[number * PART_BYTES : (number + 1) * PART_BYTES]
            if ready is not None:
                ready(number * PART_BYTES + len(part))
            steps = range(0, len(part), CHUNK_BYTES)
            crcs = [crc32c(part[at : at + CHUNK_BYTES]) for at in steps]
            key = f"{folder}/{part_name(name, number)}"
            with self._typed(key):
                obstore.put(self._store, key, bytes(part), use_multipart=False)
            return crcs

        with ThreadPoolExecutor(min(_AT_ONCE, count)) as pool:
            crcs = [crc for part in pool.map(put, range(count)) for crc in part]
        return File(name, len(memory), tuple(crcs), PART_BYTES)

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        """Return bytes [start, start + length) of an object, fewer at its end."""
        with self._typed(key):
            return memoryview(obstore.get_range(self._store, key, start=start, length=length))

    @contextmanager
    def _typed(self, key: str) -> Iterator[None]:
        what = f"{self._url}/{key}"
        with self._count:
            self._requests += 1
        try:
            yield
        except FileNotFoundError:
            raise
        except obx.AlreadyExistsError as error:
            raise FileExistsError(what) from error
        except obx.PreconditionError as error:
            raise FileExistsError(what) from error
        except (obx.PermissionDeniedError, obx.UnauthenticatedError) as error:
            hint = "check or renew the credentials of the checkpoint bucket"
            raise AuthError(f"{what}: {_short(error)}", hint=hint) from error
        except obx.BaseError as error:
            raise _other(what, error) from error


class ObjectSource:
    """One object, read by ranges from several threads."""

    def __init__(self, storage: ObjectStorage, key: str) -> None:
        self._storage, self._key = storage, key

    def read(self, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset`; returns the bytes read."""
        data = self._storage.read_range(self._key, offset, len(into))
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Nothing is held open."""


def _other(what: str, error: Exception) -> Exception:
    text = _short(error)
    if _BUSY.search(str(error)):
        return ThrottledError(f"{what}: the store asked us to slow down: {text}")
    if _EXPIRED.search(str(error)):
        return AuthError(f"{what}: {text}", hint="renew the credentials of the checkpoint bucket")
    return CheckpointError(f"{what}: {text}")


def _short(error: Exception) -> str:
    return str(error).split("\n\nDebug source")[0][:400]
