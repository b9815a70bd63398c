"""The TCP end of the `Agents` port: one thread that hears all agents and relays to them."""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
from collections import deque
from dataclasses import dataclass, field

from surefoot.controller.agents import Said, Silent
from surefoot.controller.clock import Clock
from surefoot.controller.passes import Passes
from surefoot.core.wire import Beat, Generation, Hello, Message, Pass, StoreUp, decode, encode

SILENCE_MS = 1_500
"""A cut of half a second costs TCP about as much again (its time-outs double): no loss yet."""
LINE_LIMIT = 1 << 20
"""A longer line is no message of ours: the connection is closed."""

OUTBOUND_LIMIT = 1 << 22
"""An agent that leaves this much unread is stuck: the connection is closed."""

FAREWELL_S = 0.5
"""How long `close` waits for last messages to leave."""


@dataclass(slots=True, eq=False)
class _Line:
    """One agent's connection; `token` is empty before a valid Hello."""

    sock: socket.socket
    heard_ms: int
    token: str = ""
    address: str = ""
    inbound: bytearray = field(default_factory=bytearray)
    outbound: bytearray = field(default_factory=bytearray)
    generation: int = 0
    """Newest generation that was sent on this connection."""
    renew_ms: int = 0
    """When it gets a new pass."""


class Hub:
    """Listens for agents on `sock` (bound and listening) and implements `Agents`.

    An agent must begin with a Hello that carries `secret`, or with `passes` its own pass, which
    is renewed while it is connected. One that is not heard for
    `silence_ms` by receipt, or whose connection closes, is reported once as `Silent`. StoreUp
    of a generation goes on to its other members at once, without the controller's help.
    """

    def __init__(
        self,
        sock: socket.socket,
        secret: str,
        clock: Clock,
        *,
        silence_ms: int = SILENCE_MS,
        greeting: tuple[Message, ...] = (),
        passes: Passes | None = None,
    ) -> None:
        self._listener = sock
        self._secret = secret.encode()
        self._passes = passes
        self._greeting = b"".join(encode(message) for message in greeting)
        """What every agent is told first, once its Hello was good."""
        self._clock = clock
        self._silence_ms = silence_ms
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._strangers: set[_Line] = set()
        self._inbox: deque[Said | Silent] = deque()
        self._news = threading.Event()
        self._stores: dict[int, tuple[str, StoreUp]] = {}
        self._members: dict[int, frozenset[str]] = {}
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._near, self._far = socket.socketpair()
        for each in (self._near, self._far, sock):
            each.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, None)
        self._selector.register(self._far, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="surefoot-hub", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port on which agents are heard."""
        return int(self._listener.getsockname()[1])

    def poll(self) -> list[Said | Silent]:
        """Return what arrived since the last call, in order of receipt."""
        self._news.clear()
        found: list[Said | Silent] = []
        while True:
            try:
                found.append(self._inbox.popleft())
            except IndexError:
                return found

    def send(self, token: str, message: Message) -> bool:
        """Hand a message to one agent; False when it is not connected."""
        with self._lock:
            line = self._lines.get(token)
            if line is None:
                return False
            line.outbound += encode(message)
            if isinstance(message, Generation):
                self._announced(line, message)
        self._poke()
        return True

    def connected(self) -> frozenset[str]:
        """Return the tokens of the agents that are heard."""
        with self._lock:
            return frozenset(self._lines)

    def address(self, token: str) -> str | None:
        """Return where the VM's peers reach it, as its agent said."""
        with self._lock:
            line = self._lines.get(token)
            return line.address if line else None

    def wait(self, timeout_s: float) -> None:
        """Block until something arrived, `wake` was called, or the time is over."""
        self._news.wait(timeout_s)

    def wake(self) -> None:
        """Let a blocked `wait` return at once."""
        self._news.set()

    def close(self) -> None:
        """Close all connections and the listener; agents keep their VMs until their lease ends."""
        self._closing = True
        self._poke()
        self._thread.join(timeout=5)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe will wake the thread as well
            self._near.send(b".")

    def _announced(self, line: _Line, message: Generation) -> None:
        """Note who is in the generation; pass on a StoreUp that came before its turn."""
        line.generation = message.number
        self._members[message.number] = frozenset(message.tokens)
        for old in sorted(self._members)[:-8]:
            self._members.pop(old)
            self._stores.pop(old, None)
        known = self._stores.get(message.number)
        if known and known[0] != line.token and line.token in self._members[message.number]:
            line.outbound += encode(known[1])

    # -- the hub's own thread ------------------------------------------------------------------

    def _serve(self) -> None:
        looked_ms = self._clock.monotonic_ms()
        while not self._closing:
            ready = self._selector.select(timeout=self._silence_ms / 5_000)
            now_ms = self._clock.monotonic_ms()
            late = now_ms - looked_ms > self._silence_ms // 2
            looked_ms = now_ms
            for key, mask in ready:
                self._attend(key, mask, now_ms)
            if late:
                self._forgive(now_ms)
            self._drop_silent(now_ms)
            self._renew(now_ms)
            self._flush_all(now_ms)
        self._shut()

    def _attend(self, key: selectors.SelectorKey, mask: int, now_ms: int) -> None:
        if key.fileobj is self._far:
            with contextlib.suppress(BlockingIOError):
                self._far.recv(4096)
        elif key.fileobj is self._listener:
            self._accept(now_ms)
        elif mask & selectors.EVENT_READ:
            self._read(key.data, now_ms)

    def _accept(self, now_ms: int) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = _Line(sock, now_ms)
            self._strangers.add(line)
            self._selector.register(sock, selectors.EVENT_READ, line)

    def _read(self, line: _Line, now_ms: int) -> None:
        if line.sock.fileno() < 0:
            return  # dropped earlier in this round
        try:
            data = line.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(line, f"connection lost: {error}", now_ms)
            return
        if not data:
            self._drop(line, "connection closed", now_ms)
            return
        line.heard_ms = now_ms
        line.inbound += data
        self._take_lines(line, now_ms)

    def _take_lines(self, line: _Line, now_ms: int) -> None:
        *whole, rest = line.inbound.split(b"\n")
        line.inbound = bytearray(rest)
        if len(rest) > LINE_LIMIT:
            self._drop(line, "a line without end", now_ms)
            return
        for each in whole:
            try:
                message = decode(bytes(each))
            except (ValueError, RecursionError):
                self._drop(line, "not our protocol", now_ms)
                return
            if message is not None and not self._take(line, message, now_ms):
                return

    def _take(self, line: _Line, message: Message, now_ms: int) -> bool:
        """Take in one message; False when the connection was closed over it."""
        if not line.token:
            return self._greet(line, message, now_ms)
        if isinstance(message, Beat | Hello):
            return True
        if isinstance(message, StoreUp):
            self._relay(line.token, message)
        self._put(Said(line.token, message, now_ms))
        return True

    def _greet(self, line: _Line, message: Message, now_ms: int) -> bool:
        if not isinstance(message, Hello) or not message.token or not self._admits(message):
            self._drop(line, "wrong secret", now_ms)
            return False
        with self._lock:
            former = self._lines.pop(message.token, None)
            self._strangers.discard(line)
            line.token, line.address = message.token, message.address
            line.outbound += self._greeting
            self._lines[line.token] = line
        if former is not None:  # the agent came back before its old connection was missed
            self._close_line(former)
        self._put(Said(line.token, message, now_ms))
        return True

    def _admits(self, hello: Hello) -> bool:
        word, token = str(hello.secret), str(hello.token)
        if self._passes is None:
            return hmac.compare_digest(word.encode(), self._secret)
        return self._passes.admits(token, word, self._clock.now_ms())

    def _renew(self, now_ms: int) -> None:
        """Hand new passes to agents whose pass has lived half of its life."""
        if self._passes is None:
            return
        with self._lock:
            for line in self._lines.values():
                if line.renew_ms <= now_ms:
                    line.renew_ms = now_ms + self._passes.life_ms // 2
                    word = self._passes.issue(line.token, self._clock.now_ms())
                    line.outbound += encode(Pass(word))

    def _relay(self, sender: str, message: StoreUp) -> None:
        with self._lock:
            self._stores[message.generation] = (sender, message)
            for token in self._members.get(message.generation, ()):
                line = self._lines.get(token)
                if line is None or token == sender or line.generation != message.generation:
                    continue  # who has not heard of the generation yet gets both in order
                line.outbound += encode(message)

    def _put(self, news: Said | Silent) -> None:
        self._inbox.append(news)
        self._news.set()

    def _forgive(self, now_ms: int) -> None:
        """After a pause of our own nobody else is to blame: begin to count anew."""
        with self._lock:
            for line in self._lines.values():
                line.heard_ms = now_ms

    def _drop_silent(self, now_ms: int) -> None:
        with self._lock:
            lines = [*self._lines.values(), *self._strangers]
        for line in lines:
            quiet_ms = now_ms - line.heard_ms
            if quiet_ms > self._silence_ms:
                self._drop(line, f"not heard for {quiet_ms} ms", now_ms)

    def _drop(self, line: _Line, reason: str, now_ms: int) -> None:
        with self._lock:
            self._strangers.discard(line)
            was_there = self._lines.get(line.token) is line
            if was_there:
                del self._lines[line.token]
        self._close_line(line)
        if was_there:
            self._put(Silent(line.token, reason, now_ms))

    def _close_line(self, line: _Line) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.sock)
        line.sock.close()

    def _flush_all(self, now_ms: int) -> None:
        with self._lock:
            lines = list(self._lines.values())
        for line in lines:
            problem = self._flush(line)
            if problem:
                self._drop(line, problem, now_ms)

    def _flush(self, line: _Line) -> str:
        """Send what waits; return why the connection is to be closed, or nothing."""
        with self._lock:
            if not line.outbound:
                return ""
            try:
                del line.outbound[: line.sock.send(line.outbound)]
            except BlockingIOError:
                pass
            except OSError as error:
                return f"connection lost: {error}"
            left = len(line.outbound)
        if left > OUTBOUND_LIMIT:
            return "it does not read what it is sent"
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
        self._selector.modify(line.sock, interest, line)
        return ""

    def _shut(self) -> None:
        until_ms = self._clock.monotonic_ms() + round(FAREWELL_S * 1000)
        while self._clock.monotonic_ms() < until_ms:
            self._flush_all(self._clock.monotonic_ms())
            with self._lock:
                waiting = [line for line in self._lines.values() if line.outbound]
            if not waiting:
                break
            self._selector.select(timeout=0.02)
        for line in [*self._lines.values(), *self._strangers]:
            self._close_line(line)
        self._lines.clear()
        for each in (self._listener, self._near, self._far):
            each.close()
        self._selector.close()
