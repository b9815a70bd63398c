"""A step in several parts: the gradient is the whole batch's, whatever fits into one forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefoot.errors import ConfigError
from surefoot.train import Session
from surefoot.train.feed import pieces_of

SAMPLES, BATCH = 103, 8


class Rows(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor([index / SAMPLES, 1.0, index % 3.0], dtype=torch.float64)


class TwoPaths(nn.Module):
    """A layer that only odd samples use, and one that nobody does."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.odd, self.never = (nn.Linear(3, 1).double() for _ in range(3))

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = self.always(x)
        if (ids % 2).all():
            out = out + self.odd(x)
        return out


def run(folder: Path, total: int, **more: Any) -> tuple[list[list[int]], dict[str, Any], list[int]]:
    torch.manual_seed(4)
    model = TwoPaths()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH)
    seen, stepped = [], []
    with Session(
        model=model, optimizer=optimizer, scheduler=schedule, dataloader=loader,
        checkpoint=folder, **more,
    ) as session:  # fmt: skip
        for step, (ids, x) in session.steps(total=total):
            (model(ids, x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
            if session.stepped:
                stepped.append(step)
                assert model.never.weight.grad is None, "nobody used it"
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            seen.append(ids.tolist())
    return seen, model.state_dict() | {"lr": torch.tensor(schedule.get_last_lr())}, stepped


def close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.allclose(one[k], other[k], rtol=1e-12, atol=0) for k in one)


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_weights_are_those_of_whole_batches(tmp_path: Path, limit: int) -> None:  # case 74
    total = 2 * -(-SAMPLES // BATCH)  # the last batch of an epoch is a short one
    _, whole, _ = run(tmp_path / "whole", total)
    seen, parts, stepped = run(tmp_path / "parts", total, micro_batch=limit)
    assert max(len(ids) for ids in seen) <= limit
    assert stepped == list(range(total)), "one update a step"
    assert not close({"w": whole["odd.weight"]}, {"w": torch.zeros(3, dtype=torch.float64)})
    if limit > 1:  # with single samples the odd path is taken, with mixed ones never
        assert close(parts, whole)


def test_stop_in_the_middle_of_a_step_repeats_all_its_parts(tmp_path: Path) -> None:  # case 74
    _, whole, _ = run(tmp_path / "whole", 13, micro_batch=3)
    _, _, first = run(tmp_path / "pieces", 6, micro_batch=3)
    torch.manual_seed(4)
    model = TwoPaths()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    with Session(
        model=model, optimizer=optimizer, scheduler=schedule, dataloader=loader,
        checkpoint=tmp_path / "pieces", micro_batch=3,
    ) as session:  # fmt: skip
        for _, (ids, x) in session.steps(total=13):
            (model(ids, x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
            break  # one part of three, then the script dies
    _, resumed, second = run(tmp_path / "pieces", 13, micro_batch=3)
    assert first + second == list(range(13))
    assert all(torch.equal(resumed[k], whole[k]) for k in whole)


def test_accumulation_follows_the_size_of_the_fleet() -> None:
    assert [pieces_of(64, world, 8) for world in (1, 2, 3, 8, 100)] == [8, 4, 3, 1, 1]
    assert pieces_of(64, 2, None) == 1


@pytest.mark.parametrize(("batch", "limit"), [(64, 0), (64, -2), (None, 4)])
def test_limit_that_means_nothing_is_refused(batch: int | None, limit: int) -> None:
    with pytest.raises(ConfigError, match="micro_batch"):
        pieces_of(batch, 2, limit)
