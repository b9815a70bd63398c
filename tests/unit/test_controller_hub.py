"""The hub hears agents over TCP, tells who fell silent, and relays at once."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from surefoot.controller.agents import Said, Silent
from surefoot.controller.clock import RealClock
from surefoot.controller.hub import Hub
from surefoot.core.wire import Beat, Generation, Hello, Message, Ready, SaveNow, StoreUp, encode

SECRET = "s3cret"


@dataclass
class Peer:
    sock: socket.socket
    token: str

    def say(self, message: Message) -> None:
        self.sock.sendall(encode(message))

    def hear(self) -> dict[str, object]:
        line = self.sock.makefile("rb").readline()
        return dict(json.loads(line)) if line else {}


@pytest.fixture
def hub() -> Iterator[Hub]:
    sock = socket.create_server(("127.0.0.1", 0))
    hub = Hub(sock, SECRET, RealClock(), silence_ms=1_000)
    yield hub
    hub.close()


def join(hub: Hub, token: str, *, secret: str = SECRET) -> Peer:
    sock = socket.create_connection(("127.0.0.1", hub.port), timeout=5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer = Peer(sock, token)
    peer.say(Hello(token, secret, "127.0.0.2"))
    return peer


def hear(hub: Hub, count: int = 1, timeout_s: float = 5.0) -> list[Said | Silent]:
    found: list[Said | Silent] = []
    end = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < end:
        hub.wait(0.05)
        found += hub.poll()
    return found


def test_an_agent_with_the_secret_is_heard_and_answered(hub: Hub) -> None:
    peer = join(hub, "vm-1")
    (hello,) = hear(hub)
    assert isinstance(hello, Said) and isinstance(hello.message, Hello)
    assert hub.connected() == {"vm-1"} and hub.address("vm-1") == "127.0.0.2"
    peer.say(Ready(12, 3))
    (ready,) = hear(hub)
    assert isinstance(ready, Said) and ready.message == Ready(12, 3)
    assert hub.send("vm-1", SaveNow("now", 500))
    assert peer.hear() == {"kind": "save_now", "reason": "now", "left_ms": 500}
    assert not hub.send("vm-2", SaveNow())


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b'{"kind":"beat"}\n', b"\xff\n"])
def test_who_does_not_greet_is_closed_without_a_word(hub: Hub, first: bytes) -> None:
    sock = socket.create_connection(("127.0.0.1", hub.port), timeout=5)
    sock.sendall(first)
    assert sock.recv(10) == b""
    assert hub.poll() == [] and hub.connected() == frozenset()


def test_a_wrong_secret_is_closed_and_never_heard(hub: Hub) -> None:
    peer = join(hub, "vm-1", secret="guess")
    assert peer.hear() == {}
    assert hub.poll() == [] and hub.connected() == frozenset()


def test_a_closed_connection_is_silence_at_once(hub: Hub) -> None:
    peer = join(hub, "vm-1")
    hear(hub)
    began = time.monotonic()
    peer.sock.close()
    (silent,) = hear(hub)
    assert isinstance(silent, Silent) and silent.token == "vm-1"
    assert time.monotonic() - began < 0.5
    assert hub.connected() == frozenset()


def test_an_agent_without_beats_is_silent_after_a_second_and_one_with_beats_is_not(
    hub: Hub,
) -> None:
    quiet, lively = join(hub, "quiet"), join(hub, "lively")
    hear(hub, 2)
    news: list[Said | Silent] = []
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        lively.say(Beat())
        time.sleep(0.1)
        news += hub.poll()
    assert [n.token for n in news] == ["quiet"]
    assert isinstance(news[0], Silent) and "not heard" in news[0].reason
    assert hub.connected() == {"lively"}
    assert quiet.hear() == {}


def test_an_agent_that_comes_back_replaces_its_old_connection(hub: Hub) -> None:
    old = join(hub, "vm-1")
    hear(hub)
    new = join(hub, "vm-1")
    (hello,) = hear(hub)
    assert isinstance(hello, Said)
    assert old.hear() == {}
    hub.send("vm-1", SaveNow("x"))
    assert new.hear()["reason"] == "x"
    assert hear(hub, 1, 0.3) == []


def test_a_store_goes_to_the_other_members_after_their_generation(hub: Hub) -> None:
    first, second, third = join(hub, "a"), join(hub, "b"), join(hub, "c")
    hear(hub, 3)
    order = Generation(7, ("a", "b"), ("127.0.0.1", "127.0.0.2"))
    hub.send("a", order)
    assert first.hear()["kind"] == "generation"
    first.say(StoreUp(7, "127.0.0.1", 4000))
    hear(hub)
    hub.send("b", order)  # told late: still generation first, then the store
    lines = second.sock.makefile("rb")
    kinds = [json.loads(lines.readline())["kind"] for _ in range(2)]
    assert kinds == ["generation", "store_up"]
    hub.send("c", SaveNow("only this"))
    assert third.hear()["kind"] == "save_now"


def test_a_relay_takes_milliseconds(hub: Hub) -> None:
    first, second = join(hub, "a"), join(hub, "b")
    hear(hub, 2)
    took = []
    lines = second.sock.makefile("rb")
    for number in range(1, 31):
        order = Generation(number, ("a", "b"), ("127.0.0.1", "127.0.0.2"))
        for token in ("a", "b"):
            hub.send(token, order)
        json.loads(lines.readline())
        began = time.monotonic()
        first.say(StoreUp(number, "127.0.0.1", 4000))
        assert json.loads(lines.readline())["generation"] == number
        took.append(time.monotonic() - began)
    assert sorted(took)[15] < 0.02, f"median {sorted(took)[15] * 1000:.1f} ms"


def test_a_line_without_end_is_cut_off(hub: Hub) -> None:
    peer = join(hub, "vm-1")
    hear(hub)
    chunk = b"x" * (1 << 16)
    with pytest.raises(OSError):
        for _ in range(400):
            peer.sock.sendall(chunk)
            time.sleep(0.001)
    assert any(isinstance(n, Silent) for n in hear(hub))


def test_last_words_leave_before_the_hub_closes(hub: Hub) -> None:
    peer = join(hub, "vm-1")
    hear(hub)
    hub.send("vm-1", SaveNow("last words"))
    hub.close()
    assert peer.hear()["reason"] == "last words"
