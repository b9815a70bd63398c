"""`surefoot run` on a host that you already have: a real sshd on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("train_worker.py")
SSHD = "/usr/sbin/sshd"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path(SSHD).exists() or shutil.which("ssh") is None,
        reason="needs root, openssh-server and openssh-client",
    ),
]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    for name in ("host_key", "user_key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = [
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {tmp_path}/host_key",
        f"AuthorizedKeysFile {tmp_path}/user_key.pub",
        "PermitRootLogin prohibit-password",
        "StrictModes no",
        "UsePAM no",
        "PidFile none",
    ]
    (tmp_path / "sshd_config").write_text("\n".join(options) + "\n")
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")])
    yield port
    server.terminate()
    server.wait(10)


def job(folder: Path, port: int) -> Path:
    known = f"-F none -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={folder}/known"
    path = folder / "job.yaml"
    path.write_text(f"""\
name: mine
num_nodes: 1
resources: {{infra: ssh}}
run: RIG_LOG=$SUREFOOT_VM_DIR/steps.jsonl {sys.executable} {WORKER}
steps: 40
step_time: 100ms
envs: {{RIG_TOTAL: 40, OMP_NUM_THREADS: 1}}
checkpoint: {{path: "file://{folder}/checkpoints"}}
ssh:
  command: ssh {known}
  python: {sys.executable}
  hosts:
    - {{name: here, host: 127.0.0.1, user: root, port: {port}, key: {folder}/user_key,
       folder: {folder}/host, preemptible: true, usd_h: 0.5}}
controller: {{address: 127.0.0.1}}
out: {folder}/out
""")
    return path


@pytest.mark.timeout(150)
def test_a_job_runs_on_a_host_over_ssh_without_being_asked_about_money(
    tmp_path: Path, port: int
) -> None:
    code = "from surefoot.cli.main import run; run()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "run", str(job(tmp_path, port)), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    body = json.loads(ran.stdout)
    assert body["outcome"] == "done"
    assert list((tmp_path / "checkpoints").glob("*40*"))
    assert body["figures"]["bill_usd"] > 0
