"""The second tier: what is drained, what wins on load, and what a kill in the middle leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from surefoot.checkpoint import Checkpointer
from surefoot.checkpoint.commit import read_log
from surefoot.checkpoint.drain import Drain, DrainTarget, target_from
from surefoot.checkpoint.storage import LocalStorage
from surefoot.errors import CheckpointError, ConfigError, CorruptError, FencedError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

_KILLED = """
import sys
from surefoot.checkpoint.drain import Drain, DrainTarget
from surefoot.checkpoint.storage import LocalStorage
real = LocalStorage.put
def put(self, key, data):
    if key.endswith("manifest.json"):
        print("in the middle", flush=True)
        sys.stdin.read()
    real(self, key, data)
LocalStorage.put = put
Drain(sys.argv[1], DrainTarget(sys.argv[2]), 3).copy_newest()
"""


def saved(path: Path, *steps: int, drain_to: Path | None = None, generation: int = 0) -> None:
    with Checkpointer(
        path, writer="thread", drain_to=drain_to, generation=generation
    ) as checkpointer:
        for step in steps:
            checkpointer.save(step, {"w": torch.full((5000,), step)}, blocking=True)


def drain(source: Path, target: Path, generation: int = 0) -> Drain:
    made = Drain(str(source), DrainTarget(str(target)), 3)
    made._generation = generation
    return made


def loaded(path: Path, second: Path) -> tuple[int, int]:
    with Checkpointer(path, read_only=True, drain_to=second) as checkpointer:
        step, state, _ = checkpointer.load()
        return step, int(state["w"][0])


def test_closing_drains_and_a_lost_local_tier_is_loaded_from_the_second(tmp_path: Path) -> None:
    """CASES.md 63: a copy in another tier is a whole checkpoint by itself."""
    near, far = tmp_path / "near", tmp_path / "far"
    saved(near, 1, 2, drain_to=far)
    with Checkpointer(far, read_only=True) as alone:
        assert alone.steps() == [2] and alone.verify(2).step == 2
    shutil.rmtree(near)
    assert loaded(near, far) == (2, 2)
    saved(near, 3, drain_to=far, generation=1)
    assert loaded(near, far) == (3, 3)


def test_the_thread_drains_at_its_interval(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    with Checkpointer(near, writer="thread", drain_to=far, drain_every_s=0.05) as checkpointer:
        checkpointer.save(4, {"w": torch.ones(10)}, blocking=True)
        assert checkpointer.drain is not None
        until_s = time.monotonic() + 60
        while checkpointer.drain.figures.step != 4 and time.monotonic() < until_s:
            time.sleep(0.02)
        figures = checkpointer.drain.figures
    assert (figures.step, figures.copies, figures.failures) == (4, 1, 0)
    assert figures.n_bytes > 0 and figures.requests == 0


def test_the_newer_step_wins_and_a_damaged_near_copy_gives_way(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    saved(near, 1, 2)
    assert drain(near, far).copy_newest() == 2
    folder = read_log(LocalStorage(near)).live
    data = next(near / name / "rank-00000.bin" for name, live in folder.items() if live.step == 2)
    raw = bytearray(data.read_bytes())
    raw[7] ^= 1
    data.write_bytes(raw)
    assert loaded(near, far) == (2, 2)
    saved(near, 3)
    assert loaded(near, far) == (3, 3)


def test_damage_in_the_source_is_never_drained(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    saved(near, 1)
    assert drain(near, far).copy_newest() == 1
    saved(near, 2)
    data = next(near.glob("step-000000000002-*/rank-00000.bin"))
    raw = bytearray(data.read_bytes())
    raw[7] ^= 1
    data.write_bytes(raw)
    with pytest.raises(CorruptError, match="not drained"):
        drain(near, far).copy_newest()
    assert [path.name[:17] for path in far.glob("step-*")] == ["step-000000000001"]


def test_a_kill_in_mid_drain_leaves_the_last_good_one_and_is_swept(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    saved(near, 1)
    assert drain(near, far).copy_newest() == 1
    saved(near, 2)
    command = [sys.executable, "-c", _KILLED, str(near), str(far)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None and killed.stdout.readline() == b"in the middle\n"
        os.kill(killed.pid, signal.SIGKILL)
    assert len(list(far.glob("step-*"))) == 2
    with Checkpointer(far, read_only=True) as alone:
        assert alone.load()[0] == 1
    assert drain(near, far, generation=1).copy_newest() == 2
    assert len(list(far.glob("step-*"))) == 2
    assert all((folder / "manifest.json").exists() for folder in far.glob("step-*"))


def test_an_older_generation_does_not_drain_over_a_newer_one(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    saved(near, 1)
    older = drain(near, far, generation=1)
    assert older.copy_newest() == 1
    saved(near, 2)
    assert drain(near, far, generation=2).copy_newest() == 2
    saved(near, 3)
    older._figures = Drain(str(near), DrainTarget(str(far)), 3).figures
    with pytest.raises(FencedError):
        older.copy_newest()
    assert loaded(tmp_path / "none", far) == (2, 2)


def test_training_goes_on_when_the_second_tier_is_out_of_reach(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    far.write_text("a file, not a folder")
    checkpointer = Checkpointer(near, writer="thread", drain_to=far)
    checkpointer.save(1, {"w": torch.ones(5)}, blocking=True)
    checkpointer.close()
    assert checkpointer.drain is not None
    assert checkpointer.drain.figures.failures == 1 and checkpointer.drain.figures.error
    with Checkpointer(near, read_only=True) as alone:
        assert alone.load()[0] == 1


def test_what_cannot_be_drained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only a folder"):
        Drain("s3://bucket/x", DrainTarget(str(tmp_path)), 3)
    with pytest.raises(ConfigError, match="to itself"):
        Drain(str(tmp_path), DrainTarget(str(tmp_path)), 3)
    with pytest.raises(ConfigError, match="above 0"):
        Drain(str(tmp_path), DrainTarget(str(tmp_path / "far"), 0.0), 3)
    with pytest.raises(CheckpointError), Checkpointer(tmp_path / "a", read_only=True) as empty:
        empty.load()


def test_the_environment_names_the_second_tier() -> None:
    assert target_from({}) is None
    env = {"SUREFOOT_DRAIN_TO": "s3://bucket/x", "SUREFOOT_DRAIN_EVERY_S": "30"}
    assert target_from(env) == DrainTarget("s3://bucket/x", 30.0)
