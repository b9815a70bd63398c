"""Who may commit, and what is committed: a log of create-only entries, one writer in charge.

The log is `log/<index>.json`, each entry sealed. A writer first appends a *claim*; it may append
only at the index right after the last entry that it has seen, so a writer that was paused while
another claimed the path finds its index taken and stops (FencedError): no clock, no lock, no race.
A claim repeats the checkpoints that are live, so that everything before the last two can go.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.storage import Storage
from surefoot.errors import CorruptError, FencedError

FOLDER = "log"
_ENTRY = re.compile(r"^(\d{10})\.json$")
_CHECKPOINT = re.compile(r"^step-(\d{12})-([0-9a-f]{8})-(\d{6})$")
_COMPACT_AFTER = 256


@dataclass(frozen=True, slots=True)
class Live:
    """A committed checkpoint: its folder, step, and what kind of save made it."""

    folder: str
    step: int
    kind: str = "periodic"
    score: float | None = None
    unix_ms: int | None = None
    """When it was committed, by the writer's clock; None in logs from before this was written."""


@dataclass(slots=True)
class LogState:
    """The fold of a log: the next free index, the newest claim, and the live checkpoints."""

    next_index: int = 1
    generation: int = -1
    writer: str = ""
    who: str = ""
    live: dict[str, Live] = field(default_factory=dict)
    writers: dict[str, None] = field(default_factory=dict)
    claims: list[int] = field(default_factory=list)
    void: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def folder_name(step: int, writer: str, attempt: int) -> str:
    """Return the folder of one attempt to save; no two attempts share one."""
    return f"step-{step:012d}-{writer}-{attempt:06d}"


def parse_folder(name: str) -> tuple[int, str, int] | None:
    """Return (step, writer, attempt) of a checkpoint folder, or None for a stranger."""
    match = _CHECKPOINT.match(name)
    return (int(match[1]), match[2], int(match[3])) if match else None


def read_log(storage: Storage) -> LogState:
    """Return the fold of the log; unreadable entries are listed and otherwise skipped."""
    state = LogState()
    indexes = sorted(int(m[1]) for name in storage.names(FOLDER) if (m := _ENTRY.match(name)))
    for index in indexes:
        _fold(state, index, _read_entry(storage, index, state))
    return state


def _read_entry(storage: Storage, index: int, state: LogState) -> Mapping[str, Any]:
    key = _key(index)
    try:
        return fmt.unseal(storage.read(key), f"{storage.url}/{key}")
    except FileNotFoundError:
        return {}  # compacted away between the listing and now
    except CorruptError as error:
        state.unreadable.append(str(error))
        return {}


def _fold(state: LogState, index: int, entry: Mapping[str, Any]) -> None:
    state.next_index = index + 1
    match entry.get("kind"):
        case "claim":
            state.generation, state.writer = int(entry["generation"]), str(entry["writer"])
            state.who = str(entry["who"])
            state.claims.append(index)
            state.writers.update(dict.fromkeys(entry["writers"]))
            state.writers[state.writer] = None
            state.live = {live["folder"]: _live(live) for live in entry["live"]}
        case "commit" if entry["writer"] == state.writer:
            state.live[entry["folder"]] = _live(entry)
        case "void" if entry["writer"] == state.writer:
            state.void[entry["folder"]] = str(entry["reason"])
        case "drop" if entry["writer"] == state.writer:
            for folder in entry["folders"]:
                state.live.pop(folder, None)
        case _:
            pass  # unreadable, or from a writer that was fenced


def _live(entry: Mapping[str, Any]) -> Live:
    when = entry.get("unix_ms")
    return Live(entry["folder"], int(entry["step"]), entry["save"], entry["score"], when)


def _live_json(live: Live) -> dict[str, Any]:
    body = {"folder": live.folder, "step": live.step, "save": live.kind, "score": live.score}
    return {**body, "unix_ms": live.unix_ms} if live.unix_ms is not None else body


