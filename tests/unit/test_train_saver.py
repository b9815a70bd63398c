"""When a save is one too many: wishes of several notices, heard at different moments."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from surefoot.checkpoint import SaveHandle
from surefoot.core.event import CheckpointFailed
from surefoot.core.wire import Saved
from surefoot.errors import FencedError
from surefoot.report.words import Tone, _checkpoint
from surefoot.train import link, saver
from surefoot.train.link import SaveWish
from surefoot.train.saver import Saver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(saver.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(link.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def made(tmp_path: Path) -> Saver:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    return Saver(
        str(tmp_path), keep=1, interval_s=10, optimizer=optimizer, report=lambda message: None
    )


def wish(clock: list[float], left_s: float | None, ago_s: float = 0.0) -> SaveWish:
    deadline_s = None if left_s is None else clock[0] + left_s
    return SaveWish(deadline_s, "notice", clock[0] - ago_s)


def test_one_save_fulfils_two_notices_of_different_deadlines(
    clock: list[float], made: Saver
) -> None:
    mine, agreed = wish(clock, 9.0, ago_s=0.4), wish(clock, 40.0)
    assert made.is_new(mine)
    made.note_begun(agreed, mine)
    for _ in range(20):
        clock[0] += 1.0
        assert not made.is_new(mine), "the same notice asked for another save"


def test_wish_whose_deadline_has_passed_is_fulfilled_by_any_save_after_it(
    clock: list[float], made: Saver
) -> None:
    late = wish(clock, -0.1, ago_s=1.0)
    assert made.is_new(late)
    made.note_begun(None)  # a save by interval
    clock[0] += 5.0
    assert not made.is_new(late)


def test_notice_heard_again_by_another_way_is_no_new_one(clock: list[float], made: Saver) -> None:
    made.note_begun(wish(clock, 20.0))
    clock[0] += 0.5
    assert not made.is_new(wish(clock, 19.2))
    assert made.is_new(wish(clock, 60.0)), "another VM's notice with more time"


def test_second_notice_after_the_save_asks_for_one_more_and_no_third(
    clock: list[float], made: Saver
) -> None:
    made.note_begun(wish(clock, 20.0))
    clock[0] += 3.0
    second = wish(clock, 30.0)
    assert made.is_new(second)
    made.note_begun(second)
    clock[0] += 1.0
    assert not made.is_new(second)
    assert not made.is_new(wish(clock, 16.2)), "the first notice, told again"


def test_wish_without_deadline_counts_unless_a_save_has_just_begun(
    clock: list[float], made: Saver
) -> None:
    made.note_begun(None)
    clock[0] += 1.0
    assert not made.is_new(wish(clock, None))
    clock[0] += 1.0
    assert made.is_new(wish(clock, None))


def test_a_save_that_the_next_group_overtakes_is_told_as_given_over_not_as_trouble(
    tmp_path: Path,
) -> None:
    told: list[Saved] = []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    leaving = Saver(str(tmp_path), keep=1, interval_s=10, optimizer=optimizer, report=told.append)
    for stays in (True, False):
        leaving.take_charge(1)
        if not stays:
            leaving.step_down()
        handle = SaveHandle(5)
        handle.fail(FencedError("generation 2 took over"))
        leaving._finish(handle, "periodic", None, 1)
    leaving.close()
    tones = [_checkpoint(CheckpointFailed(0, m.step, m.error))[0] for m in told]
    assert tones == [Tone.BAD, Tone.QUIET]
    assert "given over to the next group" in told[1].error
    assert leaving.fenced is not None  # from the first: who is in charge must stop
