"""Lines of messages over sockets that never block: one selector, many connections."""

from __future__ import annotations

import contextlib
import errno
import random
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Callable

from surefoot.core.wire import (
    Beat,
    Formed,
    Message,
    Noticed,
    Ready,
    Stepped,
    decode,
    encode,
)

_MAX_LINE_BYTES = 1 << 20
_MAX_QUEUED = 1000
_USER_TIMEOUT_MS = 10_000
"""Unanswered bytes for this long end a connection: a vanished hub does not stay connected."""


class Lines:
    """One connection: decoded messages in, encoded ones out. `on_end` is called once."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connection: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._selector, self._socket = selector, connection
        self._on_message, self._on_end = on_message, on_end
        self._in, self._out = bytearray(), bytearray()
        self.open = True
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, self.act)

    def send(self, data: bytes) -> None:
        """Send, now as far as possible."""
        self._out += data
        self._flush()

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._out

    def act(self, events: int) -> None:
        """Do what the selector says can be done."""
        if events & selectors.EVENT_WRITE:
            self._flush()
        if self.open and events & selectors.EVENT_READ:
            self._read()

    def end(self) -> None:
        """Close."""
        if self.open:
            self.open = False
            self._selector.unregister(self._socket)
            self._socket.close()
            self._on_end()

    def _read(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            return self.end()
        self._in += data
        *whole, rest = self._in.split(b"\n")
        self._in = bytearray(rest)
        for line in whole:
            with contextlib.suppress(ValueError):
                message = decode(bytes(line))
                if message is not None:
                    self._on_message(message)
        if not data or len(self._in) > _MAX_LINE_BYTES:
            self.end()
        return None

    def _flush(self) -> None:
        if not self.open:
            return
        try:
            while self._out:
                sent = self._socket.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            return self.end()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        self._selector.modify(self._socket, wanted, self.act)
        return None


class HubLine:
    """The line to the controller's hub: dials again with back-off, keeps what must not be lost."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        hub: str,
        *,
        on_message: Callable[[Message], None],
        greet: Callable[[], list[Message]],
    ) -> None:
        host, _, port = hub.rpartition(":")
        self._where = (host, int(port))
        self._selector, self._on_message, self._greet = selector, on_message, greet
        self._dialling: socket.socket | None = None
        self._lines: Lines | None = None
        self._queue: deque[Message] = deque(maxlen=_MAX_QUEUED)
        self._delay_s = 0.1
        self._next_s = 0.0
        self.heard_s = time.monotonic()
        """When the hub was last known to be there."""

    @property
    def up(self) -> bool:
        """Whether the line stands."""
        return self._lines is not None

    @property
    def idle(self) -> bool:
        """Whether everything said has been handed to the network."""
        return self._lines is not None and self._lines.idle and not self._queue

    def send(self, message: Message) -> None:
        """Send, or keep until the line stands again; heartbeats are not kept."""
        if self._lines is not None:
            return self._lines.send(encode(message))
        if isinstance(message, Beat | Ready | Formed | Noticed):
            return None  # the greeting says what holds by then
        if isinstance(message, Stepped) and self._queue and isinstance(self._queue[-1], Stepped):
            self._queue.pop()
        self._queue.append(message)
        return None

    def turn(self) -> None:
        """Dial if it is time; note that the hub is there."""
        now_s = time.monotonic()
        if self._lines is not None:
            self.heard_s = now_s
        elif self._dialling is None and now_s >= self._next_s:
            self._dial()

    def end(self) -> None:
        """Hang up."""
        self._next_s = float("inf")
        if self._lines is not None:
            self._lines.end()

    def _dial(self) -> None:
        try:
            line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
            line.setblocking(False)
            code = line.connect_ex(self._where)
        except OSError:
            return self._again()
        if code not in (0, errno.EINPROGRESS):
            line.close()
            return self._again()
        self._dialling = line
        self._selector.register(line, selectors.EVENT_WRITE, self._dialled)
        return None

    def _dialled(self, events: int) -> None:
        line = self._dialling
        assert line is not None
        self._dialling = None
        self._selector.unregister(line)
        if line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            line.close()
            return self._again()
        self._lines = Lines(self._selector, line, self._hear, self._ended)
        kept, self._queue = list(self._queue), deque(maxlen=_MAX_QUEUED)
        for message in self._greet() + kept:
            self.send(message)
        return None

    def _hear(self, message: Message) -> None:
        self._delay_s = 0.1
        self._on_message(message)

    def _ended(self) -> None:
        self._lines = None
        self._again()

    def _again(self) -> None:
        self._next_s = max(self._next_s, time.monotonic() + self._delay_s * random.uniform(0.5, 1))
        self._delay_s = min(2.0, self._delay_s * 1.6)
