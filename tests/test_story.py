"""The README's story, told with real processes: train, be preempted, stop, go on, finish, report.

Read this first. It types what a user types, on a market of half a minute instead of three.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SUREFOOT = [sys.executable, "-c", "from surefoot.cli.main import run; run()"]

MARKET = """\
name: story
duration: 300s
pools:
  - pool: local/east/east-a/p3.2xlarge
    supply: {0s: 2, 32s: 1}
    spot: 0.97
    on_demand: 3.06
    notice: 12s
    boot: 5s
    reclaims:
      - {at: 26s, count: 1, notice: 12s}
"""
JOB = """\
name: story
num_nodes: 2
resources: {infra: local}
workdir: .
run: STEPS=$SUREFOOT_STEPS BATCH=8 python train.py
steps: 40
step_time: 500ms
throughput: {floor: 1, ceiling: 2}
policy: hybrid
checkpoint: {interval: {min: 2s, max: 20s}}
local: {trace: market.yaml, vms: process, pace: 8}
out: out
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "a job"
    place.mkdir()
    shutil.copy(ROOT / "examples/gpt/train.py", place)
    (place / "market.yaml").write_text(MARKET)
    (place / "job.yaml").write_text(JOB)
    yield place
    for pid in processes_of(place):
        os.kill(pid, signal.SIGKILL)


def processes_of(folder: Path) -> list[int]:
    """Return the processes that belong to a VM of the run in `folder`."""
    mark = f"SUREFOOT_VM_DIR={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def await_none(folder: Path, *, within_s: float = 5.0) -> list[int]:
    """Return the processes that are left after a moment of grace."""
    end = time.monotonic() + within_s
    while (left := processes_of(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def surefoot(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*SUREFOOT, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )


def run_until(folder: Path, words: str, then: signal.Signals) -> tuple[int, str]:
    """Run the job, send a signal once a line has `words`, return exit code and output."""
    process = subprocess.Popen(
        [*SUREFOOT, "run", "job.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    seen = []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        if words and words in line:
            words = ""
            process.send_signal(then)
    return process.wait(timeout=60), "".join(seen)


@pytest.mark.timeout(420)
def test_a_run_survives_preemptions_stops_cleanly_goes_on_and_finishes(folder: Path) -> None:
    code, said = run_until(folder, "was taken, as announced", signal.SIGINT)
    assert code == 130, said
    assert "NOTICE: spot VM" in said
    assert "emergency checkpoint of step" in said
    assert "stopping:" in said
    assert "go on with: surefoot run job.yaml" in said
    assert "Traceback" not in said
    assert await_none(folder) == []

    half = json.loads(surefoot(folder, "status", "out", "--json").stdout)
    assert half["state"] == "stopped"
    assert 0 < half["step"] < 40
    assert half["steps_safe"] == half["step"], "the stop ended with a checkpoint"

    whole = surefoot(folder, "run", "job.yaml", "--json")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert (
        f"was taken up again at step {half['step']}" in whole.stderr or "going on" in whole.stderr
    )
    assert await_none(folder) == []

    figures = json.loads((folder / "out" / "summary.json").read_text())
    assert json.loads(whole.stdout)["figures"] == figures
    assert figures["steps"] == 40
    assert figures["lost_steps"] == 0, "a notice and a clean stop lose nothing"
    assert figures["preemptions"]["notice"] >= 1
    assert figures["checkpoints"] >= 2
    assert figures["val_loss_after"] < figures["val_loss_before"]
    assert 0 < figures["bill_usd"] < figures["on_demand_usd_same_time"]
    assert 0 < figures["goodput"] <= 1

    html = (folder / "out" / "report.html").read_text()
    assert "<svg" in html and "preempted with notice" in html
    assert surefoot(folder, "report", "out").returncode == 0
    assert "story" in surefoot(folder, "status").stdout


def test_the_simulator_tells_the_same_story(folder: Path) -> None:
    found = surefoot(folder, "simulate", "job.yaml", "--json")
    assert found.returncode == 0, found.stderr
    body = json.loads(found.stdout)
    assert body["result"] == "done"
    assert body["steps"] == 40
    assert body["preemptions"]["notice"] >= 1
    again = surefoot(folder, "simulate", "job.yaml", "--json")
    assert again.stdout == found.stdout, "equal seeds give equal outcomes"


@pytest.mark.timeout(120)
def test_a_second_interrupt_leaves_at_once_and_no_process(folder: Path) -> None:
    process = subprocess.Popen(
        [*SUREFOOT, "run", "job.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "starts" in line:
            break
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert await_none(folder) == []
