"""A cloud on paper for storms: it obeys scheduled faults, and remembers what it really did."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.errors import AuthError, CapacityError, RetryLaterError, ThrottledError
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.testing.chaos_faults import AT_CALLS, AT_LOOKS, Fault
from surefoot.testing.clock import FakeClock

POOLS = (Pool("fake", "r1", "a", "gpu"), Pool("fake", "r1", "b", "gpu"))
SPOT_USD, DEMAND_USD = 1_000_000, 3_000_000
BOOT_MS = 20_000
NOTICE_MS = 60_000
SUPPLY = 4


@dataclass(slots=True)
class Machine:
    """One VM as it really is."""

    vm: Vm
    price_micro_usd_h: int
    noticed: bool = False
    taken: bool = False


class ChaosCloud:
    """Implements Provider and Machines. All instants are true time, whatever a controller reads.

    Tokens are kept apart by the cloud: the same token gives the same VM. Spot is limited by
    pool, on-demand is not.
    """

    name = "fake"

    def __init__(self, clock: FakeClock, faults: Sequence[Fault]) -> None:
        self.clock = clock
        self.machines: dict[str, Machine] = {}
        self.supply = dict.fromkeys(POOLS, SUPPLY)
        self.prices = dict.fromkeys(POOLS, SPOT_USD)
        self.on_launch: list[Callable[[Vm, int], None]] = []
        self.on_end: list[Callable[[Vm, int], None]] = []
        self.on_notice: list[Callable[[Vm, int, int], None]] = []
        self.before_launch: Callable[[LaunchRequest], None] = lambda request: None
        self.quiet = False
        """Whether faults are over."""
        self._calls = {f.at: f for f in faults if f.kind in AT_CALLS}
        self._looks = {f.at: f for f in faults if f.kind in AT_LOOKS}
        self._called = self._looked = 0
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = 0
        self._shown: list[tuple[int, list[Vm]]] = []

    # -- the port ------------------------------------------------------------------------------

    def offerings(self) -> Sequence[Offering]:
        """Return the present prices."""
        self._look()
        found = [Offering(p, Capacity.SPOT, price) for p, price in self.prices.items()]
        return (*found, *(Offering(p, Capacity.ON_DEMAND, DEMAND_USD) for p in POOLS))

    def launch(self, request: LaunchRequest) -> Vm:
        """Launch a VM, or go wrong as scheduled; the same token gives the same VM."""
        self.before_launch(request)
        fault = self._fault()
        match fault.kind if fault else "":
            case "refuse":
                raise CapacityError("chaos: none left")
            case "auth":
                raise AuthError("chaos: credentials refused")
            case "late":
                self.at(self._in(fault), lambda now: self._make_quietly(request))
                raise RetryLaterError("chaos: timed out")
            case "twice":  # the network delivered the request twice
                self._make(request)
            case "lost":
                self._make_quietly(request)
        self._raise(fault)
        return self._make(request)

    def terminate(self, instance_id: str) -> None:
        """End a VM, or go wrong as scheduled."""
        fault = self._fault()
        if fault is not None and fault.kind == "late":
            self.at(self._in(fault), lambda now: self.end(instance_id))
            raise RetryLaterError("chaos: timed out")
        if fault is not None and fault.kind == "lost":
            self.end(instance_id)
        self._raise(fault)
        self.end(instance_id)

    def list(self, run: str) -> Sequence[Vm]:
        """Return the run's VMs; a scheduled fault hides some or shows an old list."""
        fault = self._look()
        vms = [m.vm for m in self.machines.values() if m.vm.run == run]
        self._shown.append((self.clock.now_ms(), vms))
        if fault is None:
            return vms
        if fault.kind == "hides":
            return [vm for i, vm in enumerate(vms) if (i + fault.pick) % 2]
        old_ms = self.clock.now_ms() - fault.span_ms
        return next((v for at, v in reversed(self._shown) if at <= old_ms), [])

    def next_change_ms(self) -> int | None:
        """Return None: this cloud does not know."""
        return None

    def close(self) -> None:
        """Nothing to let go of."""

    # -- what the world does to it ---------------------------------------------------------------

    def boot(self, pool: Pool) -> tuple[int, float]:
        """Return (boot time in ms, speed)."""
        return BOOT_MS + (1_500 if pool is POOLS[1] else 0), 1.0

    def at(self, at_ms: int, happens: Callable[[int], None]) -> None:
        """Let something happen at an instant of true time."""
        self._count += 1
        heapq.heappush(self._due, (at_ms, self._count, happens))

    def next_event_ms(self) -> int | None:
        """Return when something happens next."""
        return self._due[0][0] if self._due else None

    def advance(self) -> None:
        """Let happen what is due."""
        while self._due and self._due[0][0] <= self.clock.now_ms():
            at_ms, _, happens = heapq.heappop(self._due)
            happens(at_ms)

    def running(self) -> Sequence[Vm]:
        """Return the VMs that cost money now."""
        return [m.vm for m in self.machines.values() if m.vm.state is not VmState.ENDED]

    def cost_micro_usd(self) -> int:
        """Return what all VMs have really cost so far."""
        now_ms = self.clock.now_ms()
        total = 0
        for m in self.machines.values():
            until = now_ms if m.vm.ended_ms is None else m.vm.ended_ms
            total += m.price_micro_usd_h * (until - m.vm.launched_ms) // 3_600_000
        return total

    def notice(self, token: str, left_ms: int, *, take_ms: int | None) -> None:
        """Warn a VM; take it after `take_ms`, or never."""
        machine, now_ms = self.machines[token], self.clock.now_ms()
        if machine.vm.state is VmState.ENDED:
            return
        machine.noticed = True
        for listener in self.on_notice:
            listener(machine.vm, now_ms, now_ms + left_ms)
        if take_ms is not None:
            self.at(now_ms + take_ms, lambda now: self.take(token))

    def take(self, token: str) -> None:
        """Preempt a VM."""
        machine = self.machines[token]
        if machine.vm.state is not VmState.ENDED:
            machine.taken = True
            self.end(machine.vm.instance_id, preempted=True)

    def squeeze(self, pool: Pool, supply: int) -> None:
        """Change a pool's supply; the surplus is warned, then taken, youngest first."""
        self.supply[pool] = supply
        held = [m for m in self._spot(pool) if not m.noticed]
        for machine in held[supply:]:
            self.notice(machine.vm.token, NOTICE_MS, take_ms=NOTICE_MS)

    def end(self, instance_id: str, *, preempted: bool = False, told: bool = True) -> None:
        """End a VM; `told` False: its agent's connection hangs instead of closing."""
        for machine in self.machines.values():
            vm = machine.vm
            if vm.instance_id == instance_id and vm.state is not VmState.ENDED:
                now_ms = self.clock.now_ms()
                ended = replace(vm, state=VmState.ENDED, ended_ms=now_ms, preempted=preempted)
                machine.vm = ended
                for listener in self.on_end if told else ():
                    listener(ended, now_ms)

    # -- inside --------------------------------------------------------------------------------

    def _in(self, fault: Fault | None) -> int:
        return self.clock.now_ms() + (fault.span_ms if fault else 0)

    def _fault(self) -> Fault | None:
        self._called += 1
        return None if self.quiet else self._calls.get(self._called)

    def _look(self) -> Fault | None:
        self._looked += 1
        fault = None if self.quiet else self._looks.get(self._looked)
        if fault is not None and fault.kind == "look_throttled":
            raise ThrottledError("chaos: too many calls")
        if fault is not None and fault.kind == "look_fails":
            raise RetryLaterError("chaos: no answer")
        return fault

    def _raise(self, fault: Fault | None) -> None:
        match fault.kind if fault else "":
            case "throttle" | "auth":
                raise ThrottledError("chaos: too many calls")
            case "lost" | "unheard":
                raise RetryLaterError("chaos: no reply")

    def _make_quietly(self, request: LaunchRequest) -> None:
        """Do what a call whose reply nobody hears does."""
        try:
            self._make(request)
        except CapacityError:
            return

    def _make(self, request: LaunchRequest) -> Vm:
        known = self.machines.get(request.token)
        if known is not None:
            return known.vm
        spot = request.capacity is Capacity.SPOT
        if spot and len(self._spot(request.pool)) >= self.supply[request.pool]:
            raise CapacityError("chaos: no spot")
        now_ms, number = self.clock.now_ms(), len(self.machines) + 1
        vm = Vm(
            instance_id=f"i-{number}",
            token=request.token,
            run=request.run,
            pool=request.pool,
            capacity=request.capacity,
            state=VmState.RUNNING,
            launched_ms=now_ms,
            address=f"10.0.0.{number}",
        )
        price = self.prices[request.pool] if spot else DEMAND_USD
        self.machines[request.token] = Machine(vm, price)
        for listener in self.on_launch:
            listener(vm, now_ms)
        return vm

    def _spot(self, pool: Pool) -> Sequence[Machine]:
        return [
            m
            for m in self.machines.values()
            if m.vm.pool == pool
            and m.vm.capacity is Capacity.SPOT
            and m.vm.state is not VmState.ENDED
        ]
