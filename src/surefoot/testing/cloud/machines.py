"""The fake cloud's VMs: namespaces or process groups that boot user data as a real VM does."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from surefoot.core.market import Capacity, Pool
from surefoot.errors import ConfigError
from surefoot.providers.local.host import Host, ProcessHost, remove_temporary
from surefoot.providers.local.metadata import Identity, MetadataServer
from surefoot.providers.local.namespaces import NamespaceHost
from surefoot.providers.local.records import VmRecord
from surefoot.providers.notice import now_ms

INIT = """
export FAKE_INIT=$$ PATH="$FAKE_COMMANDS:$PATH"
unset SUREFOOT_ADDRESS
for place in /run/systemd /run/dbus; do
  [ "$FAKE_ROOT" = yes ] && [ -d $place ] && mount -t tmpfs tmpfs $place
done
trap 'exit 0' TERM
"$1" &
while :; do sleep 3600 & wait; done
"""
"""The VM's process 1: runs user data, stays up after it, and ends when the VM shuts down. In a
namespace it hides the machine's own init, so that no program can shut that down instead."""

SHUTDOWN = '#!/bin/sh\nkill -TERM "$FAKE_INIT"\n'


class Machines:
    """Boots, watches and ends VMs. `kind`: namespace (needs root) | process | none."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder.resolve()
        self.host = _host(kind, self.folder)
        self.metadata: MetadataServer | None = None
        self._vms: dict[str, VmRecord] = {}
        self._count = 0
        if self.host is not None:
            self.metadata = MetadataServer(self.host.listen_metadata(0))
            self._commands = _commands(self.folder / "bin")

    def boot(self, instance_id: str, pool: Pool, capacity: Capacity, user_data: str) -> str:
        """Start a VM on this user data and return its address."""
        number, self._count = self._count, self._count + 1
        if self.host is None or self.metadata is None:
            return f"10.0.{number // 250}.{number % 250 + 1}"
        address = self.host.address(number)
        place = str(self.folder / "vms" / instance_id)
        vm = VmRecord(instance_id, number, "", "", pool, capacity, now_ms(), 0, address, place)
        spot = capacity is Capacity.SPOT
        self.metadata.add(
            Identity(instance_id, pool.instance_type, pool.region, pool.zone, address, is_spot=spot)
        )
        Path(place).mkdir(parents=True)
        script = Path(place) / "user-data"
        script.write_text(user_data or "#!/bin/sh\n")
        script.chmod(0o700)
        process = self.host.boot(vm, ["sh", "-c", INIT, "init", str(script)], self._boot(vm))
        self._vms[instance_id] = replace(vm, process=process)
        return address

    def end(self, instance_id: str, *, silently: bool) -> None:
        """End all of a VM; `silently`: its peers see no closed connection."""
        vm = self._vms.pop(instance_id, None)
        if vm is None or self.host is None or self.metadata is None:
            return
        self.host.end([vm], silently=silently)
        self.metadata.remove(instance_id)
        remove_temporary(instance_id)

    def stopped(self) -> list[str]:
        """Return the VMs that have shut themselves down."""
        host = self.host
        return [] if host is None else [i for i, vm in self._vms.items() if not host.is_alive(vm)]

    def announce(self, instance_id: str, gone_ms: int) -> None:
        """Tell a VM in its metadata that it will be taken at an instant (epoch ms)."""
        if self.metadata is not None:
            self.metadata.announce(instance_id, gone_ms=gone_ms)

    def cut(self, instance_id: str, *, off: bool = True) -> None:
        """Pull a VM's network cable, or plug it in again."""
        vm = self._vms.get(instance_id)
        if vm is not None and self.host is not None:
            (self.host.cut if off else self.host.uncut)(vm)

    def log(self, instance_id: str, name: str = "console.log") -> str:
        """Return one of a VM's files: console.log, agent.log, worker.log."""
        with contextlib.suppress(OSError):
            return (self.folder / "vms" / instance_id / name).read_text(errors="replace")
        return ""

    def close(self) -> None:
        """End all VMs and leave nothing behind."""
        for instance_id in list(self._vms):
            self.end(instance_id, silently=False)
        if self.metadata is not None:
            self.metadata.close()
        if self.host is not None:
            self.host.close(kill=True)

    def _boot(self, vm: VmRecord) -> Mapping[str, str]:
        assert self.host is not None and self.metadata is not None
        endpoint = self.host.metadata_endpoint(self.metadata.endpoint(vm.instance_id))
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint,
            "FAKE_COMMANDS": str(self._commands),
            "FAKE_ROOT": "yes" if isinstance(self.host, NamespaceHost) else "no",
        }


def new_id(prefix: str) -> str:
    """Return an id as AWS makes them."""
    return f"{prefix}-{secrets.token_hex(4)}"


def _host(kind: str, folder: Path) -> Host | None:
    match kind:
        case "namespace":
            return NamespaceHost(folder)
        case "process":
            return ProcessHost()
        case "none":
            return None
        case _:
            raise ConfigError(f"VMs can be namespace, process or none, not {kind!r}")


def _commands(folder: Path) -> Path:
    """Make a folder of commands that end the VM, and never the machine that it lives on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("shutdown", "poweroff", "halt", "reboot"):
        path = folder / name
        path.write_text(SHUTDOWN)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Path(os.fspath(folder))
