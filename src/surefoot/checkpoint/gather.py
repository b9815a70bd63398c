"""How several ranks make one checkpoint: each its file and part, the coordinator the commit.

Ranks meet in the checkpoint path alone, never in the training's process group: all know the
folder's name from the log (the writer in charge) and from counting their saves, and all learn the
end from the log too (a commit, or the reason why the attempt is void).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.checkpoint import manifest as fmt
from surefoot.checkpoint.commit import LogState, folder_name, read_log
from surefoot.checkpoint.storage import Storage
from surefoot.errors import CheckpointError, CorruptError, FencedError, SurefootError

_POLL_S = (0.005, 0.25)
_PART = re.compile(r"^rank-(\d{5})\.json$")


class MovedError(Exception):
    """The coordinator of this generation claimed anew: the attempt has another folder."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """One attempt of `world` ranks to save a step in a generation; `abort` ends all waiting."""

    storage: Storage
    step: int
    generation: int
    attempt: int
    world: int
    timeout_s: float
    abort: threading.Event

    def find_folder(self) -> str:
        """Return the attempt's folder, once the coordinator has taken charge of the path."""
        for log in self._watch("the coordinator to take charge"):
            if log.generation > self.generation:
                raise FencedError(f"{self.storage.url}: generation {log.generation} took over")
            if log.generation == self.generation:
                return folder_name(self.step, log.writer, self.attempt)
        raise AssertionError

    def put_part(
        self, folder: str, rank: int, file: fmt.File, tensors: Mapping[str, Any], error: str = ""
    ) -> None:
        """Say that this rank's data is durable, or why it is not."""
        body = {
            "rank": rank,
            "attempt": self.attempt,
            "file": fmt.file_json(file),
            "tensors": tensors,
            "error": error,
        }
        self.storage.put(f"{folder}/{part_key(rank)}", fmt.seal(body))

    def gather(self, folder: str) -> tuple[list[fmt.File], dict[str, Any]]:
        """Return all ranks' files and the merged tensors, once all parts are there and right."""
        parts: dict[int, dict[str, Any]] = {}
        for _ in self._watch(f"the parts of all {self.world} ranks", parts):
            for name in self.storage.names(folder):
                match = _PART.match(name)
                if match and int(match[1]) not in parts and int(match[1]) < self.world:
                    parts[int(match[1])] = self._part(folder, name)
            if len(parts) == self.world:
                break
        files = [fmt.file_from_json(parts[rank]["file"]) for rank in range(self.world)]
        return files, _merged([parts[rank]["tensors"] for rank in range(self.world)])

    def wait_for_end(self, folder: str) -> None:
        """Return when the coordinator has committed; raises why it has not."""
        for log in self._watch("the coordinator's commit"):
            if folder in log.live:
                return
            if folder in log.void:
                raise CheckpointError(f"the save of step {self.step} is void: {log.void[folder]}")
            if log.generation > self.generation:
                raise FencedError(f"{self.storage.url}: {log.who} took over during the save")
            if log.writer != folder.split("-")[2]:
                raise MovedError(folder)

    def _part(self, folder: str, name: str) -> dict[str, Any]:
        key = f"{folder}/{name}"
        part = fmt.unseal(self.storage.read(key), f"{self.storage.url}/{key}")
        if part["error"]:
            raise CheckpointError(f"rank {part['rank']} could not write: {part['error']}")
        if part["attempt"] != self.attempt:
            raise CorruptError(f"{self.storage.url}/{key} belongs to attempt {part['attempt']}")
        return part

    def _watch(self, what: str, parts: Mapping[int, Any] | None = None) -> Any:
        """Yield the log again and again, ever slower, until aborted or out of time."""
        deadline, pause = time.monotonic() + self.timeout_s, _POLL_S[0]
        while True:
            yield read_log(self.storage) if parts is None else LogState()
            if self.abort.wait(pause):
                raise CheckpointError(f"the save of step {self.step} was given up: new generation")
            if time.monotonic() > deadline:
                missing = sorted(set(range(self.world)) - set(parts or ()))
                who = f" (missing: ranks {missing})" if parts is not None else ""
                raise CheckpointError(
                    f"step {self.step}: waited {self.timeout_s:.0f} s for {what}{who}"
                )
            pause = min(pause * 1.5, _POLL_S[1])


def part_key(rank: int) -> str:
    """Return the name of a rank's part of the manifest."""
    return f"rank-{rank:05d}.json"


def reason(error: BaseException) -> str:
    """Return one line on why a rank failed."""
    text = str(error) if isinstance(error, SurefootError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0][:300] if text else type(error).__name__


def _merged(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all ranks' tensors by name with all their pieces; raises CheckpointError on odds."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, entry in part.items():
            known = merged.setdefault(name, {**entry, "pieces": []})
            if (known["dtype"], known["shape"]) != (entry["dtype"], entry["shape"]):
                raise CheckpointError(f"ranks disagree on dtype or shape of {name}")
            known["pieces"] = known["pieces"] + entry["pieces"]
    return merged
