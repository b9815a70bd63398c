"""A Session without an agent: a plain script that resumes where it was, bit for bit."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from surefoot.checkpoint import Checkpointer
from surefoot.errors import ConfigError, CorruptError, NotBuiltError, UserCodeError
from surefoot.train import Session

SAMPLES, BATCH = 23, 4


class Rows(torch.utils.data.Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((3,), index / SAMPLES)


def parts(workers: int = 0) -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, 40),
        "dataloader": torch.utils.data.DataLoader(
            Rows(), batch_size=BATCH, shuffle=True, num_workers=workers
        ),
    }


def train(made: dict[str, Any], session: Session, total: int) -> Iterator[list[int]]:
    for _, (ids, x) in session.steps(total=total):
        loss = (made["model"](x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        made["optimizer"].step()
        made["optimizer"].zero_grad()
        made["scheduler"].step()
        session.log(loss=loss)
        yield ids.tolist()


def run(path: Path, total: int, workers: int = 0, **more: Any) -> tuple[list[list[int]], Any]:
    made = parts(workers)
    with Session(**made, checkpoint=path, **more) as session:
        seen = list(train(made, session, total))
    return seen, {
        "model": made["model"].state_dict(),
        "optimizer": made["optimizer"].state_dict()["state"],
        "lr": made["scheduler"].get_last_lr(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_resumed_run_is_bitwise_the_unbroken_one(tmp_path: Path) -> None:  # cases 72, 73, 76
    whole, state = run(tmp_path / "whole", 40)
    pieces: list[list[int]] = []
    for total in (3, 6, 17, 18, 40):
        seen, resumed = run(tmp_path / "pieces", total)
        pieces += seen
    assert pieces == whole
    assert same(resumed, state)
    epoch = sorted(i for ids in whole[:6] for i in ids)
    assert epoch == list(range(SAMPLES))


def test_deterministic_run_resumes_bitwise_and_counts_each_step_once(tmp_path: Path) -> None:
    whole, state = run(tmp_path / "whole", 14, deterministic=True, shards=3)
    first, _ = run(tmp_path / "pieces", 5, deterministic=True, shards=3)
    second, resumed = run(tmp_path / "pieces", 14, deterministic=True, shards=3)
    assert first + second == whole
    assert same(resumed, state)
    assert len(whole) == 3 * 14, "each step comes in three parts"
    assert sorted(i for ids in whole[: 3 * 6] for i in ids) == list(range(SAMPLES))
    assert not torch.are_deterministic_algorithms_enabled(), "what was found is put back"


def run_scaled(path: Path, total: int, *, deterministic: bool) -> tuple[Any, list[float]]:
    made = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    average = torch.optim.swa_utils.AveragedModel(made["model"])
    extra, scales = {"scaler": scaler, "average": average}, []
    with Session(**made, extra=extra, checkpoint=path, deterministic=deterministic) as session:
        for _, (_, x) in session.steps(total=total):
            loss = (made["model"](x) - x.sum(1, keepdim=True)).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(made["optimizer"])
            nn.utils.clip_grad_norm_(made["model"].parameters(), 1.0)
            scaler.step(made["optimizer"])
            scaler.update()
            made["optimizer"].zero_grad()
            made["scheduler"].step()
            if session.stepped:
                average.update_parameters(made["model"])
                scales.append(scaler.get_scale())
        state = {name: part.state_dict() for name, part in (made | extra).items() if name in WHOLE}
    return state, scales


WHOLE = ("model", "scheduler", "scaler", "average")


@pytest.mark.parametrize("deterministic", [False, True])
def test_scaler_schedule_and_averaged_weights_go_on_where_they_were(
    tmp_path: Path, deterministic: bool
) -> None:  # case 76
    whole, scales = run_scaled(tmp_path / "whole", 20, deterministic=deterministic)
    _, first = run_scaled(tmp_path / "parts", 11, deterministic=deterministic)
    resumed, second = run_scaled(tmp_path / "parts", 20, deterministic=deterministic)
    assert first + second == scales and len(set(scales)) == 7, "the scale grew on the way"
    assert same(resumed, whole)


def test_running_means_are_refused_where_bits_must_not_depend_on_the_worker(
    tmp_path: Path,
) -> None:
    made = parts()
    made["model"] = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    made["optimizer"] = torch.optim.SGD(made["model"].parameters(), 0.1)
    made["scheduler"] = None
    with pytest.raises(NotBuiltError, match="running means"):
        Session(**made, checkpoint=tmp_path, deterministic=True)


def test_prefetched_batches_count_only_when_used(tmp_path: Path) -> None:  # case 72
    whole, _ = run(tmp_path / "whole", 9)
    first, _ = run(tmp_path / "pieces", 5, workers=2)
    second, _ = run(tmp_path / "pieces", 9, workers=2)
    assert first + second == whole


def test_finished_run_has_nothing_more_to_do(tmp_path: Path) -> None:
    run(tmp_path, 5)
    assert run(tmp_path, 5)[0] == []


def test_another_seed_or_batch_is_refused_before_training(tmp_path: Path) -> None:
    run(tmp_path, 3, seed=1)
    with pytest.raises(ConfigError, match="seed=1"):
        run(tmp_path, 6, seed=2)


def test_missing_part_stops_the_resume_by_name(tmp_path: Path) -> None:  # case 76
    run(tmp_path, 3)
    with pytest.raises(Exception, match="scaler"):
        run(tmp_path, 6, extra={"scaler": torch.amp.GradScaler("cpu")})


def test_only_broken_checkpoints_are_no_fresh_start(tmp_path: Path) -> None:  # case 94
    run(tmp_path, 3)
    for file in tmp_path.rglob("rank-*"):
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 0xFF
        file.write_bytes(raw)
    with pytest.raises(CorruptError), pytest.warns(UserWarning):
        run(tmp_path, 6)


def test_saves_by_interval_while_training(tmp_path: Path) -> None:
    made = parts()
    with Session(**made, checkpoint=tmp_path, save_interval_s=0.05) as session:
        for _ in train(made, session, 40):  # the first save also starts what writes: give it time
            time.sleep(0.075)
        assert session.checkpoint is not None
        assert len(session.checkpoint.steps()) >= 3


@pytest.mark.parametrize("interval_s", [0, -1, math.nan])
def test_interval_that_is_not_above_zero_is_refused(  # case 13
    tmp_path: Path, interval_s: float
) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Session(**parts(), checkpoint=tmp_path, save_interval_s=interval_s)


def test_order_that_is_not_ours_to_keep_is_refused(tmp_path: Path) -> None:
    made = parts()
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    made["dataloader"] = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, sampler=sampler)
    with pytest.raises(NotBuiltError, match="WeightedRandomSampler"):
        Session(**made, checkpoint=tmp_path)


def test_diverged_weights_never_replace_the_last_good_ones(tmp_path: Path) -> None:  # case 68
    made = parts()
    said = r"diverged: after step 7 parameter 0\.weight .* good checkpoint is: step 5$"
    with (
        pytest.raises(UserCodeError, match=said),
        Session(**made, checkpoint=tmp_path, keep=1, save_interval_s=1e9) as session,
    ):
        for step, (_, x) in session.steps(total=9):
            loss = (made["model"](x) * (math.nan if step == 5 else 1.0)).mean()
            loss.backward()
            made["optimizer"].step()
            made["optimizer"].zero_grad()
            if step in (3, 5):
                session._link.wish_save(1000 * step, "test")
    assert Checkpointer(tmp_path, read_only=True).latest() == 5


def test_notice_in_a_long_evaluation_is_acted_on_there(tmp_path: Path) -> None:  # case 84
    made = parts()
    with Session(**made, checkpoint=tmp_path) as session:
        for step, (_, x) in session.steps(total=5):
            if step == 3:
                assert not session.check_notice(), "nobody has asked"
                session._link.wish_save(9000, "test")
                assert session.check_notice() and not session.check_notice()
                session._saver.wait()
                assert session.checkpoint is not None and session.checkpoint.latest() == 3
            made["model"](x).mean().backward()
            made["optimizer"].step()
            if step == 4:
                session._link.wish_save(90_000, "test")
                assert not session.check_notice(), "weights are already those of the next step"
            made["optimizer"].zero_grad()


SCRIPT = """
import time, torch
from surefoot.train import Session
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = torch.utils.data.DataLoader(torch.randn(64, 2), batch_size=8)
with Session(model=model, optimizer=optimizer, dataloader=loader) as session:
    for step, x in session.steps(total=100_000):
        model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
        time.sleep(0.01)
        if step == 5: print("going", flush=True)
print("done", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_and_ends_without_running_what_follows_the_loop(
    tmp_path: Path, number: int
) -> None:  # case 85
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUREFOOT_")}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env={**env, "SUREFOOT_CHECKPOINT": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "going\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert out == ""
    assert any(p.name.startswith("step-") for p in tmp_path.iterdir())
