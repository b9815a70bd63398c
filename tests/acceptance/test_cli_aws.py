"""`surefoot run` and `plan` against AWS, played by the fake cloud whose VMs are processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot.core.market import Pool

pytest.importorskip("moto", reason="the fake AWS needs moto[server,ec2]")
pytest.importorskip("boto3", reason="the AWS provider needs boto3")

from surefoot.testing.cloud import FakeCloud, Sale
from surefoot.testing.cloud.cloud import CREDENTIALS

TYPE = "m5.large"
WORKER = Path(__file__).with_name("train_worker.py")
POOLS = [Pool("aws", "us-east-1", f"us-east-1{zone}", TYPE) for zone in "ab"]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[FakeCloud]:
    sales = {pool: Sale(4, 1_000_000, 3_000_000) for pool in POOLS}
    with FakeCloud(sales, folder=tmp_path / "cloud", vms="process") as cloud:
        yield cloud


def job(folder: Path, cloud: FakeCloud, extra: str = "") -> Path:
    path = folder / "job.yaml"
    path.write_text(f"""\
name: cli
num_nodes: 2
resources: {{infra: aws/us-east-1, instance_type: {TYPE}}}
run: RIG_LOG=$SUREFOOT_VM_DIR/steps.jsonl {sys.executable} {WORKER}
steps: 60
step_time: 100ms
envs: {{RIG_TOTAL: 60, OMP_NUM_THREADS: 1}}
checkpoint: {{path: "file://{folder}/checkpoints", interval: 2s}}
aws:
  image: ami-12c6146b
  python: {sys.executable}
  endpoint_url: {cloud.endpoint}
controller: {{address: 127.0.0.1}}
out: {folder}/out
{extra}""")
    return path


def surefoot(*arguments: str, wait_s: float = 150) -> subprocess.CompletedProcess[str]:
    code = "from surefoot.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=wait_s,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **CREDENTIALS},
    )


@pytest.mark.timeout(240)
def test_a_job_on_aws_runs_to_its_end_and_leaves_nothing(tmp_path: Path, cloud: FakeCloud) -> None:
    path = str(job(tmp_path, cloud))
    asked = surefoot("run", path)
    assert asked.returncode == 2, asked.stderr
    assert "no terminal to ask on" in asked.stderr
    assert "spot in aws/us-east-1/us-east-1a/m5.large" in asked.stdout
    assert cloud.held == []

    ran = surefoot("run", path, "--yes", "--json")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    body = json.loads(ran.stdout)
    assert body["outcome"] == "done"
    assert list((tmp_path / "checkpoints").glob("*60*")), "the last step is saved"
    assert body["figures"]["bill_usd"] > 0
    assert len(cloud.held) >= 2 and cloud.running == []


def test_plan_prices_a_job_on_aws_without_buying_anything(tmp_path: Path, cloud: FakeCloud) -> None:
    told = surefoot("plan", str(job(tmp_path, cloud)), "--json", "--futures", "4")
    assert told.returncode == 0, told.stderr
    body = json.loads(told.stdout)
    assert [row["pool"] for row in body["pools"]] == [str(pool) for pool in POOLS]
    assert body["pools"][0]["spot_usd_h"] == 1.0
    assert "no loss was ever seen" in body["source"]
    assert cloud.held == []


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("aws/us-east-1", "aws", "needs a region"),
        ("file://", "", "VMs elsewhere cannot reach"),
        ("out: ", "workdir: .\nout: ", "not copied to VMs elsewhere"),
        ("infra: aws/us-east-1", "infra: gcp/us-central1", "gcp provider is not built"),
    ],
)
def test_what_cannot_work_on_aws_is_refused_first(
    tmp_path: Path, cloud: FakeCloud, old: str, new: str, wanted: str
) -> None:
    path = job(tmp_path, cloud)
    path.write_text(path.read_text().replace(old, new))
    found = surefoot("run", str(path), "--yes")
    assert found.returncode == 2
    assert wanted in found.stderr
    assert cloud.held == [] and not (tmp_path / "out").exists()
