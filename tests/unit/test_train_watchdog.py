"""The watchdog ends what hangs in its own work, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from surefoot.errors import ConfigError
from surefoot.train.watchdog import HANG_EXIT, LIMIT_S, limit_of


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = "import time\nfrom surefoot.train.watchdog import Watchdog\nwaits = False\n"
    code += "dog = Watchdog(0.5, lambda: waits)\n" + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_hang_in_restoring_is_caught_before_the_first_step() -> None:  # case 93
    done = run("with dog.phase('in restoring the newest checkpoint'): time.sleep(60)")
    assert done.returncode == HANG_EXIT
    assert "hangs in restoring the newest checkpoint" in done.stderr
    assert "most recent call first" in done.stderr


def test_what_is_waited_for_between_phases_takes_as_long_as_it_takes() -> None:  # case 93
    done = run("dog.begin('x'); dog.end(); time.sleep(1.5); print('saved')")
    assert (done.returncode, done.stdout) == (0, "saved\n")


def test_waiting_for_others_and_signs_of_life_are_no_hang() -> None:
    done = run(
        """
        dog.begin("in the loop body of step 1")
        waits = True
        time.sleep(1.5)
        waits = False
        for _ in range(8):
            time.sleep(0.2)
            dog.see_life()
        print("done")
        """
    )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_limit_is_what_was_given_or_the_environments_or_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SUREFOOT_HANG_S", raising=False)
    assert limit_of(None, alone=True) == float("inf"), "nobody would start it again"
    assert limit_of(None, alone=False) == LIMIT_S
    monkeypatch.setenv("SUREFOOT_HANG_S", "90")
    assert (limit_of(None, alone=False), limit_of(5.0, alone=True)) == (90, 5)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="hang_limit_s"):
            limit_of(wrong, alone=True)
