"""The messages between controller, agent and worker survive the wire, and newer peers."""

from __future__ import annotations

import math

import pytest

from surefoot.core import wire


@pytest.mark.parametrize(
    "message",
    [
        wire.Hello("t", "s", "127.0.0.1"),
        wire.Generation(3, ("a", "b"), ("127.0.1.1", "127.0.1.2"), lost=("127.0.1.3",)),
        wire.Stepped(5, 120, loss=1.5),
        wire.Saved(7, emergency=True, margin_ms=900),
    ],
)
def test_a_message_comes_back_as_it_was(message: wire.Message) -> None:
    line = wire.encode(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert wire.decode(line) == message


def test_every_kind_has_its_own_name() -> None:
    assert len(wire.KINDS) == len({cls.kind for cls in wire.KINDS.values()}) == 19


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_loss_is_sent_as_null(bad: float) -> None:
    assert wire.decode(wire.encode(wire.Stepped(1, 2, loss=bad))) == wire.Stepped(1, 2, loss=None)


def test_unknown_kinds_and_keys_are_ignored() -> None:
    assert wire.decode(b'{"kind":"from_the_future"}\n') is None
    assert wire.decode(b'{"kind":"beat","new_field":1}\n') == wire.Beat()


@pytest.mark.parametrize("line", [b"[]\n", b"nonsense\n", b'{"kind":"hello"}\n'])
def test_a_malformed_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(line)
