"""The local cloud: a market that replays a trace, with VMs that are real processes here."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from surefoot.core.market import Capacity, Offering
from surefoot.core.replay import Departure
from surefoot.core.trace import Trace
from surefoot.errors import CapacityError, ConfigError, NotBuiltError, RetryLaterError
from surefoot.providers.base import LaunchRequest, Vm
from surefoot.providers.local import namespaces, processes
from surefoot.providers.local.host import Host, ProcessHost, remove_temporary
from surefoot.providers.local.market import ReplayedMarket
from surefoot.providers.local.metadata import Identity, MetadataServer
from surefoot.providers.local.namespaces import NamespaceHost
from surefoot.providers.local.records import MarketRecord, StateFolder, VmRecord
from surefoot.providers.local.sweep import tidy
from surefoot.providers.notice import now_ms

AGENT = (sys.executable, "-m", "surefoot.train.agent")
PULSE_S = 0.2
"""How often VMs are looked after: ends seen, boots begun, the market's time written down."""

REMEMBERED_MS = 3_600_000
"""How long an ended VM stays in the list."""

REAL_BOOT_MS = 5_000
"""How long a local VM takes to boot anyway (imports); only what a trace asks beyond is waited."""


class LocalProvider:
    """VMs on this machine, sold and taken back as the trace says, in real time.

    The trace's time starts with the first question about the market (or `start`), stands still
    while no provider is open on `state_dir`, and goes on where it was. VMs outlive the provider
    unless it is closed with `kill`; the next one on the same folder takes them over.

    `vms`: process | namespace (needs root) | auto (process). `pace`: samples per second that a
    VM's worker may process, so that many VMs can share few cores.

    Raises ConfigError when another living provider owns the folder or namespaces cannot be had.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        state_dir: Path,
        vms: str = "auto",
        pace: float | None = None,
        agent: Sequence[str] = AGENT,
        real_boot_ms: int = REAL_BOOT_MS,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise NotBuiltError("the local provider needs Linux", hint="run it in a container")
        self._pace, self._agent, self._real_boot_ms = pace, tuple(agent), real_boot_ms
        self._folder = StateFolder(Path(state_dir))
        try:
            self._host = _host(vms, self._folder.root)
            self._market = self._resume(trace)
            self._metadata = MetadataServer(
                self._host.listen_metadata(self._folder.load_market().metadata_port)
            )
        except BaseException:
            self._folder.release()
            raise
        self._vms: dict[str, VmRecord] = {}
        self._boots: dict[str, Callable[[], None]] = {}
        self._launches = self._folder.load_market().launches
        self._trouble: BaseException | None = None
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closing = False
        self._adopt()
        self._thread = threading.Thread(target=self._run, name="local-market", daemon=True)
        self._thread.start()

    # -- the port ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Registered name."""
        return "local"

    def offerings(self) -> Sequence[Offering]:
        """Return what the trace sells now; like a cloud, it does not say how many are left."""
        self.start()
        return self._market.offerings()

    def launch(self, request: LaunchRequest) -> Vm:
        """Launch one VM; the same token again returns the same VM, also after its end.

        Raises CapacityError when the trace has none to give (or only above the maximum price),
        ConfigError when the token was used for another kind of VM.
        """
        self.start()
        with self._lock:
            self._advance()
            known = next((vm for vm in self._vms.values() if vm.token == request.token), None)
            if known is not None:
                return _same(known, request).as_vm()
            self._check_supply(request)
            vm = self._new(request)
            self._put(vm)
            self._identify(vm)
            delay_ms = self._market.boot_ms(request.pool) - self._real_boot_ms
            self._begin(vm, request, delay_ms=delay_ms)
            self._wake.set()
            return self._vms[vm.instance_id].as_vm()

    def terminate(self, instance_id: str) -> None:
        """End a VM and everything in it. Ending an ended or unknown VM is no error."""
        with self._lock:
            vm = self._vms.get(instance_id)
            if vm is not None and vm.ended_ms is None:
                self._end([vm], preempted=False)

    def list(self, run: str) -> Sequence[Vm]:
        """Return all VMs of the run that this folder remembers, in order of launch."""
        self._check()
        with self._lock:
            self._advance()
            self._look_after()
            return [vm.as_vm() for vm in self._vms.values() if vm.run == run]

    def next_change_ms(self) -> int | None:
        """Return when supply or a price will next change (epoch ms)."""
        self.start()
        return self._market.next_change_ms()

    def close(self, *, kill: bool = False) -> None:
        """Let go of the folder; with `kill`, end all VMs and leave nothing behind."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake.set()
        self._thread.join()
        try:
            if kill:
                self._end(self._running(), preempted=False)
            self._note_market()
        finally:
            self._metadata.close()
            self._host.close(kill=kill or not self._running())
            self._folder.release()

    # -- beyond the port -----------------------------------------------------------------------

    def start(self) -> None:
        """Let the trace's time run; starting twice is starting once."""
        self._check()
        with self._lock:
            self._market.start()

    @property
    def trace_ms(self) -> int:
        """The present instant of the trace."""
        return self._market.now_ms

    def listen(self, port: int = 0) -> socket.socket:
        """Return a listening TCP socket that the VMs can reach; the caller owns it.

        Where VMs are namespaces it lives in theirs, though it is used from here.
        """
        return self._host.listen(port)

    @staticmethod
    def hub_address(listener: socket.socket) -> str:
        """Return the host:port at which VMs reach a socket made by `listen`."""
        host, port = listener.getsockname()[:2]
        return f"{host}:{port}"

    def reclaim(self, instance_id: str, *, notice_ms: int = 0) -> None:
        """Take a VM back as the market would, though the trace does not say so (a fault).

        A VM that has ended is left alone.
        """
        with self._lock:
            vm = self._vms[instance_id]
            if vm.ended_ms is not None:
                return
            now = self._market.now_ms
            told = now if notice_ms > 0 else None
            doom = Departure(vm.token, told, now + notice_ms, reclaimed=True)
            self._tell(vm, doom)
            self._advance()
        self._wake.set()

    def kill(self, instance_id: str) -> None:
        """Kill all of a VM's processes, unannounced; peers see its connections close (a fault).

        Like the other faults it raises KeyError for an id that was never launched.
        """
        with self._lock:
            self._end([self._vms[instance_id]], preempted=True)

    def poweroff(self, instance_id: str) -> None:
        """End a VM in silence, where its host can do that (a fault)."""
        with self._lock:
            self._end([self._vms[instance_id]], preempted=True, silently=True)

    def cut(self, instance_id: str) -> None:
        """Cut a VM off from the others (a fault; a process VM is frozen instead)."""
        self._host.cut(self._vms[instance_id])

    def uncut(self, instance_id: str) -> None:
        """Undo `cut`."""
        self._host.uncut(self._vms[instance_id])

    @property
    def metadata(self) -> MetadataServer:
        """The metadata service of the VMs."""
        return self._metadata

    # -- the market's thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._go_on()
        except BaseException as error:
            # The next call of the port raises it: a market that stands still must be noticed.
            self._trouble = error

    def _check(self) -> None:
        if self._trouble is not None:
            raise RetryLaterError(
                f"the local market has stopped: {self._trouble}", hint="run the same command again"
            ) from self._trouble

    def _go_on(self) -> None:
        while not self._closing:
            with self._lock:
                wake_ms = self._advance()
                self._look_after()
                self._note_market()
            rest_s = (wake_ms - self._market.now_ms) / 1000
            self._wake.wait(min(max(rest_s, 0.0), PULSE_S))
            self._wake.clear()

    def _advance(self) -> int:
        """Do what the market has due up to now; return the trace's instant of the next deed."""
        ended = tuple(vm for vm in self._vms.values() if vm.ended_ms is not None)
        due = self._market.due(self._running(), ended)
        by_token = {vm.token: vm for vm in self._running()}
        for departure in due.told:
            self._tell(by_token[departure.token], departure)
        if due.taken:
            self._end([by_token[d.token] for d in due.taken], preempted=True, silently=True)
        return due.wake_ms

    def _tell(self, vm: VmRecord, departure: Departure) -> None:
        self._put(replace(vm, doom=departure))
        if departure.notice_ms is not None:
            gone_ms = self._market.epoch_ms(departure.gone_ms)
            self._metadata.announce(vm.instance_id, gone_ms=gone_ms)

    def _look_after(self) -> None:
        """Begin boots that are due and clear away VMs that have shut themselves down."""
        for boot in list(self._boots.values()):
            with contextlib.suppress(ConfigError):  # listed as ended; console.log says why
                boot()
        stopped = [v for v in self._running() if v.process and not self._host.is_alive(v)]
        if stopped:
            self._end(stopped, preempted=False)
        for vm in list(self._vms.values()):
            if vm.ended_ms is not None and vm.ended_ms < now_ms() - REMEMBERED_MS:
                self._folder.forget(self._vms.pop(vm.instance_id))

    # -- VMs -----------------------------------------------------------------------------------

    def _check_supply(self, request: LaunchRequest) -> None:
        pool, capacity = request.pool, request.capacity
        held = [v for v in self._running() if v.pool == pool and v.capacity is Capacity.SPOT]
        if not self._market.grants(pool, capacity, taken=len(held)):
            raise CapacityError(f"{pool}: no {capacity.value} VM to be had now")
        price = self._market.price(pool, capacity)
        most = request.max_price_micro_usd_h
        if most is not None and price is not None and price > most:
            raise CapacityError(f"{pool}: {price} micro-USD/h is above the maximum of {most}")

    def _new(self, request: LaunchRequest) -> VmRecord:
        number = self._launches
        self._launches += 1
        instance_id = f"local-{number:04d}-{secrets.token_hex(4)}"
        return VmRecord(
            instance_id,
            number,
            request.token,
            request.run,
            request.pool,
            request.capacity,
            launched_ms=now_ms(),
            launched_trace_ms=self._market.now_ms,
            address=self._host.address(number),
            folder=str(self._folder.vms / instance_id),
        )

    def _begin(self, vm: VmRecord, request: LaunchRequest, *, delay_ms: int) -> None:
        """Boot the VM once its trace's boot time, less what booting really takes, has gone by."""
        due_ms = vm.launched_trace_ms + delay_ms
        endpoint = self._host.metadata_endpoint(self._metadata.endpoint(vm.instance_id))
        boot = dict(request.boot) | {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint}
        if self._pace is not None:
            boot["SUREFOOT_PACE"] = str(self._pace)

        def boot_if_due() -> None:
            current = self._vms[vm.instance_id]
            if current.ended_ms is None and self._market.now_ms < due_ms:
                return
            self._boots.pop(vm.instance_id, None)
            if current.ended_ms is not None:
                return
            try:
                process = self._host.boot(current, self._agent, boot)
            except ConfigError:
                self._end([current], preempted=False)
                raise
            self._put(replace(current, process=process))

        self._boots[vm.instance_id] = boot_if_due
        boot_if_due()

    def _identify(self, vm: VmRecord) -> None:
        spot = vm.capacity is Capacity.SPOT
        pool = vm.pool
        self._metadata.add(
            Identity(
                vm.instance_id, pool.instance_type, pool.region, pool.zone, vm.address, is_spot=spot
            )
        )

    def _end(self, vms: Sequence[VmRecord], *, preempted: bool, silently: bool = False) -> None:
        # Written first: should we die in between, the next provider ends what is left of them.
        for vm in vms:
            self._put(self._vms[vm.instance_id].ended(now_ms(), preempted=preempted))
        self._note_market()
        self._host.end(vms, silently=silently)
        for vm in vms:
            self._metadata.remove(vm.instance_id)
            remove_temporary(vm.instance_id)

    def _running(self) -> tuple[VmRecord, ...]:
        return tuple(vm for vm in self._vms.values() if vm.ended_ms is None)

    def _put(self, vm: VmRecord) -> None:
        self._vms[vm.instance_id] = vm
        self._folder.save(vm)

    # -- state ---------------------------------------------------------------------------------

    def _resume(self, trace: Trace) -> ReplayedMarket:
        before = self._folder.load_market()
        elapsed = before.elapsed_ms if before.trace == trace.name else 0
        return ReplayedMarket(trace, elapsed_ms=elapsed)

    def _note_market(self) -> None:
        self._folder.save_market(
            MarketRecord(
                self._market.trace.name,
                self._market.elapsed_ms,
                self._launches,
                self._metadata.port,
            )
        )

    def _adopt(self) -> None:
        """Take over the VMs that still run and end what is left of those that do not."""
        for vm in self._folder.load():
            self._vms[vm.instance_id] = vm
            self._launches = max(self._launches, vm.number + 1)
        lost = [v for v in self._running() if not self._host.is_alive(v)]
        for vm in self._running():
            self._identify(vm)
            if vm.doom is not None and vm not in lost:
                self._tell(vm, vm.doom)
        if lost:
            self._end(lost, preempted=False)
        alive = {vm.folder for vm in self._running()}
        left = processes.marked(f"{self._folder.vms}/") - alive
        self._host.end([v for v in self._vms.values() if v.folder in left], silently=False)
        processes.end(left)  # those whose record was torn or forgotten
        tidy(self._folder, alive)


def _host(vms: str, root: Path) -> Host:
    match vms:
        case "auto" | "process":
            if namespaces.exists(root):  # of an earlier controller that was told otherwise
                NamespaceHost(root).close(kill=True)
            return ProcessHost()
        case "namespace":
            return NamespaceHost(root)
        case _:
            raise ConfigError(
                f"local VMs can be auto, process or namespace, not {vms!r}",
                hint="leave it out for process VMs, which need no root",
            )


def _same(known: VmRecord, request: LaunchRequest) -> VmRecord:
    if (known.run, known.pool, known.capacity) != (request.run, request.pool, request.capacity):
        raise ConfigError(f"token {request.token} was used before, for another kind of VM")
    return known
