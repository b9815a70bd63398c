"""Hosts with a real sshd, as network namespaces on this machine; needs root and openssh."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from surefoot.core.market import Capacity, Pool
from surefoot.errors import ConfigError
from surefoot.providers.local import processes
from surefoot.providers.local.host import remove_temporary
from surefoot.providers.local.namespaces import NAMES, NamespaceHost, hub_name
from surefoot.providers.local.records import VmRecord
from surefoot.providers.notice import now_ms

SSHD = "/usr/sbin/sshd"
NOBODY = Pool("ssh", "test", "test", "test")
CONFIG = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
MaxStartups 100
SetEnv HOME={home}
"""


class SshHosts:
    """`count` hosts that share this machine's files, each with a home of its own."""

    def __init__(self, count: int, *, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._host = NamespaceHost(self.folder)
        self._vms: list[VmRecord] = []
        for name in ("host_key", "user_key"):
            _keygen(self.folder / name)
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd drops its privileges
        for number in range(count):
            self._boot(number)
        self._await()

    def __enter__(self) -> SshHosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def ssh(self) -> tuple[str, ...]:
        """The ssh command that reaches the hosts: run from inside their network."""
        known = self.folder / "known_hosts"
        trust = ("-o", "StrictHostKeyChecking=accept-new", "-o", f"UserKnownHostsFile={known}")
        inside = ("nsenter", f"--net={NAMES / hub_name(self.folder)}")
        return (*inside, "ssh", "-F", "none", *trust)

    def of(self, number: int, folder: str = ".surefoot") -> dict[str, Any]:
        """Return how one host is named to `SshHost`; `folder`: which of its states to use."""
        return {
            "host": self._vms[number].address,
            "user": "root",
            "key": str(self.folder / "user_key"),
            "folder": str(self.home(number) / folder),
        }

    def home(self, number: int) -> Path:
        """Return the folder in which a host keeps its state."""
        return self.folder / f"home{number}"

    def listen(self, port: int = 0) -> socket.socket:
        """Return a listening socket that the hosts can reach."""
        return self._host.listen(port)

    def kill_all(self, number: int) -> None:
        """Kill all that runs in a host's VM, as its owner may; the host itself stays."""
        processes.end(processes.marked(f"{self.home(number)}/"))

    def cut(self, number: int) -> None:
        """Pull a host's network cable."""
        self._host.cut(self._vms[number])

    def uncut(self, number: int) -> None:
        """Plug it in again."""
        self._host.uncut(self._vms[number])

    def close(self) -> None:
        """End all hosts and leave nothing behind."""
        for number in range(len(self._vms)):
            self.kill_all(number)
        self._host.end(self._vms, silently=False)
        for vm in self._vms:
            remove_temporary(vm.instance_id)
        self._host.close(kill=True)

    def _boot(self, number: int) -> None:
        home = self.home(number)
        home.mkdir()
        name = f"{hub_name(self.folder)}host{number}"
        address = self._host.address(number)
        place = str(self.folder / "machines" / name)
        vm = VmRecord(name, number, "", "", NOBODY, Capacity.ON_DEMAND, now_ms(), 0, address, place)
        config = self.folder / f"sshd{number}.conf"
        config.write_text(CONFIG.format(address=address, folder=self.folder, home=home))
        command = [SSHD, "-D", "-e", "-f", str(config)]
        self._vms.append(replace(vm, process=self._host.boot(vm, command, {})))

    def _await(self) -> None:
        """Wait until every sshd answers. Raises ConfigError when one does not."""
        give_up = time.monotonic() + 20
        for number, vm in enumerate(self._vms):
            command = [*self.ssh, "-i", self.of(number)["key"], f"root@{vm.address}", "true"]
            while subprocess.run(command, capture_output=True, check=False).returncode:
                if time.monotonic() > give_up:
                    log = (Path(vm.folder) / "console.log").read_text()
                    raise ConfigError(f"sshd does not answer: {log[-500:]}")
                time.sleep(0.1)


def _keygen(path: Path) -> None:
    if not path.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.fspath(path)]
        subprocess.run(command, check=True)
