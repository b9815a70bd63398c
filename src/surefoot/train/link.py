"""The worker's line to its agent: what it was told, and how it reports."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from surefoot.core.wire import (
    Generation,
    Leave,
    Message,
    Noticed,
    SaveNow,
    SetInterval,
    Stop,
    StoreUp,
    decode,
    encode,
)
from surefoot.errors import ConfigError
from surefoot.train.control import Control

AGENT_LOST_EXIT = 75
"""Exit code of a worker whose agent vanished (EX_TEMPFAIL): the VM is no longer in the run."""


@dataclass(slots=True)
class SaveWish:
    """Somebody wants a save; `deadline_s` is on this process's monotonic clock, if there is one."""

    deadline_s: float | None = None
    reason: str = ""
    asked_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds to the deadline; a negative number stands for a wish without one."""
        return -1.0 if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())


def agreed(heard: Control) -> SaveWish | None:
    """Return the wish that the ranks together made in a step, if any did."""
    if not heard.urgent:
        return None
    left_s = heard.left_s / heard.urgent
    return SaveWish(time.monotonic() + left_s if left_s >= 0 else None, "agreed")


@dataclass(slots=True)
class Orders:
    """What the worker was told and has not acted on yet; guarded by the link's condition."""

    generation: Generation | None = None
    stores: dict[int, StoreUp] = field(default_factory=dict)
    interval_s: float | None = None
    save: SaveWish | None = None
    leave: bool = False
    stop: Stop | None = None


class Link:
    """Messages to and from the agent over its unix socket; `path` None: a script on its own."""

    def __init__(self, path: str | None) -> None:
        self.orders = Orders()
        self.changed = threading.Condition()
        self.on_generation: Callable[[Generation], None] = lambda order: None
        self._out = threading.Lock()
        self._socket: socket.socket | None = None
        self._closing = False
        alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
        if path is None and os.environ.get("SUREFOOT_ENGINE") == "torchrun" and not alone:
            raise ConfigError(
                "a Session re-forms in place: started by torchrun, each process would train alone",
                hint="set engine: live in the job file, and run: python, not torchrun",
            )
        if path is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(path)

    @property
    def alone(self) -> bool:
        """Whether there is no agent."""
        return self._socket is None

    def start(self) -> None:
        """Begin to read, once `on_generation` is set."""
        if self._socket is not None:
            threading.Thread(target=self._read, name="surefoot-link", daemon=True).start()

    def send(self, message: Message) -> None:
        """Send a message; without an agent it goes nowhere."""
        if self._socket is None:
            return
        with self._out, contextlib.suppress(OSError):
            self._socket.sendall(encode(message))

    def wish_save(self, left_ms: int | None, reason: str) -> None:
        """Ask for a save at the next step boundary. Safe in a signal handler."""
        deadline_s = None if left_ms is None else time.monotonic() + left_ms / 1000
        self.orders.save = SaveWish(deadline_s, reason)

    def await_store(self, number: int, alive: Callable[[], bool]) -> StoreUp:
        """Return where rank 0 serves the store of a generation; TimeoutError when given up."""
        limit_s = time.monotonic() + 30
        with self.changed:
            while number not in self.orders.stores:
                if not alive() or time.monotonic() > limit_s:
                    raise TimeoutError(f"no store was announced for generation {number}")
                self.changed.wait(0.1)
            return self.orders.stores[number]

    def close(self) -> None:
        """Say no more."""
        self._closing = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        assert self._socket is not None
        with self._socket.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                with contextlib.suppress(ValueError):
                    self._hear(decode(line))
        if not self._closing:
            os._exit(AGENT_LOST_EXIT)  # an orphan must neither train on nor write

    def _hear(self, message: Message | None) -> None:
        if isinstance(message, Generation):
            self.on_generation(message)
        with self.changed:
            self._note(message)
            self.changed.notify_all()

    def _note(self, message: Message | None) -> None:
        orders = self.orders
        match message:
            case Generation():
                orders.generation = message
                orders.stores = {n: s for n, s in orders.stores.items() if n >= message.number}
            case StoreUp():
                orders.stores[message.generation] = message
            case SetInterval():
                orders.interval_s = max(message.interval_ms, 1) / 1000
            case SaveNow():
                self.wish_save(message.left_ms, message.reason)
            case Noticed():
                self.wish_save(message.left_ms, message.source or "notice")
            case Leave():
                orders.leave = True
            case Stop():
                orders.stop = message
            case _:
                pass
