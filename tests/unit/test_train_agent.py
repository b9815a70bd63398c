"""The agent is small, refuses a wrong environment, and passes on what late comers must know."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from surefoot.core.wire import (
    Formed,
    Generation,
    Leave,
    Noticed,
    Ready,
    SetInterval,
    StoreUp,
)
from surefoot.errors import ConfigError
from surefoot.train.agent import AgentSettings, Memory
from surefoot.train.child import Child, worker_environment

ENV = {
    "SUREFOOT_HUB": "127.0.0.1:5000",
    "SUREFOOT_TOKEN": "t",
    "SUREFOOT_SECRET": "s",
    "SUREFOOT_ADDRESS": "127.0.1.1",
    "SUREFOOT_COMMAND": "true",
}


def test_imports_neither_torch_nor_numpy_and_stays_small() -> None:
    code = (
        "import sys, surefoot.train.agent, surefoot.providers.aws.notice;"
        "bad = {'torch', 'numpy', 'pydantic', 'sqlalchemy'} & sys.modules.keys();"
        "print(sorted(bad), open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    names, _, kib = out.rpartition(" ")
    assert names == "[]"
    assert int(kib) < 60 * 1024


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"SUREFOOT_TOKEN": ""}, "SUREFOOT_TOKEN"),
        ({"SUREFOOT_HUB": "nowhere"}, "host:port"),
        ({"SUREFOOT_NOTICE": "oracle"}, "SUREFOOT_NOTICE"),
        ({"SUREFOOT_LEASE_S": "soon"}, "LEASE_S"),
    ],
)
def test_names_what_is_wrong_in_its_environment(change: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        AgentSettings.read({**ENV, **change})


@pytest.mark.parametrize("name", ["aws", "gcp", "azure", "kubernetes", "none", ""])
def test_every_notice_watcher_can_be_named(name: str) -> None:
    assert AgentSettings.read({**ENV, "SUREFOOT_NOTICE": name}).notice == (name or "none")


def test_wrong_environment_ends_with_code_2_and_a_message() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUREFOOT_")}
    done = subprocess.run(
        [sys.executable, "-m", "surefoot.train.agent"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "SUREFOOT_HUB" in done.stderr and "Traceback" not in done.stderr


def test_worker_gets_the_jobs_envs_and_never_the_run_secret() -> None:
    env = worker_environment({**ENV, "SUREFOOT_ENVS": '{"STEPS": 5}'}, "/run/agent.sock")
    assert env["STEPS"] == "5" and env["SUREFOOT_AGENT"] == "/run/agent.sock"
    assert "SUREFOOT_SECRET" not in env and "SUREFOOT_ENVS" not in env
    with pytest.raises(ConfigError, match="JSON object"):
        worker_environment({**ENV, "SUREFOOT_ENVS": "[1"}, "")


def test_worker_that_connects_late_is_told_all_that_still_holds() -> None:
    memory = Memory()
    generation, store = Generation(4, ("t",), ("127.0.1.1",)), StoreUp(4, "127.0.1.1", 99)
    for message in (SetInterval(500), Generation(3, (), ()), generation, store, Noticed(9000)):
        memory.note(message)
    memory.last_word = Leave()
    interval, order, up, notice, word = memory.for_worker()
    assert (interval, order, up, word) == (SetInterval(500), generation, store, Leave())
    assert isinstance(notice, Noticed) and 8000 < notice.left_ms <= 9000


def test_restarted_worker_does_not_join_the_group_that_its_former_run_left() -> None:
    memory = Memory()
    for message in (Ready(), Formed(4, 10, 2), Generation(4, ("t",), ("a",)), StoreUp(4, "a", 9)):
        memory.note(message)
    assert memory.for_controller() == [Ready(), Formed(4, 10, 2)]
    memory.forget_group()
    assert memory.for_controller() == memory.for_worker() == []


def test_child_is_ended_with_everything_that_it_started(tmp_path: Path) -> None:
    child = Child("echo begun; sleep 60 & sleep 60", "", os.environ, tmp_path / "worker.log")
    while "begun" not in child.tail():
        assert child.exit_code() is None
    child.kill()
    assert child.exit_code() == 137
    limit_s = time.monotonic() + 5
    while _alive(child.pid):
        assert time.monotonic() < limit_s, "something of the child is still there"
        time.sleep(0.02)


def _alive(group: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True)
    return any(not state.startswith(b"Z") for state in listed.stdout.split())
