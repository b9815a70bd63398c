"""What a second terminal can see and do while a run goes on: status, logs, events, stop."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.cli import main as cli

SUREFOOT = [sys.executable, "-c", "from surefoot.cli.main import run; run()"]
WORKER = Path(__file__).with_name("train_worker.py")
MARKET = """\
duration: 600s
pools:
  - {pool: local/east/east-a/p3.2xlarge, supply: 1, spot: 1, on_demand: 3, notice: 6s, boot: 1s}
"""
JOB = f"""\
name: watched
num_nodes: 1
resources: {{infra: local}}
run: echo 'hello from the script'; RIG_LOG=$SUREFOOT_VM_DIR/steps.jsonl {sys.executable} {WORKER}
envs: {{RIG_TOTAL: 100000, OMP_NUM_THREADS: 1}}
steps: 100000
local: {{trace: market.yaml, vms: process, pace: 60}}
out: out
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    folder = tmp_path / "a [folder] with 'odd' names"
    folder.mkdir()
    (folder / "market.yaml").write_text(MARKET)
    (folder / "job.yaml").write_text(JOB)
    process = subprocess.Popen(
        [*SUREFOOT, "run", "job.yaml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    yield folder, process
    if process.poll() is None:
        process.terminate()
        process.wait(30)


@pytest.mark.timeout(150)
def test_another_terminal_sees_a_run_and_stops_it(
    running: tuple[Path, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, process = running
    monkeypatch.chdir(folder)

    def told(*arguments: str, code: int = 0) -> str:
        assert cli.main(arguments) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    assert process.stdout is not None
    for line in process.stdout:
        if "1 VM trains" in line:
            break
    time.sleep(2)
    status = json.loads(told("status", "--json"))
    assert status["state"] == "under way" and status["step"] > 0

    assert "| hello from the script" in told("logs", "out")
    (name,) = json.loads(told("logs", "out", "--agent", "--json"))
    assert "| hello from the script" in told("logs", "out", name)
    assert name in told("logs", "out", "nobody", code=2)

    (row,) = told("events", "--json", "--kind", "GroupFormed").splitlines()
    assert json.loads(row)["body"]["generation"] == 1
    assert "1 VM trains from step 0" in told("events")

    why = json.loads(told("interval", "--json"))
    assert why["interval_s"] > 0 and [row["formula"] for row in why["formulas"]][-1] == "surefoot"

    changed = JOB.replace("num_nodes: 1", "num_nodes: 1\nthroughput: {ceiling: 3}")
    (folder / "job.yaml").write_text(changed.replace("OMP_NUM_THREADS: 1", "OMP_NUM_THREADS: 2"))
    refused = told("run", "job.yaml", code=2)
    assert f"is led by process {process.pid}" in refused
    assert "throughput.ceiling was 1 and is 3: needs a restart" in refused
    assert "envs.OMP_NUM_THREADS has changed: needs a restart" in refused

    assert json.loads(told("stop", "--json"))["state"] == "stopped"
    assert process.wait(30) == 143
    assert "stopping: 1 VMs run at $1.0000 an hour" in process.stdout.read()
    assert "run stopped" in told("events", "-f"), "a run that is over is not waited for"
    assert "nothing leads it" in told("stop")
