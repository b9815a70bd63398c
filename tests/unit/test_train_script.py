"""A script without an import is asked to save, and is understood, in every documented way."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surefoot.core.wire import Generation, Saved, Stepped
from surefoot.errors import ConfigError
from surefoot.train.child import Child
from surefoot.train.launch import check_command, engine_of, launch_environment
from surefoot.train.link import Link
from surefoot.train.script import Script, ScriptTerms

SUREFOOT = [sys.executable, "-c", "from surefoot.cli.main import run; run()"]

WRAPPED = """
import os, pathlib, signal, sys, time
asked = []
{handler}
print("up", flush=True)
for step in range(200):
    time.sleep(0.05)
    print("step", step + 1, flush=True)
    if asked:
        asked.clear()
        pathlib.Path(f"ckpt-{{step + 1}}").write_text("weights")
"""
CATCHES = "signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))"


def until(found: Callable[[], Any], what: str, within_s: float = 20.0) -> Any:
    limit_s = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < limit_s, f"no {what} in {within_s} s"
        time.sleep(0.05)
    return value


def talk(tmp_path: Path, **terms: str) -> Script:
    script = Script(ScriptTerms(**terms), tmp_path, tmp_path, tmp_path / "worker.log")
    script.begin()
    return script


def looks(script: Script, kind: type) -> Any:
    return until(
        lambda: [m for m in script.look(time.monotonic()) if isinstance(m, kind)], kind.__name__
    )[-1]


def test_request_file_holds_reason_and_time_left_and_its_removal_is_the_answer(
    tmp_path: Path,
) -> None:
    script = talk(tmp_path, save="file")
    assert script.ask("notice", 9000, ())
    request = Path(script.environment()["SUREFOOT_SAVE_FILE"])
    assert json.loads(request.read_text()) == {"reason": "notice", "left_ms": 9000}
    Path(script.environment()["SUREFOOT_STEP_FILE"]).write_text("step 41\n")
    assert looks(script, Stepped).step == 41
    request.unlink()
    saved = looks(script, Saved)
    assert (saved.step, saved.emergency) == (41, True)
    assert saved.margin_ms > 5000 and not script.asked


def test_same_notice_heard_twice_is_one_request(tmp_path: Path) -> None:
    """CASE 85's kin: the agent hears it from the cloud, then from the controller."""
    script = talk(tmp_path, save="file")
    request = Path(script.environment()["SUREFOOT_SAVE_FILE"])
    assert script.ask("notice", 9000, ())
    request.unlink()
    looks(script, Saved)
    assert script.ask("notice", 8800, ())
    assert not request.exists()


def test_checkpoint_counts_once_it_has_not_changed_for_a_moment(tmp_path: Path) -> None:
    script = talk(tmp_path, save="none", saved="ckpt/step-*")
    assert not script.ask("interval", None, ())
    folder = tmp_path / "ckpt/step-30"
    folder.mkdir(parents=True)
    begun_s = time.monotonic()
    (folder / "a").write_text("half")
    while time.monotonic() - begun_s < 1.0:
        (folder / "a").write_text("more " * int(1000 * (time.monotonic() - begun_s)))
        assert not script.look(time.monotonic())
        time.sleep(0.1)
    assert looks(script, Saved).step == 30


def test_signal_reaches_the_trainer_behind_a_shell_and_kills_nobody_who_ignores_it(
    tmp_path: Path,
) -> None:
    """CASE 82: a shell in front swallows nothing."""
    trainer = WRAPPED.format(handler=CATCHES)
    bystander = WRAPPED.format(handler="")
    for name, text in (("trainer", trainer), ("bystander", bystander)):
        (tmp_path / f"{name}.py").write_text(text)
    command = f"{sys.executable} bystander.py & {sys.executable} trainer.py; wait"
    log = tmp_path / "worker.log"
    script = talk(tmp_path, save="SIGUSR1", saved="ckpt-*", step=r"/^step (\d+)$/")
    child = Child(command, str(tmp_path), {**os.environ, "RANK": "0"}, log)
    try:
        until(lambda: log.read_text().count("up") == 2, "start of both")
        assert script.ask("interval", None, child.pids(), rank=0)
        saved = looks(script, Saved)
        assert saved.step > 0
        assert not script.ask("interval", None, child.pids(), rank=1), "that rank is elsewhere"
        assert child.exit_code() is None
        assert len(child.pids()) >= 3, "shell, trainer and bystander live"
    finally:
        child.kill()
    assert child.pids() == []


