"""How a program gets to a host: one ssh connection per host, kept open and used again."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from surefoot.errors import AuthError, ConfigError, RetryLaterError, SurefootError
from surefoot.providers.ssh.settings import SshHost, SshSettings

FAILED = 255
"""Ssh's own exit status; any other is the program's."""


class Lines:
    """Runs programs on hosts. Thread-safe: each call is a process of its own."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="sfssh-"))

    def run(self, host: SshHost, program: str) -> str:
        """Return what a shell program prints on a host.

        Raises RetryLaterError for a host that does not answer, AuthError for one that does not
        let us in, ConfigError when the host cannot run the program.
        """
        command = [*self._command(host), "sh -s"]
        try:
            done = subprocess.run(
                command,
                input=program,
                capture_output=True,
                text=True,
                timeout=self._settings.answer_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RetryLaterError(f"{host.name} does not answer") from error
        except OSError as error:
            raise ConfigError(f"cannot run {command[0]}: {error}") from error
        if done.returncode == FAILED:
            raise _refusal(host, done.stderr.strip())
        if done.returncode or not done.stdout.endswith(("done\n", "busy\n")):
            said = done.stderr.strip()[-300:]
            raise ConfigError(f"{host.name} cannot do as asked ({done.returncode}): {said}")
        return done.stdout

    def close(self) -> None:
        """Close the kept connections."""
        for path in self._folder.glob("*"):
            command = [*self._settings.ssh, "-o", f"ControlPath={path}", "-O", "exit", "any"]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(command, capture_output=True, timeout=5, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, host: SshHost) -> list[str]:
        number = self._settings.hosts.index(host)
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(self._settings.connect_s),
            "ServerAliveInterval": "3",
            "ServerAliveCountMax": "2",
            "ControlMaster": "auto",
            "ControlPath": str(self._folder / f"h{number}"),
            "ControlPersist": "60",
        }
        command = list(self._settings.ssh)
        for name, value in options.items():
            command += ["-o", f"{name}={value}"]
        return command + reach(host)


def reach(host: SshHost) -> list[str]:
    """Return ssh's arguments that say which host is meant and how it is entered."""
    found: list[str] = []
    if host.port is not None:
        found += ["-p", str(host.port)]
    if host.key:
        found += ["-i", host.key]
    if host.user:
        found += ["-l", host.user]
    return [*found, "--", host.target]


def _refusal(host: SshHost, said: str) -> SurefootError:
    text = f"{host.name}: {said.splitlines()[-1] if said else 'ssh failed'}"
    if "Permission denied" in said:
        return AuthError(text, hint=f"make this work without a password: ssh {host.target} true")
    if "Host key verification failed" in said:
        return AuthError(text, hint=f"look at the host's key once: ssh {host.target} true")
    return RetryLaterError(text)
