"""Agents' passes: good for one VM and a time, renewed on the line, and the secret stays home."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.controller.clock import RealClock
from surefoot.controller.hub import Hub
from surefoot.controller.passes import LIFE_MS, Passes, life_for
from surefoot.core.wire import Beat, Hello, encode

PASSES = Passes("the-run's-own-secret", 2_000)
NOW = 1_800_000_000_000


def test_a_pass_is_good_for_its_vm_until_it_ends() -> None:
    word = PASSES.issue("run-1", NOW)
    assert word == PASSES.issue("run-1", NOW), "a launch tried again has the same user data"
    assert PASSES.admits("run-1", word, NOW) and PASSES.admits("run-1", word, NOW + 1_999)
    assert not PASSES.admits("run-1", word, NOW + 2_000)
    assert not PASSES.admits("run-2", word, NOW)
    assert not Passes("another-secret", 2_000).admits("run-1", word, NOW)
    assert PASSES.secret not in word + repr(PASSES)
    assert life_for(30) == LIFE_MS and life_for(3_600) == 4 * LIFE_MS


@given(token=st.text(), word=st.text(), cut=st.integers(0, 70), put=st.sampled_from("0fA.\n-"))
def test_nothing_else_lets_anybody_in(token: str, word: str, cut: int, put: str) -> None:
    assert not PASSES.admits(token, word, 0)
    good = PASSES.issue("run-1", NOW)
    changed = good[:cut] + put + good[cut + 1 :]
    assert PASSES.admits("run-1", changed, NOW) is (changed == good)


def greet(hub: Hub, token: str, word: str) -> tuple[socket.socket, Any]:
    sock = socket.create_connection(("127.0.0.1", hub.port), timeout=10)
    sock.sendall(encode(Hello(token, word, "127.0.0.2")))
    return sock, sock.makefile("rb")


@pytest.mark.parametrize("word", ["", PASSES.secret, PASSES.issue("vm-2", NOW * 2), "ff.x", "é.ö"])
def test_the_hub_lets_nobody_in_without_a_pass_of_its_own(word: str) -> None:
    hub = Hub(socket.create_server(("127.0.0.1", 0)), PASSES.secret, RealClock(), passes=PASSES)
    try:
        sock, lines = greet(hub, "vm-1", word)
        assert lines.readline() == b""
        assert not hub.connected()
        sock.close()
    finally:
        hub.close()


def test_the_hub_renews_passes_before_they_end_and_takes_the_new_one() -> None:
    clock = RealClock()
    sock = socket.create_server(("127.0.0.1", 0))
    hub = Hub(sock, PASSES.secret, clock, silence_ms=5_000, passes=PASSES)
    try:
        first = PASSES.issue("vm-1", clock.now_ms())
        sock, lines = greet(hub, "vm-1", first)
        words = []
        until_s = time.monotonic() + 30
        while len(words) < 3 and time.monotonic() < until_s:
            sock.sendall(encode(Beat()))
            words.append(json.loads(lines.readline())["word"])
        sock.close()
        assert len(set(words)) == 3
        while PASSES.admits("vm-1", first, clock.now_ms()):
            time.sleep(0.05)
        for word, told in ((first, False), (PASSES.issue("vm-1", clock.now_ms()), True)):
            again, lines = greet(hub, "vm-1", word)
            assert bool(lines.readline()) is told
            again.close()
    finally:
        hub.close()
