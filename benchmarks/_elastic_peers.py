"""torchrun and torchft under the same faults on the same kind of VMs, each alone on the machine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from _elastic_rows import Row, Rows
from surefoot.core.market import Capacity, Pool
from surefoot.providers.local.namespaces import NamespaceHost
from surefoot.providers.local.records import VmRecord

WORKER = Path(__file__).with_name("_elastic_worker.py")
PORT = 29400

STORE = f"""
import sys, time
from torch.distributed import TCPStore
store = TCPStore("0.0.0.0", {PORT}, is_master=True, wait_for_workers=False)
print("up", flush=True)
while True: time.sleep(60)
"""

TUNED = (
    "is_host=0,last_call_timeout=1,join_timeout=60,keep_alive_interval=1,"
    "keep_alive_max_attempt=3,read_timeout=10,close_timeout=5"
)
"""The quickest settings with which torchrun was not seen to split into two groups."""


class Peers:
    """VMs that run a peer's launcher; VM 0 holds the peer's meeting point and is never harmed."""

    def __init__(self, folder: Path, kind: str, *, nodes: int) -> None:
        self.folder, self.kind, self.nodes = folder, kind, nodes
        self.host = NamespaceHost(folder / "vms")
        self.rows = Rows(folder)
        self.vms: dict[str, VmRecord] = {}
        self._count = 0
        meeting = self._boot("meeting", *self._meeting())
        self.meeting = meeting.address
        said = Path(meeting.folder) / "console.log"
        end = time.monotonic() + 60
        while said.stat().st_size == 0 and time.monotonic() < end:
            time.sleep(0.1)

    def _meeting(self) -> tuple[Sequence[str], Mapping[str, str]]:
        if self.kind == "torchft":
            program = str(Path(sys.executable).parent / "torchft_lighthouse")
            options = ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "500")
            where = ("--bind", f"0.0.0.0:{PORT}", "--min_replicas", "1")
            return (program, *where, *options, "--quorum_tick_ms", "50"), {}
        return (sys.executable, "-c", STORE), {}

    def add(self) -> str:
        """Boot one more VM; returns its name."""
        name = f"vm{self._count}"
        command, env = self._launcher()
        self.vms[name] = self._boot(name, command, env)
        return name

    def _launcher(self) -> tuple[Sequence[str], dict[str, str]]:
        if self.kind == "torchft":
            env = {"TORCHFT_LIGHTHOUSE": f"http://{self.meeting}:{PORT}"}
            return (sys.executable, str(WORKER), "torchft"), env
        tuned = self.kind == "torchrun tuned"
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        if tuned:
            env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "ELASTIC_PG_TIMEOUT": "10"}
            env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "2"
        address = self.host.address(self._count)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{self.nodes}"]
        command += ["--nproc-per-node=1", "--max-restarts=20", "--rdzv-id=job"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={self.meeting}:{PORT}"]
        command += [f"--local-addr={address}", f"--rdzv-conf={TUNED if tuned else 'is_host=0'}"]
        command += ["--monitor-interval=0.1"] if tuned else []
        return [*command, str(WORKER), "torchrun"], env

    def _boot(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> VmRecord:
        number, self._count = self._count, self._count + 1
        vm = VmRecord(
            instance_id=f"{self.folder.name}-{number}",
            number=number,
            token=name,
            run="peers",
            pool=Pool("local", "r", "z", "vm"),
            capacity=Capacity.ON_DEMAND,
            launched_ms=0,
            launched_trace_ms=0,
            address=self.host.address(number),
            folder=str(self.folder / "vms" / name),
        )
        elastic = {k: v for k, v in os.environ.items() if k.startswith("ELASTIC_")}
        more = {"ELASTIC_FOLDER": str(self.folder), "SUREFOOT_TOKEN": name}
        self.host.boot(vm, command, {**elastic, **more, **env})
        with (Path(vm.folder) / "etc" / "hosts").open("a") as hosts:  # torchft looks up names
            hosts.writelines(f"{self.host.address(n)} vm{n}\n" for n in range(32))
        return vm

    def settle(self, world: int, limit_s: float) -> Row | None:
        """Wait for a step of a group of this size."""
        return self.rows.wait(lambda r: r["world"] == world, limit_s, after=time.monotonic())

    def fault(self, verb: str, limit_s: float) -> dict[str, float]:
        """Harm the VM of the highest rank; return time to the first step after, and its cost."""
        time.sleep(1.5)
        ranks = self.rows.group()
        name = ranks[max(ranks)]
        at_s = time.monotonic()
        if verb == "cut":
            self.host.cut(self.vms[name])
        else:
            self.host.end([self.vms.pop(name)], silently=verb == "poweroff")
        world = len(self.vms) - (verb == "cut")
        first = self.rows.wait(lambda r: r["world"] <= world, limit_s, after=at_s + 0.05)
        if first is None:
            return {"first_step_s": float("nan")}
        return {"first_step_s": first["t"] - at_s, "lost_steps": self.rows.lost_steps(first)}

    def addition(self, limit_s: float) -> dict[str, float]:
        """Boot a VM; return how long it took to train, and the longest pause of the others."""
        old = [row["vm"] for row in self.rows.newest(self.vms).values()]
        began_s = time.monotonic()
        self.add()
        first = self.settle(len(self.vms), limit_s)
        if first is None:
            return {"pause_s": float("nan")}
        time.sleep(1.0)
        self.rows.read()
        pauses = [self.rows.pause(vm, first["t"]) for vm in old]
        return {"add_s": first["t"] - began_s, "pause_s": max(pauses, default=float("nan"))}


@contextlib.contextmanager
def peers(folder: Path, kind: str, *, nodes: int) -> Iterator[Peers]:
    """Yield a peer's VMs; end them whatever happens."""
    made = Peers(folder, kind, nodes=nodes)
    try:
        yield made
    finally:
        made.host.close(kill=True)
        for path in folder.glob("vms/*/console.log"):
            path.replace(folder / f"{path.parent.name}.log")


def play(
    folder: Path, kind: str, faults: Sequence[str], *, nodes: int, limit_s: float
) -> dict[str, dict[str, float]]:
    """Start a peer in full strength, inflict the faults in turn; a VM is added after each."""
    found: dict[str, dict[str, float]] = {}
    with peers(folder, kind, nodes=nodes) as made:
        for _ in range(nodes):
            made.add()
        if made.settle(nodes, 150) is None:
            return {"start": {"first_step_s": float("nan")}}
        for fault in faults:
            found[fault] = made.fault(fault, limit_s)
            if found[fault]["first_step_s"] != found[fault]["first_step_s"]:
                break  # it does not train any more
            found[fault] |= made.addition(limit_s)
    return found
