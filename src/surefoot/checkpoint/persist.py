"""From bytes in memory to a committed checkpoint: data, manifest, commit, retention, in this order.

Runs in the writer process (or in a thread of the trainer), and imports no torch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.commit import Commits, Live, folder_name, parse_folder, read_log
from surefoot.checkpoint.gate import Gate
from surefoot.checkpoint.gather import Meeting, MovedError, reason
from surefoot.checkpoint.retention import Keep, to_drop
from surefoot.checkpoint.storage import Storage, check_sizes, open_storage, typed
from surefoot.errors import FencedError, SurefootError


class Reader(Protocol):
    """The part of a catalog that pruning needs."""

    storage: Storage

    def candidates(self) -> list[Live]:
        """Return the checkpoints, newest first."""
        ...

    def is_whole(self, live: Live) -> bool:
        """Whether manifest and file sizes are right."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """One checkpoint to make: all but the bytes, as plain JSON values."""

    step: int
    kind: str
    n_bytes: int
    world: int
    tensors: Mapping[str, Any]
    tree: Mapping[str, Any]
    metadata: Mapping[str, Any]
    score: float | None = None


@dataclass(slots=True)
class Persister:
    """The writing end of one checkpoint path; used from one thread."""

    url: str
    keep: Keep
    storage: Storage = field(init=False)
    commits: Commits = field(init=False)
    corrupt: set[str] = field(default_factory=set)
    attempt: int = 1

    def __post_init__(self) -> None:
        self.storage = open_storage(self.url)
        self.commits = Commits(self.storage)

    def claim(self, generation: int) -> None:
        """Take charge of the path; raises FencedError if a newer generation has it."""
        with typed_errors(self.storage.url):
            self.commits.claim(generation)

    def go_on(self, writer: str, generation: int, attempt: int) -> None:
        """Be the writer who claimed the path elsewhere; raises FencedError if fenced since."""
        self.attempt = attempt
        if self.commits.writer != writer:
            with typed_errors(self.storage.url):
                self.commits.resume(writer, generation)

    def persist(self, order: Order, memory: memoryview, gate: Gate | None = None) -> str:
        """Write and commit; returns the folder. Whatever fails, the last good one stays.

        With `gate` the memory may still be filled meanwhile; nothing is committed before it is
        whole. Raises NoSpaceError, AuthError, FencedError or CheckpointError, and then leaves no
        trace.
        """
        with typed_errors(self.storage.url):
            folder = folder_name(order.step, self.commits.writer, self.attempt)
            try:
                self._write(folder, order, memory, gate)
                self.commits.commit(Live(folder, order.step, order.kind, order.score))
            except FencedError:
                self._clear(folder)
                raise
            except OSError:
                self._raise_if_fenced()  # whoever took over has swept our half-done folder
                raise
            return folder

    def persist_part(
        self, order: Order, rank: int, meeting: Meeting, write: Callable[[str], fmt.File]
    ) -> str:
        """Make this rank's part of a checkpoint of several ranks; rank 0 commits it.

        `write(folder)` puts this rank's data file. Returns when the whole is committed; raises
        on every rank, naming the rank that failed, when it is not.
        """
        while True:
            with typed_errors(self.storage.url), contextlib.suppress(MovedError):
                folder = meeting.find_folder()
                self._put_part(folder, order, rank, meeting, write)
                if rank == 0:
                    self._commit_parts(folder, order, meeting)
                else:
                    meeting.wait_for_end(folder)
                return folder

    def _put_part(
        self,
        folder: str,
        order: Order,
        rank: int,
        meeting: Meeting,
        write: Callable[[str], fmt.File],
    ) -> None:
        try:
            meeting.put_part(folder, rank, write(folder), order.tensors)
        except BaseException as error:
            with contextlib.suppress(OSError, SurefootError):
                nothing = fmt.File(data_name(rank), 0, ())
                meeting.put_part(folder, rank, nothing, {}, reason(error))
            if rank == 0:
                self._give_up(folder, error)
            raise

    def _commit_parts(self, folder: str, order: Order, meeting: Meeting) -> None:
        try:
            files, tensors = meeting.gather(folder)
            body = self._manifest(replace(order, tensors=tensors), files)
            raw = fmt.seal(body)
            check_sizes(self.storage, folder, fmt.decode(raw))
            self.storage.put(f"{folder}/{fmt.NAME}", raw)
            self.commits.commit(Live(folder, order.step, order.kind, order.score))
        except BaseException as error:
            self._give_up(folder, error)
            raise

    def _give_up(self, folder: str, error: BaseException) -> None:
        with contextlib.suppress(OSError, SurefootError):
            self.commits.void(folder, reason(error))
        self._clear(folder)

    def _raise_if_fenced(self) -> None:
        try:
            self.commits.check()
        except OSError:
            return  # the store is in trouble: the first error says it better

    def _write(self, folder: str, order: Order, memory: memoryview, gate: Gate | None) -> None:
        storage = self.storage
        try:
            if gate is None:
                file = storage.write_data(folder, data_name(0), memory)
            else:
                file = storage.write_data(folder, data_name(0), memory, gate.ready)
                gate.whole()
            storage.put(f"{folder}/{fmt.NAME}", fmt.seal(self._manifest(order, [file])))
        except BaseException:
            self._clear(folder)
            raise

    def _clear(self, folder: str) -> None:
        """Remove a void attempt; what stays is swept by a later save."""
        with contextlib.suppress(OSError, SurefootError):
            self.storage.delete_folder(folder)

    def _manifest(self, order: Order, files: list[fmt.File]) -> dict[str, Any]:
        return {
            "format": fmt.FORMAT,
            "version": fmt.VERSION,
            "step": order.step,
            "generation": self.commits.generation,
            "writer": self.commits.writer,
            "world": order.world,
            "created_unix_ms": time.time_ns() // 1_000_000,
            "chunk_bytes": fmt.CHUNK_BYTES,
            "files": [fmt.file_json(file) for file in files],
            "tensors": order.tensors,
            "tree": order.tree,
            "metadata": order.metadata,
        }

    def tidy(self, newest: str) -> None:
        """Prune and sweep after `newest` is durable; trouble here fails no save."""
        try:
            self.commits.compact_if_due()
            live = self.commits.state.live
            lost = live.keys() - set(self.storage.folders())
            bad = self.corrupt | lost
            gone = to_drop(live.values(), self.keep, corrupt=bad, protect={newest})
            self.commits.drop(gone)
            for folder in gone:
                self.storage.delete_folder(folder)
            self._sweep()
        except (OSError, SurefootError):
            return  # tried again, or said, at the next save

    def _sweep(self) -> None:
        """Delete what earlier writers of this path left half done, and what they had dropped.

        A folder of a writer that this log never knew was copied here: it is left alone.
        """
        state = self.commits.state
        newest = max((live.step for live in state.live.values()), default=-1)
        for folder in self.storage.folders():
            parsed = parse_folder(folder)
            if parsed is None or folder in state.live or parsed[1] not in state.writers:
                continue
            whole = fmt.NAME in self.storage.names(folder)
            if not whole or parsed[0] <= newest:
                self.storage.delete_folder(folder)


def prune(catalog: Reader, keep: int, *, act: bool) -> list[str]:
    """Return the folders beyond the newest `keep` whole ones, deleting them if `act`.

    Copied checkpoints that no log names count and go too: whoever calls this means it. Takes
    charge of the path, so a job that still saves there is fenced.
    """
    found = catalog.candidates()
    bad = {live.folder for live in found if not catalog.is_whole(live)}
    gone = to_drop(found, keep, corrupt=bad)
    if act and gone:
        with typed_errors(catalog.storage.url):
            commits = Commits(catalog.storage)
            commits.claim(max(0, read_log(catalog.storage).generation))
            commits.drop([folder for folder in gone if folder in commits.state.live])
            for folder in gone:
                catalog.storage.delete_folder(folder)
    return gone


def data_name(rank: int) -> str:
    """Return the name of a rank's data file."""
    return f"rank-{rank:05d}.bin"


class typed_errors:
    """Turns operating-system errors inside a `with` into errors that say what to do."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise typed(error, error.filename or self._url) from error
