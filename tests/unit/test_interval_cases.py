"""What has hurt those who tune checkpoint intervals, on a running Session."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.checkpoint import Checkpointer
from surefoot.core.wire import SetInterval, encode
from surefoot.train import Session
from surefoot.train.link import Link


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


def train(
    folder: Path, total: int, *, interval_s: float, step_s: float = 0.02, width: int = 2
) -> list[int]:
    """Run to `total`; return, by step, how many steps were saved in all by its end."""
    model = torch.nn.Linear(2, width)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
    saved: list[int] = []
    with Session(
        model=model, optimizer=optimizer, dataloader=loader, checkpoint=folder,
        save_interval_s=interval_s, keep=100,
    ) as session:  # fmt: skip
        for _, x in session.steps(total=total):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(step_s)
            assert session.checkpoint is not None
            saved.append(len(session.checkpoint.steps()))
    return saved


def steps(folder: Path) -> list[int]:
    return sorted(Checkpointer(folder, read_only=True).steps())


def test_new_interval_counts_after_a_resume_and_not_the_saved_one(tmp_path: Path) -> None:
    """Case 15: the state holds no interval that could win over what the user sets now."""
    train(tmp_path, 15, interval_s=1e9)
    assert steps(tmp_path) == [15], "the final one only"
    train(tmp_path, 60, interval_s=0.3)
    found = steps(tmp_path)
    assert len(found) >= 3 and found[0] == 15 and found[-1] == 60
    assert found[1] - 15 >= 5, "an interval's work lies before the next save"


@pytest.mark.parametrize("first", [7, 10])
def test_resume_makes_no_burst_and_no_second_save_of_the_same_step(
    tmp_path: Path, first: int
) -> None:
    """Case 16: resumed within an interval, and at a step that was just saved."""
    train(tmp_path, first, interval_s=0.2)
    before = steps(tmp_path)
    counts = train(tmp_path, first + 6, interval_s=0.5)
    assert counts[0] == len(before), "nothing was new after the first step"
    assert steps(tmp_path) == [*before, first + 6]


def test_saves_that_outlast_the_interval_never_pile_up(tmp_path: Path) -> None:
    """Case 19: the interval is over at every step, a save takes several."""
    counts = train(tmp_path, 30, interval_s=0.001, step_s=0.005, width=400_000)
    gains = [b - a for a, b in zip([0, *counts], counts, strict=False)]
    assert max(gains) <= 1, "one save in flight at a time"
    assert counts[-1] < 29, "saves were left out, not queued"
    assert steps(tmp_path)[-1] == 30


def test_nothing_is_saved_at_step_zero_and_nothing_twice(tmp_path: Path) -> None:
    """Case 20: no save before the first step, none at the end if that step has one."""
    train(tmp_path, 6, interval_s=0.001, step_s=0.15)
    found = steps(tmp_path)
    assert 0 not in found and found[-1] == 6
    folders = [p.name for p in tmp_path.iterdir() if p.name.startswith("step-")]
    assert len(folders) == len(found) == len(set(found)), folders
    train(tmp_path, 6, interval_s=0.001)
    assert steps(tmp_path) == found, "a finished run saves nothing new"


def test_change_while_running_takes_effect_at_once_and_a_bad_one_never_stops_saves() -> None:
    """Cases 13 and 15: the controller's word is taken in milliseconds, at least 1."""
    link = Link(None)
    heard: list[Any] = []
    for interval_ms in (60_000, 500, 0, -5):
        link._hear(SetInterval(interval_ms))
        heard.append(link.orders.interval_s)
    assert heard == [60.0, 0.5, 0.001, 0.001]
    assert encode(SetInterval(500))
