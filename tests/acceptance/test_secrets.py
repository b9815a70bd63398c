"""Planted secrets reach the training script, and nothing else: no file, log, answer or argument."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from surefoot.cli import clouds
from surefoot.cli.hidden import read_secrets
from surefoot.cli.run import _hub
from surefoot.config import load_job
from surefoot.controller.clock import RealClock
from surefoot.core.wire import Saved, Secrets, WorkerExited, decode, encode
from surefoot.errors import ConfigError
from surefoot.providers.aws.boot import user_data
from surefoot.providers.aws.settings import AwsSettings
from surefoot.train.child import Child
from surefoot.train.hidden import NAMES, mask_message

SUREFOOT = [sys.executable, "-c", "from surefoot.cli.main import run; run()"]
FIRST, SECOND = "pl4nted-" + "f" * 20, 'pl4nted-"two"-\'' + "s" * 20
MARKET = """\
duration: 600s
pools:
  - {pool: local/east/east-a/p3.2xlarge, supply: 1, spot: 1, on_demand: 3, notice: 6s, boot: 1s}
"""
JOB = """\
name: hush
num_nodes: 1
resources: {infra: local}
run: |
  printf %s "$WANDB_API_KEY" | sha256sum > $SUREFOOT_VM_DIR/../../../proof-1
  printf %s "$OTHER" | sha256sum > $SUREFOOT_VM_DIR/../../../proof-2
  echo "logging in with $WANDB_API_KEY and $OTHER"
  printf 'pl4nted-'; sleep 0.3; echo "${WANDB_API_KEY#pl4nted-} in two pieces"
  sleep 2
  echo "login with $OTHER failed" >&2
  exit 3
secrets: {WANDB_API_KEY: , OTHER: {file: other.key}}
local: {trace: market.yaml, vms: process}
out: out
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "market.yaml").write_text(MARKET)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "other.key").write_text(SECOND + "\n")
    return tmp_path


def forms(secret: str) -> list[bytes]:
    """Return how a secret might stand somewhere: plain, in JSON, in base64."""
    plain = secret.encode()
    return [plain, secret.replace('"', '\\"').encode(), base64.b64encode(plain)[:-4]]


WANTED = [form for secret in (FIRST, SECOND) for form in forms(secret)]


