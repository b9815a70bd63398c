"""The job's secrets inside a VM: waited for, given to the worker, and masked in what it writes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

from surefoot.core.wire import Message

NAMES = "SUREFOOT_HIDDEN"
"""The variable that names, with commas, what comes over the hub."""

MASK = b"[hidden]"
CHUNK = 1 << 16
LAST_WORDS_S = 1.0

Any_Message = TypeVar("Any_Message", bound=Message)


def names_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the job's secrets."""
    return tuple(name for name in env.get(NAMES, "").split(",") if name)


def values_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets that are known by now, the longest first."""
    known = {env[name] for name in names_of(env) if env.get(name)}
    return tuple(sorted(known, key=lambda value: (-len(value), value)))


def mask_message(message: Any_Message, values: Iterable[str]) -> Any_Message:
    """Return a message without secrets in its texts."""
    changes = {}
    for each in fields(message):
        text = getattr(message, each.name)
        if isinstance(text, str):
            hidden = text
            for value in values:
                hidden = hidden.replace(value, MASK.decode())
            if hidden != text:
                changes[each.name] = hidden
    return replace(message, **changes) if changes else message


class Masked:
    """A pipe into a log file that lets no secret through, wherever it is cut into pieces.

    `writer` is for the process; nothing is held back but what may be a secret's beginning.
    """

    def __init__(self, log: Path, values: Iterable[str]) -> None:
        self._values = [value.encode() for value in values]
        reader, self.writer = os.pipe()
        self._file: BinaryIO = log.open("ab", buffering=0)
        self._thread = threading.Thread(
            target=self._pump, args=(reader,), name="surefoot-log", daemon=True
        )
        self._thread.start()

    def started(self) -> None:
        """Leave the writing end to the process that was started with it."""
        os.close(self.writer)

    def settle(self) -> None:
        """Wait until all that was written has arrived, but not for processes left behind."""
        self._thread.join(LAST_WORDS_S)

    def _pump(self, reader: int) -> None:
        rest = b""
        with self._file, os.fdopen(reader, "rb", buffering=0) as source:
            while data := source.read(CHUNK):
                rest = self._pass(rest + data)
            with contextlib.suppress(OSError):
                self._file.write(rest)

    def _pass(self, data: bytes) -> bytes:
        """Write what can be no part of a secret; return the rest."""
        for value in self._values:
            data = data.replace(value, MASK)
        kept = self._beginning(data)
        with contextlib.suppress(OSError):  # a full disk must not stop the training
            self._file.write(data[: len(data) - kept])
        return data[len(data) - kept :]

    def _beginning(self, data: bytes) -> int:
        """Return how many of the last bytes may begin a secret."""
        longest = max(len(value) for value in self._values) - 1
        for count in range(min(longest, len(data)), 0, -1):
            if any(value.startswith(data[-count:]) for value in self._values):
                return count
        return 0


class Waiting:
    """The crew of a VM whose secrets have not come yet: nothing runs, and nothing is missed."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.alive = False

    def hear(self, message: Message) -> None:
        """Keep it for the crew that follows."""
        self.heard.append(message)

    def turn(self, now_s: float) -> None:
        """Wait."""

    def kill(self) -> None:
        """There is nothing to end."""