def _key(index: int) -> str:
    return f"{FOLDER}/{index:010d}.json"


class Commits:
    """One writer's end of the log. Not thread-safe: the engine calls it from one thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.state = LogState()
        self.writer = ""
        self.generation = -1
        self._since_claim = 0

    def claim(self, generation: int) -> None:
        """Take charge of the path for `generation`; raises FencedError if a newer one has it."""
        self.writer, self.generation = os.urandom(4).hex(), generation
        while True:
            self.state = read_log(self._storage)
            if self.state.generation > generation:
                raise self._fenced()
            if self._append(self._claim_json()):
                break
        self._since_claim = 0
        self._compact()

    def resume(self, writer: str, generation: int) -> None:
        """Go on as a writer that claimed elsewhere; raises FencedError if it was fenced since."""
        self.writer, self.generation, self._since_claim = writer, generation, 0
        self.check()

    def commit(self, live: Live) -> None:
        """Append the commit of a complete checkpoint; raises FencedError if no longer in charge."""
        if live.unix_ms is None:
            live = replace(live, unix_ms=time.time_ns() // 1_000_000)
        self._append_or_fence({"kind": "commit", "writer": self.writer, **_live_json(live)})
        self._since_claim += 1

    def compact_if_due(self) -> None:
        """Repeat the claim every few hundred commits, so that the log stays short."""
        if self._since_claim >= _COMPACT_AFTER:
            self._append_or_fence(self._claim_json())
            self._since_claim = 0
            self._compact()

    def drop(self, folders: list[str]) -> None:
        """Append that these checkpoints are no longer live (before their files are deleted)."""
        if folders:
            self._append_or_fence({"kind": "drop", "writer": self.writer, "folders": folders})

    def void(self, folder: str, reason: str) -> None:
        """Append that an attempt of several ranks came to nothing, and why."""
        entry = {"kind": "void", "writer": self.writer, "folder": folder, "reason": reason}
        self._append_or_fence(entry)

    def check(self) -> None:
        """Raise FencedError if another writer has claimed the path since."""
        self.state = read_log(self._storage)
        if self.state.writer != self.writer:
            raise self._fenced()

    def _append_or_fence(self, entry: dict[str, Any]) -> None:
        while not self._append(entry):
            self.state = read_log(self._storage)
            if self.state.writer != self.writer:
                raise self._fenced()

    def _append(self, entry: dict[str, Any]) -> bool:
        index = self.state.next_index
        sealed = fmt.seal(entry)
        if not self._storage.create(_key(index), sealed) and not self._is_there(index, sealed):
            return False
        _fold(self.state, index, entry)
        return True

    def _is_there(self, index: int, sealed: bytes) -> bool:
        """Whether our own entry got there although its acknowledgement was lost."""
        try:
            return self._storage.read(_key(index)) == sealed
        except FileNotFoundError:
            return False

    def _claim_json(self) -> dict[str, Any]:
        live = [_live_json(item) for item in self.state.live.values()]
        return {
            "kind": "claim",
            "generation": self.generation,
            "writer": self.writer,
            "who": f"process {os.getpid()} on {socket.gethostname()}",
            "writers": list(self.state.writers)[-_COMPACT_AFTER:],
            "live": live,
        }

    def _compact(self) -> None:
        if len(self.state.claims) < 3:
            return
        keep_from = self.state.claims[-2]
        for name in self._storage.names(FOLDER):
            match = _ENTRY.match(name)
            if match and int(match[1]) < keep_from:
                self._storage.delete(f"{FOLDER}/{name}")
        self.state.claims = self.state.claims[-2:]

    def _fenced(self) -> FencedError:
        return FencedError(
            f"{self._storage.url}: {self.state.who or 'another writer'} took over"
            f" with generation {self.state.generation} (ours is {self.generation})",
            hint="stop this process; the newer one goes on from the newest checkpoint",
        )