def arguments_of_all() -> bytes:
    """Return the arguments of every process of this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                found.append((entry / "cmdline").read_bytes())
    return b"\n".join(found)


def leaks(text: bytes) -> list[bytes]:
    return [form for form in WANTED if form in text]


@pytest.mark.timeout(150)
def test_a_planted_secret_is_found_nowhere_after_a_real_run(folder: Path) -> None:
    env = {**os.environ, "WANDB_API_KEY": FIRST}
    process = subprocess.Popen(
        [*SUREFOOT, "run", "job.yaml", "--json"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    seen_logs = False
    while process.poll() is None:
        assert not leaks(arguments_of_all())
        seen_logs |= any((folder / "out").rglob("worker.log"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    assert process.stdout is not None
    said = process.stdout.read()
    assert process.returncode == 1, said.decode()
    assert seen_logs and not leaks(said)
    for number, secret in ((1, FIRST), (2, SECOND)):
        (proof,) = [*folder.rglob(f"proof-{number}")]
        assert proof.read_text().split()[0] == hashlib.sha256(secret.encode()).hexdigest()
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert {"journal.db", "run.json", "hub.json", "report.html"} <= {path.name for path in files}
    for path in files:
        assert not leaks(path.read_bytes()), path
    logs = b"".join(path.read_bytes() for path in files if path.name == "worker.log")
    assert b"logging in with [hidden] and [hidden]" in logs
    assert b"[hidden] in two pieces" in logs
    assert b"login with [hidden] failed" in (folder / "out" / "report.html").read_bytes()
    assert (folder / "out" / "hub.json").stat().st_mode & 0o077 == 0
    _search_answers(folder)


def _search_answers(folder: Path) -> None:
    """Ask the API for all it knows of the run."""
    pytest.importorskip("fastapi", reason="needs the extra `web`")
    from web_world import TOKEN, serving

    with serving(folder) as served:
        run = served.get("/runs")["runs"][0]["run"]
        paths = ["", "/vms", "/events?body=true", "/logs", "/bill", "/plan", "/checkpoints"]
        vm = served.get(f"/runs/{run}/logs")["logs"][0]["vm"]
        paths += [f"/logs/{vm}", f"/logs/{vm}?kind=agent", "/events/stream"]
        for path in paths:
            status, _, body = served.ask("GET", f"/api/v1/runs/{run}{path}")
            assert status == 200 and not leaks(body) and TOKEN.encode() not in body


def test_user_data_and_boot_name_secrets_and_hold_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    job_file = load_job(folder / "job.yaml")
    job_file.out.mkdir()
    hidden = read_secrets(job_file, {"WANDB_API_KEY": FIRST})
    assert hidden == {"WANDB_API_KEY": FIRST, "OTHER": SECOND}
    ground = clouds.ground_of(job_file)
    ground.open()
    hub, boot, passes = _hub(job_file, ground, RealClock(), hidden)
    hub.close()
    ground.close("hush")
    assert passes.secret not in repr(passes) and passes.secret not in boot.values()
    assert boot[NAMES] == "WANDB_API_KEY,OTHER"
    script = user_data(AwsSettings(("us-east-1",), ("m5.large",)), boot)
    assert not leaks(script.encode()) and not leaks(repr(boot).encode())
    assert not leaks(repr(job_file).encode()) and not leaks(repr(Secrets(hidden)).encode())
    assert decode(encode(Secrets(hidden))) == Secrets(hidden)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"secrets: {{A: {FIRST}}}", "no value belongs here"),
        (f"secrets: {{A: {{value: {FIRST}}}}}", "no value belongs here"),
        ("secrets: {A: {env: NOT_THERE}}", "NOT_THERE is not set"),
        ("secrets: {A: {file: nowhere}}", "No such file"),
        ("secrets: {A: {env: SHORT}}", "too few to be masked"),
        ("secrets: {A-B: }", "no name"),
        ("secrets: {SUREFOOT_X: }", "are ours"),
        ("secrets: {A: }\nenvs: {A: b}", "stands in `envs` too"),
    ],
)
def test_a_secret_that_cannot_be_kept_is_refused_without_telling_it(
    folder: Path, text: str, told: str
) -> None:
    lines = JOB.splitlines()
    kept = [line for line in lines if not line.startswith("secrets:")]
    (folder / "job.yaml").write_text("\n".join([*kept, text]) + "\n")
    with pytest.raises(ConfigError) as caught:
        read_secrets(load_job(folder / "job.yaml"), {"SHORT": "abc"})
    assert told in str(caught.value)
    assert not leaks(f"{caught.value} {caught.value.hint}".encode())


def test_a_log_is_masked_wherever_the_writer_pauses(tmp_path: Path) -> None:
    """Every way to cut the secret into two writes, and what only begins like it stays."""
    secret = "abcabcabd-secret"
    code = (
        "import os,time\n"
        "s=os.environ['KEY'].encode()\n"
        "for i in range(1,len(s)):\n"
        "    os.write(1,b'<'+s[:i]); time.sleep(0.005); os.write(1,s[i:]+b'>')\n"
        "os.write(1,b'abcabcabc-secre end')\n"
    )
    env = {**os.environ, NAMES: "KEY", "KEY": secret}
    log = tmp_path / "worker.log"
    child = Child("", "", env, log, words=[sys.executable, "-c", code])
    while child.exit_code() is None:
        pass
    tail = child.tail()
    child.kill()
    assert log.read_text() == tail
    assert tail == "<[hidden]>" * (len(secret) - 1) + "abcabcabc-secre end"


def test_what_workers_report_is_masked_too() -> None:
    said = Saved(3, 1, 2, 4, error=f"cannot log in with {FIRST}: denied")
    assert mask_message(said, [FIRST]).error == "cannot log in with [hidden]: denied"
    clean = WorkerExited(1, "all well")
    assert mask_message(clean, [FIRST]) is clean
