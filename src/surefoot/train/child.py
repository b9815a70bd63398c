"""The training command as the agent's child: its own session, its output, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from surefoot.errors import ConfigError
from surefoot.providers.local import processes
from surefoot.train.hidden import Masked, values_of
from surefoot.train.script import roots

_TAIL_BYTES = 4000
_MARK = "SUREFOOT_LAUNCH"
"""The variable by which all that a command starts is known, whatever sessions it makes."""
_KEPT_BACK = ("SUREFOOT_SECRET", "SUREFOOT_ENVS")


def worker_environment(env: Mapping[str, str], agent_socket: str) -> dict[str, str]:
    """Return the worker's environment: the agent's without the run secret, plus the job's envs.

    Raises ConfigError when SUREFOOT_ENVS is not a JSON object of text.
    """
    worker = {k: v for k, v in env.items() if k not in _KEPT_BACK}
    try:
        extra = json.loads(env.get("SUREFOOT_ENVS") or "{}")
        worker.update({str(k): str(v) for k, v in extra.items()})
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"SUREFOOT_ENVS must be a JSON object: {error}") from error
    worker["SUREFOOT_AGENT"] = agent_socket
    worker.setdefault("PYTHONUNBUFFERED", "1")
    if "SUREFOOT_PACE" in env:
        worker.setdefault("OMP_NUM_THREADS", "1")  # a local VM is a slice of one machine
    return worker


class Child:
    """One run of the training command, marked so that all of it can be ended.

    `words` is run as it is, instead of `command` by a shell.
    """

    def __init__(
        self,
        command: str,
        workdir: str,
        env: Mapping[str, str],
        log: Path,
        *,
        words: Sequence[str] = (),
    ) -> None:
        self._log = log
        self._start = log.stat().st_size if log.exists() else 0
        self._mark = os.urandom(8).hex()
        values = values_of(env)
        self._masked = Masked(log, values) if values else None
        with log.open("ab") as out:
            try:
                self._process = subprocess.Popen(
                    list(words) or ["/bin/sh", "-c", command],
                    cwd=workdir or None,
                    env={**env, _MARK: self._mark},
                    stdin=subprocess.DEVNULL,
                    stdout=self._masked.writer if self._masked else out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            finally:
                if self._masked:
                    self._masked.started()

    @property
    def pid(self) -> int:
        """Process id, which is the process group's too."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return how the command ended (128 + N for signal N), None while it runs."""
        code = self._process.poll()
        return None if code is None else (128 - code if code < 0 else code)

    def pids(self) -> list[int]:
        """Return the processes that the command consists of by now."""
        return [process.pid for process in self._members()]

    def end(self) -> None:
        """SIGTERM whoever is to end of it: past shells, which would not hand it on."""
        found = {process.pid: process for process in self._members()}
        for pid in roots(found):
            processes.send(found[pid], signal.SIGTERM)

    def kill(self) -> None:
        """End the command and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        processes.end([self._mark], variable=_MARK, timeout_s=5.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)

    def _members(self) -> set[processes.ProcessId]:
        return processes.members([self._mark], _MARK)[self._mark]

    def tail(self) -> str:
        """Return the end of this run's output."""
        if self._masked:
            self._masked.settle()
        with contextlib.suppress(OSError), self._log.open("rb") as out:
            size = out.seek(0, os.SEEK_END)
            out.seek(max(self._start, size - _TAIL_BYTES))
            return out.read().decode(errors="replace")
        return ""
