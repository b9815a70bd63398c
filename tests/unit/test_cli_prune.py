"""`surefoot prune` and `surefoot ssh`: VMs left by a dead controller, and the way into a VM."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from surefoot.cli import main as cli
from surefoot.cli import outdir
from surefoot.cli.ssh import login
from surefoot.config import load_job
from surefoot.controller.clock import RealClock
from surefoot.controller.recover import this_process
from surefoot.controller.store import Store
from surefoot.core.event import Event, InstanceGone, InstanceLaunched, InstanceRequested, RunStarted
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Pool
from surefoot.errors import ConfigError
from surefoot.providers.base import LaunchRequest, Vm
from surefoot.providers.local.provider import LocalProvider
from surefoot.traces import read_trace

POOL = Pool("local", "east", "east-a", "p3.2xlarge")
MARKET = f"""\
duration: 60s
pools:
  - {{pool: {POOL}, supply: 2, spot: 0.97, on_demand: 3.06, boot: 2s, notice: 5s}}
"""
LOCAL = "resources: {infra: local}\nlocal: {trace: market.yaml}"
SSH = """\
resources: {infra: ssh}
checkpoint: {path: "file:///shared"}
ssh: {hosts: [{name: node1, user: me, port: 2022}], command: echo}"""


def run_folder(
    folder: Path, where: str, *, run: str = "run-a", events: Sequence[Event] = ()
) -> Path:
    """Write a job file and a run's folder as a dead controller leaves them."""
    (folder / "market.yaml").write_text(MARKET)
    job = folder / "job.yaml"
    job.write_text(f"name: gpt\nnum_nodes: 2\nrun: python train.py\nout: out\n{where}\n")
    card = outdir.Card(run, "gpt", 2, "hybrid", job_file=str(job), started_ms=1)
    outdir.write_card(folder / "out", card)
    store = Store(folder / "out" / outdir.JOURNAL)
    journal = store.acquire(run, "test:1", now_ms=0)
    journal.extend([RunStarted(0, run), *events])
    journal.release()
    store.close()
    return job


def left_behind(folder: Path) -> Vm:
    """Launch a local VM and go away."""
    market = read_trace(folder / "market.yaml")
    state = folder / "out" / "vms"
    provider = LocalProvider(market, state_dir=state, vms="process", agent=("sleep", "300"))
    try:
        return provider.launch(LaunchRequest("run-a-1", "run-a", POOL, Capacity.SPOT))
    finally:
        provider.close()


def test_local_vms_of_a_dead_controller_are_listed_and_ended_only_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path, LOCAL)
    vm = left_behind(tmp_path)
    assert cli.main(["prune"]) == 0  # nobody to ask: it only lists
    assert vm.instance_id in capsys.readouterr().out
    assert cli.main(["prune", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [(v["vm"], v["run"], v["usd_h"]) for v in body["vms"]] == [(vm.instance_id, "run-a", 0)]
    assert body["ended"] == []
    assert cli.main(["prune", "--json", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == [vm.instance_id]
    assert cli.main(["prune"]) == 0
    assert "no VM is left" in capsys.readouterr().out


def test_vms_of_a_living_controller_are_none_of_its_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path, LOCAL)
    left_behind(tmp_path)
    store = Store(tmp_path / "out" / outdir.JOURNAL)
    journal = store.acquire("run-a", this_process(), now_ms=RealClock().now_ms())
    assert cli.main(["prune", "--json", "--yes"]) == 0
    assert json.loads(capsys.readouterr().out) == {"vms": [], "ended": [], "trouble": []}
    journal.release()
    store.close()
    assert cli.main(["prune", "--json", "--yes"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ended"]) == 1


def test_on_aws_vms_of_unknown_runs_need_a_second_word_and_a_protected_one_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from aws_world import IMAGE, A, world_in

    monkeypatch.chdir(tmp_path)
    with world_in(tmp_path / "cloud", monkeypatch) as world:
        ours = [world.ask(f"t{i}").instance_id for i in range(3)]
        other = world.ask("o1", A, run="run-b").instance_id
        world.cloud.protect(ours[1])
        run_folder(
            tmp_path,
            "resources: {infra: aws/us-east-1, instance_type: m5.large}\n"
            'checkpoint: {path: "s3://b/c"}\n'
            f"aws: {{image: {IMAGE}, endpoint_url: {world.cloud.endpoint}}}",
        )
        assert cli.main(["prune", "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
        assert {v["vm"]: v["run_known_here"] for v in body["vms"]} == {
            **dict.fromkeys(ours, True),
            other: False,
        }
        assert {v["usd_h"] for v in body["vms"]} == {0.04} and len(world.cloud.running) == 4
        assert cli.main(["prune", "--json", "--yes"]) == 1
        body = json.loads(capsys.readouterr().out)
        assert set(body["ended"]) == {ours[0], ours[2]}
        assert any(ours[1] in line and "protected" in line for line in body["trouble"])
        assert {vm.instance_id for vm in world.cloud.running} == {ours[1], other}
        assert cli.main(["prune", "--json", "--yes", "--unknown"]) == 1
        assert json.loads(capsys.readouterr().out)["ended"] == [other]


HELD: list[Event] = [
    InstanceRequested(1, "run-a-1", POOL, Capacity.SPOT),
    InstanceLaunched(2, "run-a-1", "ssh-node1-0123456789abcdef"),
    InstanceRequested(3, "run-a-2", POOL, Capacity.SPOT),
    InstanceLaunched(4, "run-a-2", "ssh-node1-aaaaaaaaaaaaaaaa"),
    InstanceGone(5, "run-a-2", Ending.RELEASED),
]


def test_ssh_reaches_a_held_vm_as_the_job_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path, SSH, events=HELD)
    assert cli.main(["ssh", "run-a-1", "--", "nvidia-smi", "-L"]) == 0
    assert capfd.readouterr().out.split() == [
        "-p",
        "2022",
        "-l",
        "me",
        "--",
        "node1",
        "nvidia-smi",
        "-L",
    ]
    assert cli.main(["ssh", "run-a-2"]) == 2  # it is gone
    assert "it holds: run-a-1" in capfd.readouterr().err


def test_a_local_vm_has_no_door_and_says_where_its_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job(run_folder(tmp_path, LOCAL), now_ms=0)
    with pytest.raises(ConfigError, match="a process on this machine") as error:
        login(job, "run-a", "local-0001-aa", "")
    assert os.fspath(tmp_path / "out" / "vms") in error.value.hint
