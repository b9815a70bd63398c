"""A cloud on a fake clock: a market that replays a trace, with every fault a test may want."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.replay import Departure, Replay
from surefoot.core.trace import Trace
from surefoot.errors import CapacityError, RetryLaterError, SurefootError, ThrottledError
from surefoot.providers.base import LaunchRequest, Vm, VmState
from surefoot.testing.clock import FakeClock

HORIZON_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Fault:
    """What one coming call does instead of working.

    `call`: launch | terminate | list | offerings. `done`: the call takes effect although it
    raises (a lost reply), after `late_ms`.
    """

    call: str
    error: SurefootError
    done: bool = False
    late_ms: int = 0


@dataclass(frozen=True, slots=True)
class Odds:
    """Random faults by call, drawn from a seed: the shares of calls that go wrong."""

    seed: int
    throttled: float = 0.0
    lost_reply: float = 0.0
    refused: float = 0.0


@dataclass(slots=True)
class _Machine:
    vm: Vm
    shown_ms: int
    doom: Departure | None = None
    boot: dict[str, str] = field(default_factory=dict)


class FakeProvider:
    """Implements Provider. `list_lag_ms`: a VM shows up in lists only that long after launch.

    Listeners get (vm, at_ms) as things happen on the fake clock: `on_launch`, `on_end`, and
    `on_notice` with the deadline as third value.
    """

    def __init__(
        self,
        trace: Trace,
        clock: FakeClock,
        *,
        list_lag_ms: int = 0,
        odds: Odds | None = None,
        name: str = "fake",
    ) -> None:
        self.name = name
        self.trace, self.clock, self.replay = trace, clock, Replay(trace)
        self.list_lag_ms = list_lag_ms
        self.faults: list[Fault] = []
        self.machines: dict[str, _Machine] = {}
        """All VMs ever made, by token."""
        self.calls: list[tuple[int, str, str]] = []
        """(at_ms, call, token or id) of every call, for assertions."""
        self.on_launch: list[Callable[[Vm, int], None]] = []
        self.on_end: list[Callable[[Vm, int], None]] = []
        self.on_notice: list[Callable[[Vm, int, int], None]] = []
        self._odds = odds
        self._rng = np.random.default_rng(odds.seed if odds else 0)
        self._settled_ms = clock.now_ms() - 1
        self._late: list[tuple[int, LaunchRequest]] = []
        self._horizon_ms = HORIZON_MS + max((p.notice_ms for p in trace.pools.values()), default=0)

    # -- the port --------------------------------------------------------------------------------

    def offerings(self) -> Sequence[Offering]:
        """Return what the trace sells now."""
        self._called("offerings", "")
        return self.replay.offerings(self.clock.now_ms())

    def launch(self, request: LaunchRequest) -> Vm:
        """Launch a VM as the trace grants it; the same token gives the same VM."""
        fault = self._called("launch", request.token, may_refuse=True)
        if fault is not None:
            if fault.done:
                self._late.append((self.clock.now_ms() + fault.late_ms, request))
                self.advance()
            raise fault.error
        return self._make(request)

    def terminate(self, instance_id: str) -> None:
        """End a VM now; unknown and ended ones are no error."""
        fault = self._called("terminate", instance_id)
        if fault is None or fault.done:
            self._end(instance_id, self.clock.now_ms(), preempted=False)
        if fault is not None:
            raise fault.error

    def list(self, run: str) -> Sequence[Vm]:
        """Return the run's VMs that already show, ended ones for an hour."""
        self._called("list", run)
        now_ms = self.clock.now_ms()
        return [
            m.vm
            for m in self.machines.values()
            if m.vm.run == run
            and m.shown_ms <= now_ms
            and (m.vm.ended_ms is None or now_ms - m.vm.ended_ms < 3_600_000)
        ]

    def next_change_ms(self) -> int | None:
        """Return when a price, a supply or a reclaim of the trace comes next."""
        return self.replay.next_change_ms(self.clock.now_ms())

    def close(self) -> None:
        """Nothing to let go of."""

    # -- the test's side -------------------------------------------------------------------------

    def fail(self, *faults: Fault) -> None:
        """Let coming calls go wrong, each fault once, in this order per kind of call."""
        self.faults += faults

    def boot(self, pool: Pool) -> tuple[int, float]:
        """Return (boot time in ms, speed) of a pool's VMs, from the trace."""
        record = self.replay.record(pool)
        return (record.boot_ms, record.speed) if record else (0, 1.0)

    def running(self) -> Sequence[Vm]:
        """Return the VMs that cost money now."""
        self.advance()
        return [m.vm for m in self.machines.values() if m.vm.state is not VmState.ENDED]

    def advance(self) -> None:
        """Let the market do what is due up to the clock's instant."""
        now_ms = self.clock.now_ms()
        for due in [d for d in self._late if d[0] <= now_ms]:
            self._late.remove(due)
            with contextlib.suppress(CapacityError):  # none is left by then: no VM comes of it
                self._make(due[1])
        if now_ms < self._settled_ms:
            return
        for departure in self._coming(self._settled_ms, now_ms):
            machine = self.machines[departure.token]
            if departure.gone_ms <= now_ms:
                self._tell(machine, departure)
                self._end(machine.vm.instance_id, departure.gone_ms, preempted=True)
            elif departure.notice_ms is not None and departure.notice_ms <= now_ms:
                self._tell(machine, departure)
        self._settled_ms = now_ms

    def next_event_ms(self) -> int | None:
        """Return when the market does something to a VM next, notices included."""
        now_ms = self.clock.now_ms()
        due = [at for at, _ in self._late]
        for d in self._coming(self._settled_ms, now_ms):
            told = self.machines[d.token].doom is not None or d.notice_ms is None
            due.append(d.gone_ms if told else max(d.notice_ms or 0, now_ms + 1))
        return min((at for at in due if at > now_ms), default=None)

    def _called(self, call: str, what: str, *, may_refuse: bool = False) -> Fault | None:
        self.advance()
        self.calls.append((self.clock.now_ms(), call, what))
        for fault in self.faults:
            if fault.call == call:
                self.faults.remove(fault)
                if call in ("list", "offerings"):
                    raise fault.error
                return fault
        return self._drawn(call, may_refuse=may_refuse)

    def _drawn(self, call: str, *, may_refuse: bool) -> Fault | None:
        odds = self._odds
        if odds is None:
            return None
        draw = float(self._rng.random())
        if draw < odds.throttled:
            if call in ("list", "offerings"):
                raise ThrottledError("fake: too many calls")
            return Fault(call, ThrottledError("fake: too many calls"))
        if call in ("list", "offerings"):
            return None
        if draw < odds.throttled + odds.lost_reply:
            late_ms = int(self._rng.integers(0, 5_000))
            return Fault(call, RetryLaterError("fake: no reply"), True, late_ms)
        if may_refuse and draw < odds.throttled + odds.lost_reply + odds.refused:
            return Fault(call, CapacityError("fake: none left"))
        return None

    def _make(self, request: LaunchRequest) -> Vm:
        known = self.machines.get(request.token)
        if known is not None:
            return known.vm
        now_ms = self.clock.now_ms()
        held = self._held(request.pool)
        if not self.replay.grants(request.pool, request.capacity, now_ms, taken=len(held)):
            raise CapacityError(f"{request.pool} has no {request.capacity.value} VM to give")
        number = len(self.machines) + 1
        vm = Vm(
            instance_id=f"i-{number:05d}",
            token=request.token,
            run=request.run,
            pool=request.pool,
            capacity=request.capacity,
            state=VmState.RUNNING,
            launched_ms=now_ms,
            address=f"10.0.{number // 250}.{number % 250 + 1}",
        )
        shown_ms = now_ms + self.list_lag_ms
        self.machines[request.token] = _Machine(vm, shown_ms, boot=dict(request.boot))
        for listener in self.on_launch:
            listener(vm, now_ms)
        return vm

    def _end(self, instance_id: str, at_ms: int, *, preempted: bool) -> None:
        for machine in self.machines.values():
            vm = machine.vm
            if vm.instance_id == instance_id and vm.state is not VmState.ENDED:
                machine.vm = replace(vm, state=VmState.ENDED, ended_ms=at_ms, preempted=preempted)
                for listener in self.on_end:
                    listener(machine.vm, at_ms)

    def _tell(self, machine: _Machine, departure: Departure) -> None:
        if machine.doom is not None or departure.notice_ms is None:
            return
        machine.doom = departure
        for listener in self.on_notice:
            listener(machine.vm, max(departure.notice_ms, self._settled_ms), departure.gone_ms)

    def _held(self, pool: Pool) -> Sequence[tuple[str, int]]:
        return [
            (m.vm.token, m.vm.launched_ms)
            for m in self.machines.values()
            if m.vm.pool == pool
            and m.vm.capacity is Capacity.SPOT
            and m.vm.state is not VmState.ENDED
        ]

    def _coming(self, from_ms: int, now_ms: int) -> Sequence[Departure]:
        found: list[Departure] = []
        for pool in self.replay.pools:
            held = self._held(pool)
            if held:
                doomed = [d for t, _ in held if (d := self.machines[t].doom) is not None]
                until_ms = now_ms + self._horizon_ms
                found += self.replay.departures(pool, held, from_ms, until_ms, doomed=doomed)
        return sorted(found, key=lambda d: (d.gone_ms, d.token))
