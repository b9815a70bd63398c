"""The ssh provider: a list of hosts as a cloud whose VMs are agents started over ssh."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import usd
from surefoot.errors import CapacityError, ConfigError, RetryLaterError, SurefootError
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.providers.notice import now_ms as wall_ms
from surefoot.providers.ssh import remote
from surefoot.providers.ssh.line import Lines, reach
from surefoot.providers.ssh.settings import SshHost, SshSettings

AT_ONCE = 32
"""Hosts that are asked at the same time."""


@dataclass(slots=True)
class _Seen:
    """What was last known of one host; `at_ms` is when it answered last (0: never)."""

    vms: tuple[Vm, ...] = ()
    at_ms: int = 0
    trouble: str = ""


class SshProvider:
    """Implements Provider over hosts that you already have; each is one VM at a time.

    A host keeps the record of its VMs itself, so that any controller finds them. A host that
    does not answer keeps its last known state for `lost_ms`, then its VM counts as gone: taken
    back, if the host is preemptible. Should it come back, its VM is ended as nobody's.
    """

    def __init__(self, settings: SshSettings, *, now_ms: Callable[[], int] = wall_ms) -> None:
        self.settings = settings
        self._now_ms = now_ms
        self._lines = Lines(settings)
        self._seen = {host.name: _Seen() for host in settings.hosts}
        self._asked: dict[str, str] = {}
        """Token -> host that was asked for it, whether or not the answer came."""

    @property
    def name(self) -> str:
        """Registered name."""
        return "ssh"

    def offerings(self) -> Sequence[Offering]:
        """Return each pool once by capacity, with the hosts that are free as far as known."""
        found: dict[tuple[Pool, Capacity], Offering] = {}
        for host in self.settings.hosts:
            key = (host.pool, host.capacity)
            before = found.get(key) or Offering(*key, host.price, available=0)
            free = int(self._is_free(host))
            found[key] = replace(before, available=(before.available or 0) + free)
        return tuple(found[key] for key in sorted(found, key=lambda k: (k[0], k[1].value)))

    def launch(self, request: LaunchRequest) -> Vm:
        """Start the agent on a free host of the pool; the same token again is the same VM.

        Raises CapacityError when no host of the pool is free, RetryLaterError when the host that
        may hold the token does not answer.
        """
        hosts = self._choice(request)
        self._look(hosts)
        known = [vm for vm in self._all(hosts) if vm.token == request.token]
        known = [vm for vm in known if vm.run == request.run]
        if known:
            return _same(known[0], request)
        asked = self._asked.get(request.token)
        if asked is not None and self._seen[asked].trouble:
            raise RetryLaterError(f"{asked} was asked for {request.token} and does not answer now")
        self._check_price(request, hosts)
        for host in hosts:
            if host.capacity is request.capacity and self._is_free(host):
                vm = self._start(host, request)
                if vm is not None:
                    return vm
        raise CapacityError(f"{request.pool}: no {request.capacity.value} host is free")

    def terminate(self, instance_id: str) -> None:
        """End a VM: every process that it has. Ending an ended or unknown VM is no error.

        Raises RetryLaterError when its host does not answer.
        """
        host = self._host_of(instance_id)
        if host is not None:
            program = remote.end(host.folder, now_ms=self._now_ms(), id=instance_id)
            self._lines.run(host, program)

    def list(self, run: str) -> Sequence[Vm]:
        """Return the run's VMs on all hosts, in order of launch.

        Raises RetryLaterError when no host at all answers: then nothing is known.
        """
        return [vm for vm in self.list_all() if vm.run == run]

    def list_all(self) -> Sequence[Vm]:
        """Return the VMs of all runs, as `list` does."""
        self._look(self.settings.hosts)
        troubles = [seen.trouble for seen in self._seen.values()]
        if all(troubles):
            raise RetryLaterError(f"no host answers: {troubles[0]}")
        found = self._all(self.settings.hosts)
        return sorted(found, key=lambda vm: (vm.launched_ms, vm.instance_id))

    def next_change_ms(self) -> int | None:
        """Return None: owners do not say when they want their hosts back."""
        return None

    def close(self) -> None:
        """Close the connections; VMs keep running."""
        self._lines.close()

    def price_of(self, vm: Vm) -> int | None:
        """Return what the hosts of the VM's pool are said to cost, micro-dollars per hour."""
        prices = (h.price for h in self.settings.hosts if h.pool == vm.pool)
        return next(prices, None)

    def terminate_all(self, instance_ids: Sequence[str]) -> Mapping[str, SurefootError]:
        """End VMs, each by a call to its host; return what stood in the way, by VM."""
        failed: dict[str, SurefootError] = {}
        for each in instance_ids:
            try:
                self.terminate(each)
            except SurefootError as error:
                failed[each] = error
        return failed

    def login(self, instance_id: str) -> Sequence[str]:
        """Return the command that opens a shell on a VM's host. Raises ConfigError."""
        host = self._host_of(instance_id)
        if host is None:
            raise ConfigError(f"{instance_id} is on none of the job's hosts")
        return [*self.settings.ssh, *reach(host)]

    @property
    def trouble(self) -> tuple[str, ...]:
        """Which hosts do not answer, and why, for people."""
        return tuple(sorted(seen.trouble for seen in self._seen.values() if seen.trouble))

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools of the hosts."""
        return tuple(sorted({host.pool for host in self.settings.hosts}))

    # -- looking ---------------------------------------------------------------------------------

    def _look(self, hosts: Iterable[SshHost]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as crew:
            list(crew.map(self._look_at, hosts))

    def _look_at(self, host: SshHost) -> None:
        seen, now_ms = self._seen[host.name], self._now_ms()
        try:
            said = self._lines.run(host, remote.show(host.folder, now_ms=now_ms))
        except SurefootError as error:
            seen.trouble = f"{error} {error.hint}".strip()
            if seen.at_ms and now_ms - seen.at_ms > self.settings.lost_ms:
                seen.vms = tuple(_lost(vm, host, seen.at_ms) for vm in seen.vms)
            return
        seen.vms, seen.at_ms, seen.trouble = _read(said, host), now_ms, ""

    def _all(self, hosts: Iterable[SshHost]) -> Sequence[Vm]:
        return [vm for host in hosts for vm in self._seen[host.name].vms]

    def _is_free(self, host: SshHost) -> bool:
        seen = self._seen[host.name]
        return not seen.trouble and all(vm.state is VmState.ENDED for vm in seen.vms)

    def _host_of(self, instance_id: str) -> SshHost | None:
        named = (h for h in self.settings.hosts if instance_id.startswith(f"ssh-{h.name}-"))
        exact = (h for h in named if len(instance_id) == len(_id(h, "", "")))
        return next(exact, None)

    # -- launching -------------------------------------------------------------------------------

    def _choice(self, request: LaunchRequest) -> tuple[SshHost, ...]:
        hosts = tuple(host for host in self.settings.hosts if host.pool == request.pool)
        if not hosts:
            raise ConfigError(f"{request.pool}: no host is in this pool")
        return hosts

    def _check_price(self, request: LaunchRequest, hosts: Iterable[SshHost]) -> None:
        most = request.max_price_micro_usd_h
        prices = [host.price for host in hosts if host.capacity is request.capacity]
        if most is not None and prices and prices[0] > most:
            raise CapacityError(f"{request.pool}: ${usd(prices[0]):g}/h is above the maximum")

    def _start(self, host: SshHost, request: LaunchRequest) -> Vm | None:
        """Return the VM; None when another controller was faster on that host."""
        now_ms = self._now_ms()
        record = {
            "id": _id(host, request.run, request.token),
            "token": request.token,
            "run": request.run,
            "launched_ms": now_ms,
        }
        program = remote.start(
            host.folder,
            now_ms=now_ms,
            id=str(record["id"]),
            record=json.dumps(record),
            boot=self._boot(host, request),
        )
        self._asked[request.token] = host.name
        said = self._lines.run(host, program)
        seen = self._seen[host.name]
        if "busy" in said.splitlines():
            self._look_at(host)
            return None
        (vm,) = _read(said, host)
        seen.vms = (*seen.vms, vm)
        return vm

    def _boot(self, host: SshHost, request: LaunchRequest) -> str:
        """Return the script that runs the agent with its environment."""
        boot = {"SUREFOOT_ADDRESS": host.address or host.target, **request.boot}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(boot.items())]
        python = self.settings.python
        return "\n".join(
            [
                *lines,
                '[ -z "${SUREFOOT_WORKDIR:-}" ] || mkdir -p "$SUREFOOT_WORKDIR"',
                f"( {self.settings.install.replace('{python}', python)}\n) || exit 1",
                f"exec {python} -m surefoot.train.agent",
            ]
        )


def _id(host: SshHost, run: str, token: str) -> str:
    """Return the id of a run's VM on a host: the same token there is the same VM."""
    return f"ssh-{host.name}-{hashlib.sha256(f'{run}/{token}'.encode()).hexdigest()[:16]}"


