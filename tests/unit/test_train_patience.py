"""A worker without a group says so once, and again only when nothing came of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from surefoot.core.wire import Broken, Message
from surefoot.train import elastic
from surefoot.train.elastic import Patience
from surefoot.train.link import Link


class Ear(Link):
    def __init__(self) -> None:
        super().__init__(None)
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [100.0]
    monkeypatch.setattr(elastic.time, "monotonic", lambda: now[0])
    yield now


def test_says_at_once_that_its_group_broke_and_repeats_after_three_seconds(
    clock: list[float],
) -> None:
    ear = Ear()
    patience = Patience(ear)
    patience.lost(4, 4, 10, "peer gone")
    for _ in range(40):
        clock[0] += 0.1
        patience.complain(4, 10, "peer gone")
    assert ear.sent == [Broken(4, 10, "peer gone")] * 2


def test_does_not_blame_a_generation_that_has_only_just_been_announced(
    clock: list[float],
) -> None:
    ear = Ear()
    patience = Patience(ear)
    patience.lost(4, 5, 10, "peer gone")
    clock[0] += 2.9
    patience.complain(5, 10, "slow")
    clock[0] += 2.9
    patience.complain(6, 10, "slow")
    assert ear.sent == []
    clock[0] += 3.0
    patience.complain(6, 10, "slow")
    assert ear.sent == [Broken(6, 10, "slow")]
