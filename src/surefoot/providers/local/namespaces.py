"""VMs as network, pid and mount namespaces on a bridge of their own; needs root and iproute2.

The bridge, its addresses and the metadata address live in a hub namespace: nothing is added to
the machine's own network. The controller reaches the VMs through sockets that are opened inside
the hub namespace and then used outside of it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from surefoot.errors import ConfigError
from surefoot.providers.local.host import is_alive, numbered_address, reap, spawn
from surefoot.providers.local.processes import ProcessId
from surefoot.providers.local.records import VmRecord

PREFIX = "10.77"
HUB_ADDRESS = f"{PREFIX}.0.1"
METADATA_ADDRESS = "169.254.169.254"
BRIDGE_MAC = "02:53:46:00:00:01"
"""Set by us: a bridge without one takes the lowest of its ports' and changes it as VMs come and
go, which cuts VMs off from the hub until they look its address up again, half a minute later."""

NAMES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
END_TIMEOUT_S = 10.0

BOOT = """
echo "$SUREFOOT_VM_NAME" > /proc/sys/kernel/hostname
for name in hosts nsswitch.conf resolv.conf; do
  [ -e /etc/$name ] && mount --bind "$SUREFOOT_VM_DIR/etc/$name" /etc/$name
done
mount -t tmpfs tmpfs /dev/shm
exec "$@"
"""
"""Runs as process 1 of a VM. Look-ups in files only: a resolver that cannot be reached makes
every reverse look-up of torch.distributed hang for seconds. A shared /dev/shm of its own."""


class NamespaceHost:
    """VMs are namespaces at 10.77.0.0/16; a VM that is ended silently leaves no FIN and no RST.

    Raises ConfigError where there is no root, iproute2, util-linux or cgroup v2.
    """

    def __init__(self, root: Path) -> None:
        self._hub = hub_name(root)
        self._children: list[subprocess.Popen[bytes]] = []
        self._cgroup = _cgroup_root() / self._hub
        if not (NAMES / self._hub).exists():
            try:
                self._set_up()
            except BaseException:
                self.close(kill=True)
                raise

    def listen(self, port: int) -> socket.socket:
        """Return a listening TCP socket on the hub's address (port 0: any)."""
        return self._listen(HUB_ADDRESS, port)

    def listen_metadata(self, port: int) -> socket.socket:
        """Return the metadata service's socket, where clouds have it (`port` is always 80)."""
        return self._listen(METADATA_ADDRESS, 80)

    def address(self, number: int) -> str:
        """Return the bridge address of the VM with this launch number."""
        return numbered_address(PREFIX, number)

    def metadata_endpoint(self, prefixed: str) -> str:
        """Return the clouds' own URL: VMs are told apart by the address they call from."""
        return f"http://{METADATA_ADDRESS}"

    def boot(self, vm: VmRecord, command: Sequence[str], boot: Mapping[str, str]) -> ProcessId:
        """Make the VM's namespaces and start the command as a child of its process 1."""
        name = self._name(vm)
        self._connect(vm)
        _write_look_ups(Path(vm.folder) / "etc", vm)
        group = self._cgroup / f"v{vm.number}"
        group.mkdir(parents=True, exist_ok=True)
        isolate = [
            *("nsenter", f"--net={NAMES / name}", "unshare", "--mount", "--uts", "--pid"),
            *("--ipc", "--fork", "--kill-child=SIGKILL", "--mount-proc", "sh", "-c", BOOT, "vm"),
            *command,
        ]
        enter = (
            f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))} && exec {shlex.join(isolate)}"
        )
        extra = {"SUREFOOT_VM_NAME": f"vm{vm.number}"}
        return spawn(self._children, vm, ["sh", "-c", enter], {**boot, **extra})

    def is_alive(self, vm: VmRecord) -> bool:
        """Return whether the VM's first process runs."""
        reap(self._children)
        return is_alive(vm, PREFIX)

    def end(self, vms: Sequence[VmRecord], *, silently: bool) -> None:
        """End everything in the VMs and remove their namespaces."""
        if silently:
            _ip_batch(self._hub, [f"link set v{vm.number} down" for vm in vms])
        self._end([vm.number for vm in vms])

    def cut(self, vm: VmRecord) -> None:
        """Pull the VM's network cable; it computes on."""
        _ip_batch(self._hub, [f"link set v{vm.number} down"])

    def uncut(self, vm: VmRecord) -> None:
        """Plug the cable in again."""
        _ip_batch(self._hub, [f"link set v{vm.number} up"])

    def close(self, *, kill: bool) -> None:
        """Reap what has ended; with `kill`, end all VMs and remove the hub."""
        reap(self._children)
        if kill:
            self._end(_numbers(self._hub, self._cgroup))
            _run("ip", "netns", "del", self._hub, check=False)
            _remove(self._cgroup)

    def _set_up(self) -> None:
        self._cgroup.mkdir(parents=True, exist_ok=True)
        _run("ip", "netns", "add", self._hub)
        _ip_batch(
            self._hub,
            [
                "link set lo up",
                f"link add br0 address {BRIDGE_MAC} type bridge stp_state 0 forward_delay 0",
                f"addr add {HUB_ADDRESS}/16 dev br0",
                f"addr add {METADATA_ADDRESS}/32 dev lo",
                "link set br0 up",
            ],
            check=True,
        )

    def _connect(self, vm: VmRecord) -> None:
        """Make the VM's network namespace and plug it into the bridge."""
        name, cable = self._name(vm), f"v{vm.number}"
        _run("ip", "netns", "add", name)
        _ip_batch(
            self._hub,
            [
                f"link add {cable} type veth peer name eth0 netns {name}",
                f"link set {cable} master br0 up",
            ],
            check=True,
        )
        _ip_batch(
            name,
            [
                "link set lo up",
                f"addr add {vm.address}/16 dev eth0",
                "link set eth0 up",
                f"route add default via {HUB_ADDRESS}",
            ],
            check=True,
        )

    def _name(self, vm: VmRecord) -> str:
        return f"{self._hub}v{vm.number}"

    def _end(self, numbers: Iterable[int]) -> None:
        groups = {number: self._cgroup / f"v{number}" for number in numbers}
        for group in groups.values():
            if group.exists():
                (group / "cgroup.kill").write_text("1")
        for number, group in groups.items():
            _await_empty(group)
            # The children are dead by now; reaping them lets the cgroup be removed.
            reap(self._children)
            _run("ip", "netns", "del", f"{self._hub}v{number}", check=False)
            _remove(group)

    def _listen(self, address: str, port: int) -> socket.socket:
        return _inside(
            NAMES / self._hub, lambda: socket.create_server((address, port), backlog=128)
        )