def _read(said: str, host: SshHost) -> tuple[Vm, ...]:
    """Return the VMs in a host's answer; a torn record is left out."""
    found = []
    for line in said.splitlines():
        kind, _, rest = line.partition(" ")
        if kind != "vm":
            continue
        try:
            body, end = json.JSONDecoder().raw_decode(rest)
            found.append(_vm(host, body, rest[end:].split()))
        except (ValueError, KeyError, IndexError):
            continue
    return tuple(found)


def _vm(host: SshHost, body: dict[str, str], state: list[str]) -> Vm:
    ended = state[0] == "ended"
    states = {"starting": VmState.PENDING, "running": VmState.RUNNING, "ended": VmState.ENDED}
    return Vm(
        instance_id=body["id"],
        token=body["token"],
        run=body["run"],
        pool=host.pool,
        capacity=host.capacity,
        state=states[state[0]],
        launched_ms=int(body["launched_ms"]),
        address=host.address or host.target,
        ended_ms=int(state[1]) if ended else None,
        # Its owner ended it: neither we did, nor has the agent come to its own end.
        preempted=ended and state[2] == "killed" and host.preemptible,
    )


def _lost(vm: Vm, host: SshHost, at_ms: int) -> Vm:
    if vm.state is VmState.ENDED:
        return vm
    return replace(vm, state=VmState.ENDED, ended_ms=at_ms, preempted=host.preemptible)


def _same(known: Vm, request: LaunchRequest) -> Vm:
    if (known.pool, known.capacity) != (request.pool, request.capacity):
        raise ConfigError(f"token {request.token} was used before, for another kind of VM")
    return known
