"""A plain torchrun script on VMs that are taken: CASES 82, 83, 86, 87, 88 and 90.

What a user types, on real processes: one VM (rank 0's) goes with a notice, one without a word.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.providers.local import processes

SCRIPT = Path(__file__).with_name("plain_ddp.py")
SUREFOOT = [sys.executable, "-c", "from surefoot.cli.main import run; run()"]

MARKET = """\
name: plain
duration: 300s
pools:
  - pool: local/east/east-a/p3.2xlarge
    supply: {0s: 4}
    spot: 0.97
    on_demand: 3.06
    notice: 18s
    boot: 1s
    reclaims:
      - {at: 14s, count: 1, notice: 18s}
      - {at: 28s, count: 1, notice: 0s}
"""
JOB = """\
name: plain
num_nodes: 2
resources: {infra: local}
workdir: .
setup: mkdir -p ckpt
run: |
  bash -c 'torchrun --nproc-per-node=1 train.py STEPS ckpt 0.1; exit $?'
steps: STEPS
step_time: 100ms
script: {step: '/^step (?P<step>\\d+) loss (?P<loss>\\S+)/', saved: ckpt/step-*.pt}
throughput: {floor: 2, ceiling: 2}
checkpoint: {interval: {min: 3s, max: 3s}}
local: {trace: market.yaml, vms: process}
out: out
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "job"
    place.mkdir()
    shutil.copy(SCRIPT, place / "train.py")
    (place / "market.yaml").write_text(MARKET)
    yield place
    left = processes.marked(f"{place}/")
    processes.end(left)
    assert not left, "a process outlived the run"


def run(folder: Path, job: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.yaml").write_text(job)
    return subprocess.run(
        [*SUREFOOT, "run", "job.yaml", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=225,
        check=False,
    )


@pytest.mark.timeout(240)
def test_plain_torchrun_script_outlives_a_notice_and_a_silent_loss(folder: Path) -> None:
    done = run(folder, JOB.replace("STEPS", "240"))
    assert done.returncode == 0, done.stdout + done.stderr
    end = json.loads((folder / "ckpt/end.json").read_text())
    assert end["visits"] == end["step"] == 240, "each step counts exactly once in the weights"
    figures = json.loads((folder / "out/summary.json").read_text())
    assert figures["preemptions"] == {**figures["preemptions"], "notice": 1, "silent": 1}
    assert figures["steps"] == 240
    assert figures["checkpoints"] >= 2
    assert "crash" not in done.stderr + done.stdout, "a preemption is not a failure"


@pytest.mark.timeout(240)
def test_bug_in_the_script_ends_the_run_after_its_own_budget(folder: Path) -> None:
    """CASE 114, in a script: a crash takes all VMs down, and counts once."""
    (folder / "train.py").write_text("import sys; sys.exit('no such column')\n")
    job = JOB.replace("STEPS", "240").replace("torchrun --nproc-per-node=1", "python")
    market = MARKET.partition("    reclaims")[0]
    (folder / "market.yaml").write_text(market)
    done = run(folder, job)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed 4 times" in done.stdout and "no such column" in done.stdout