def test_reply_over_http_is_the_answer(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Door(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"step": 77}')

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        script = talk(tmp_path, save=f"http://127.0.0.1:{server.server_port}/save")
        assert script.ask("the group changes", None, ())
        assert looks(script, Saved).step == 77
        server.shutdown()
    assert asked == [{"reason": "the group changes", "left_ms": None}]


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"save": "SIGKILL"}, "script.save"),
        ({"saved": "s3://bucket/x"}, "SUREFOOT_SAVED_FILE|only files"),
        ({"step": r"/step \d+/"}, "group"),
        ({"step": "/step (/"}, "script.step"),
    ],
)
def test_wrong_terms_are_named(terms: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ScriptTerms(**terms)


def test_engine_is_chosen_by_the_command_and_the_scripts_it_names(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import torch\n")
    (tmp_path / "ours.py").write_text("from surefoot.train import Session\n")
    place = str(tmp_path)
    assert engine_of("auto", "torchrun --nproc-per-node=8 ours.py", place) == "torchrun"
    assert engine_of("auto", "A=1 python plain.py --lr 3", place) == "torchrun"
    assert engine_of("auto", "python ours.py", place) == "live"
    assert engine_of("auto", "python plain.py && python ours.py", place) == "live"
    assert engine_of("auto", "python elsewhere.py", place) == "live"
    assert engine_of("live", "torchrun plain.py", place) == "live"


def test_session_that_torchrun_has_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_ENGINE", "torchrun")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="each process would train alone"):
        Link(None)


def test_options_of_torchrun_that_change_with_the_fleet_are_refused() -> None:
    assert check_command("torchrun --nnodes=4 t.py") == "--nnodes"
    assert check_command("torchrun --rdzv_endpoint h:1 t.py") == "--rdzv_endpoint"
    assert check_command("torchrun --nproc-per-node=8 t.py --steps 4") == ""
    assert check_command("python t.py --nnodes=4") == ""


def test_each_generation_has_a_store_and_a_name_of_its_own() -> None:
    """CASES 80, 88, 89: no key and no port of an older group is used again; our grace is kept."""
    env = {}
    for number in (4, 5):
        order = Generation(number, ("b", "a"), ("127.0.1.2", "127.0.1.1"))
        env[number] = launch_environment(
            order, "a", ("127.0.1.2", 100 + number), workers=2, run="r", grace_s=30
        )
    assert env[4]["PET_NODE_RANK"] == env[4]["RANK"] == "1"
    assert env[4]["PET_NNODES"] == "2" and env[4]["PET_NPROC_PER_NODE"] == "2"
    assert env[4]["PET_RDZV_ID"] != env[5]["PET_RDZV_ID"]
    assert env[4]["MASTER_PORT"] != env[5]["MASTER_PORT"]
    assert env[4]["GLOO_SOCKET_IFNAME"] == "lo"
    assert env[4]["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "30"


def test_wrapped_command_saves_at_the_interval_and_on_sigterm_then_ends(tmp_path: Path) -> None:
    """CASE 82, 85: `surefoot run -- CMD` in a shell; the handler of the script sets a flag."""
    (tmp_path / "train.py").write_text(WRAPPED.format(handler=CATCHES))
    options = ["--interval", "1s", "--saved", "ckpt-*", "--step", r"/^step (\d+)$/"]
    command = [*SUREFOOT, "run", *options, "--", sys.executable, "train.py"]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(lambda: list(tmp_path.glob("ckpt-*")), "checkpoint by interval", 40)
        run.send_signal(signal.SIGTERM)
        said = run.communicate(timeout=40)[0]
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGTERM, said
    assert "is saved" in said and "SIGTERM: 30 s left; a save is asked for" in said
    last = max(int(p.name.split("-")[1]) for p in tmp_path.glob("ckpt-*"))
    shown = max(int(line.split()[1]) for line in said.splitlines() if line.startswith("step "))
    assert 0 <= shown - last <= 40, "the last save came with the signal"