def hub_name(root: Path) -> str:
    """Return the name of the hub namespace of a state folder."""
    return "sf" + hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:6]


def exists(root: Path) -> bool:
    """Return whether a state folder has a hub namespace standing."""
    return (NAMES / hub_name(root)).exists()


def why_not() -> str:
    """Return why namespaces cannot be had here; "" when they can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"these programs are not installed: {', '.join(missing)}"
    if _find_cgroup() is None:
        return "there is no writable cgroup v2 with cgroup.kill (Linux 5.14 or later)"
    return _probe()


@functools.cache
def _probe() -> str:
    """Return why this root may not make namespaces (a container's often may not)."""
    name = f"sfprobe{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _ip_batch(name, ["link add br0 type bridge"], check=True)
        _run("unshare", "--mount", "--uts", "--pid", "--ipc", "--fork", "--mount-proc", "true")
    except ConfigError as error:
        return str(error)
    finally:
        _run("ip", "netns", "del", name, check=False)
    return ""


def _cgroup_root() -> Path:
    reason = why_not()
    found = _find_cgroup()
    if reason or found is None:
        raise ConfigError(
            f"local VMs cannot be namespaces: {reason}",
            hint="use process VMs, which need no root (vms: process)",
        )
    return found


def _find_cgroup() -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        where, kind = line.split()[1:3]
        if kind == "cgroup2" and _can_kill(Path(where)):
            return Path(where)
    return None


def _can_kill(root: Path) -> bool:
    """Return whether cgroups can be made here, with a file to kill them by."""
    probe = root / f"sfprobe{os.getpid()}"
    try:
        probe.mkdir()
        found = (probe / "cgroup.kill").exists()
        probe.rmdir()
    except OSError:
        return False
    return found


def _write_look_ups(folder: Path, vm: VmRecord) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hosts = (
        f"127.0.0.1 localhost\n{vm.address} vm{vm.number}\n"
        f"{METADATA_ADDRESS} metadata.google.internal metadata\n"
    )
    (folder / "hosts").write_text(hosts)
    (folder / "nsswitch.conf").write_text("hosts: files\n")
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")


def _numbers(hub: str, cgroup: Path) -> list[int]:
    """Return the launch numbers of all VMs that have left a namespace or a cgroup behind."""
    names = [path.name for path in NAMES.glob(f"{hub}v*")]
    names += [path.name for path in cgroup.glob("v*")]
    tails = {name.rpartition("v")[2] for name in names}
    return sorted(int(tail) for tail in tails if tail.isdecimal())


def _await_empty(group: Path) -> None:
    give_up = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < give_up:
        try:
            if "populated 0" in (group / "cgroup.events").read_text():
                return
        except OSError:
            return
        time.sleep(0.005)


def _remove(group: Path) -> None:
    for _ in range(100):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def _inside(namespace: Path, make: Callable[[], socket.socket]) -> socket.socket:
    """Return what `make` makes in a network namespace; raises what `make` raises.

    A thread of its own enters it, and ends there: namespaces belong to threads.
    """
    made: list[socket.socket] = []
    trouble: list[OSError] = []

    def enter() -> None:
        try:
            with namespace.open() as handle:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
            made.append(make())
        except OSError as error:
            trouble.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return made[0]


def _ip_batch(namespace: str, commands: Sequence[str], *, check: bool = False) -> None:
    """Run `ip` commands in a namespace in one process; without `check`, all that can be run."""
    if commands:
        text = "\n".join(commands) + "\n"
        _run("ip", "-force", "-n", namespace, "-batch", "-", check=check, text=text)


def _run(*command: str, check: bool = True, text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ConfigError(
            f"cannot set up a local VM's network: {shlex.join(command)}: {done.stderr.strip()}",
            hint="use process VMs, which need no root (vms: process)",
        )
