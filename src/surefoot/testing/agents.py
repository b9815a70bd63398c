"""Agents and workers that exist on paper: they boot, form groups, step, save and fall silent."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from surefoot.controller.agents import Said, Silent
from surefoot.core.market import Pool
from surefoot.core.wire import (
    Broken,
    Finished,
    Formed,
    Generation,
    Hello,
    Leave,
    Message,
    Noticed,
    Ready,
    Saved,
    SaveNow,
    SetInterval,
    Stepped,
    Stop,
    WorkerExited,
)
from surefoot.providers.base import Vm
from surefoot.testing.clock import FakeClock


class Machines(Protocol):
    """A cloud on paper, as far as the agents in its VMs need it."""

    on_launch: list[Callable[[Vm, int], None]]
    on_end: list[Callable[[Vm, int], None]]
    on_notice: list[Callable[[Vm, int, int], None]]

    def boot(self, pool: Pool) -> tuple[int, float]:
        """Return (time from launch to ready in ms, speed) of a pool's VMs."""

    def advance(self) -> None:
        """Let happen what is due up to the clock's instant."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the workers on paper are; milliseconds.

    One step takes `step_ms` x `num_nodes` / (sum of the members' speeds).
    """

    step_ms: int = 1_000
    num_nodes: int = 1
    reform_ms: int = 2_000
    stall_ms: int = 50
    persist_ms: int = 2_000
    restore_ms: int = 5_000
    detect_ms: int = 0
    """From the end of a VM to the moment at which its agent counts as silent."""


@dataclass(slots=True)
class _Worker:
    token: str
    address: str
    speed: float
    connected: bool = False
    holds: int | None = None
    """The step whose state it has in memory, None for none."""


@dataclass(slots=True)
class _Group:
    order: Generation
    formed: bool = False
    broken: bool = False
    step: int = 0
    stepped_ms: int = -1
    """When its last step was done, -1 before the first."""
    next_ms: int = 0
    """When its next step will be done."""
    epoch: int = 0
    """Raised whenever its schedule changes, so that events of before are void."""


@dataclass(slots=True)
class _Wishes:
    save: bool = False
    emergency_left_ms: int | None = None
    stop: bool = False
    interval_ms: int = 60_000
    work_ms: int = 0
    saving: int = 0


class FakeAgents:
    """Implements Agents for all VMs of a fake cloud, on its clock.

    `total_steps`: Finished is said there. `durable` is the newest durable step.
    """

    def __init__(
        self,
        provider: Machines,
        clock: FakeClock,
        *,
        pace: Pace | None = None,
        total_steps: int | None = None,
        durable: int = 0,
    ) -> None:
        self.provider, self.clock, self.pace = provider, clock, pace or Pace()
        self.total_steps, self.durable = total_steps, durable
        self.workers: dict[str, _Worker] = {}
        self.sent: list[tuple[int, str, Message]] = []
        """(at_ms, token, message) of everything the controller sent."""
        self.never_ready: set[str] = set()
        """Instance ids or tokens whose worker never comes up."""
        self._group: _Group | None = None
        self._wish = _Wishes()
        self._inbox: list[Said | Silent] = []
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = 0
        self._top = durable
        provider.on_launch.append(self._booting)
        provider.on_end.append(self._ended)
        provider.on_notice.append(self._noticed)

    # -- the port --------------------------------------------------------------------------------

    def poll(self) -> list[Said | Silent]:
        """Return what was said up to the clock's instant."""
        self.advance()
        found, self._inbox = self._inbox, []
        return found

    def send(self, token: str, message: Message) -> bool:
        """Deliver a message at once."""
        worker = self.workers.get(token)
        if worker is None or not worker.connected:
            return False
        self.sent.append((self.clock.now_ms(), token, message))
        self._take(worker, message, self.clock.now_ms())
        return True

    def connected(self) -> frozenset[str]:
        """Return the tokens of the VMs that are up."""
        return frozenset(t for t, w in self.workers.items() if w.connected)

    def address(self, token: str) -> str | None:
        """Return the VM's address."""
        worker = self.workers.get(token)
        return worker.address if worker and worker.connected else None

    def wait(self, timeout_s: float) -> None:
        """Return at once: time passes only where the test moves the clock."""

    def wake(self) -> None:
        """Nothing waits."""

    # -- the test's side -------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """How far the group is."""
        return self._group.step if self._group else self.durable

    @property
    def waiting(self) -> bool:
        """Whether something was said that nobody has polled yet."""
        return bool(self._inbox)

    def say(self, token: str, message: Message) -> None:
        """Let an agent say something now."""
        self._say(token, message, self.clock.now_ms())

    def restarted(self) -> None:
        """Let all agents greet a new controller, as after its restart."""
        self._inbox.clear()
        for worker in self.workers.values():
            if worker.connected:
                self.say(worker.token, Hello(worker.token, "", worker.address))

    def next_event_ms(self) -> int | None:
        """Return when something happens next."""
        return self._due[0][0] if self._due else None

    def advance(self) -> None:
        """Let happen what is due up to the clock's instant, in order."""
        self.provider.advance()
        while self._due and self._due[0][0] <= self.clock.now_ms():
            at_ms, _, happens = heapq.heappop(self._due)
            happens(at_ms)

    # -- VMs -------------------------------------------------------------------------------------

    def _booting(self, vm: Vm, at_ms: int) -> None:
        """The agent is there from the launch on; its worker is ready after the boot."""
        boot_ms, speed = self.provider.boot(vm.pool)
        worker = self.workers[vm.token] = _Worker(vm.token, vm.address, speed)
        worker.connected = True
        self._at(at_ms, lambda now: self._say(vm.token, Hello(vm.token, "", vm.address), now))
        if not {vm.token, vm.instance_id} & self.never_ready:
            self._at(at_ms + boot_ms, lambda now: self._up(vm.token, boot_ms, now))

    def _up(self, token: str, boot_ms: int, at_ms: int) -> None:
        if token in self.workers:
            self._say(token, Ready(boot_ms, self.durable), at_ms)

    def _noticed(self, vm: Vm, at_ms: int, deadline_ms: int) -> None:
        worker = self.workers.get(vm.token)
        if worker is not None and worker.connected:
            self._say(vm.token, Noticed(deadline_ms - at_ms, "fake"), at_ms)

    def _ended(self, vm: Vm, at_ms: int) -> None:
        worker = self.workers.pop(vm.token, None)
        if worker is None:
            return
        if worker.connected:
            reason = "connection closed"
            self._at(
                at_ms + self.pace.detect_ms,
                lambda now: self._inbox.append(Silent(vm.token, reason, now)),
            )
        group = self._group
        if group is not None and vm.token in group.order.tokens and not group.broken:
            self._break(group, at_ms)

    def _break(self, group: _Group, at_ms: int) -> None:
        group.broken, was_formed = True, group.formed
        group.epoch += 1
        here = [t for t in group.order.tokens if t in self.workers]
        for token in here if was_formed else ():
            self._say(token, Broken(group.order.number, group.step, "peer lost"), at_ms)
        if not any(self.workers[t].holds is not None for t in here):
            self._wish.saving += 1  # a save that nobody is left to finish is void

    # -- messages from the controller ------------------------------------------------------------

    def _take(self, worker: _Worker, message: Message, at_ms: int) -> None:
        match message:
            case Generation():
                if self._group is None or message.number > self._group.order.number:
                    self._regroup(message, at_ms)
            case SetInterval():
                self._wish.interval_ms = message.interval_ms
            case SaveNow():
                self._wish.save = True
                if message.left_ms is not None:
                    self._wish.emergency_left_ms = at_ms + message.left_ms
                if self._group is None or not self._group.formed:
                    self._wish.save = False
            case Stop():
                self._wish.stop = True
            case Leave():
                self._at(at_ms, lambda now: self._leave(worker.token, now))
            case _:
                pass

    def _leave(self, token: str, at_ms: int) -> None:
        group = self._group
        if group is not None and token in group.order.tokens and group.formed:
            return  # it stays until it is out of the group
        worker = self.workers.get(token)
        if worker is not None and worker.connected:
            worker.holds = None
            self._say(token, WorkerExited(0), at_ms)

    # -- the group -------------------------------------------------------------------------------

    def _regroup(self, order: Generation, at_ms: int) -> None:
        former = self._group
        smooth = former is not None and former.formed and not former.broken and not order.urgent
        self._group = group = _Group(order, step=former.step if former else self.durable)
        if former is not None:
            former.epoch += 1
        wait_ms = 0
        group.epoch += 1
        epoch = group.epoch
        if smooth and former is not None and former.stepped_ms != at_ms:
            wait_ms = max(0, former.next_ms - at_ms)  # to the end of the present step
            group.step = former.step + 1
        self._at(
            at_ms + wait_ms + self.pace.reform_ms,
            lambda now: self._start(group, epoch, at_ms + wait_ms, now),
        )

    def _start(self, group: _Group, epoch: int, since_ms: int, at_ms: int) -> None:
        if group.epoch != epoch or group.broken:
            return
        alive = [t for t in group.order.tokens if t in self.workers]
        if len(alive) < len(group.order.tokens):
            self._break(group, at_ms)
            return
        live = any(self.workers[t].holds is not None for t in alive)
        source = "live" if live else ("checkpoint" if self.durable else "fresh")
        restore_ms = self.pace.restore_ms if source == "checkpoint" else 0
        if not live:
            group.step = self.durable
            self._wish.saving += 1  # its claim on the checkpoints voids what older groups write
        lost = max(0, self._top - group.step)
        self._top = group.step
        first_ms = at_ms + restore_ms + self._step_ms(group.order.tokens)
        formed = Formed(
            generation=group.order.number,
            step=group.step,
            world=len(alive),
            lost_steps=lost,
            source=source,
            reform_ms=at_ms - since_ms,
            restore_ms=restore_ms,
        )
        for token in alive:
            self.workers[token].holds = group.step
        self._at(first_ms, lambda now: self._first_step(group, epoch, formed, now))

    def _first_step(self, group: _Group, epoch: int, formed: Formed, at_ms: int) -> None:
        if group.epoch != epoch or group.broken:
            return
        group.formed = True
        self._say(group.order.tokens[0], formed, at_ms)
        self._stepped(group, epoch, at_ms)

    def _stepped(self, group: _Group, epoch: int, at_ms: int) -> None:
        if group.epoch != epoch or group.broken:
            return
        step_ms = self._step_ms(group.order.tokens)
        group.step += 1
        group.stepped_ms = at_ms
        self._top = max(self._top, group.step)
        self._wish.work_ms += step_ms
        lead = group.order.tokens[0]
        self._say(lead, Stepped(group.step, step_ms), at_ms)
        done = self.total_steps is not None and group.step >= self.total_steps
        stall_ms = 0
        if done or self._wish.stop or self._wish.save or self._is_due():
            stall_ms = self.pace.stall_ms
            self._save(group, at_ms + stall_ms, last=done or self._wish.stop, finished=done)
        if done or self._wish.stop:
            return
        group.next_ms = at_ms + stall_ms + step_ms
        self._at(group.next_ms, lambda now: self._stepped(group, epoch, now))

    def _is_due(self) -> bool:
        return self._wish.work_ms >= self._wish.interval_ms

    def _save(self, group: _Group, at_ms: int, *, last: bool, finished: bool) -> None:
        step, ticket = group.step, self._wish.saving
        deadline = self._wish.emergency_left_ms if self._wish.save else None
        self._wish.save, self._wish.emergency_left_ms, self._wish.work_ms = False, None, 0

        def durable(now: int) -> None:
            if ticket != self._wish.saving:
                return
            self.durable = max(self.durable, step)
            here = [t for t in group.order.tokens if t in self.workers]
            for token in here[:1]:
                self._say(token, self._saved(step, deadline, now), now)
                if finished:
                    self._say(token, Finished(step), now)
            if last:
                for token in here:
                    self._say(token, WorkerExited(0), now)

        self._at(at_ms + self.pace.persist_ms, durable)

    def _saved(self, step: int, deadline: int | None, now: int) -> Saved:
        return Saved(
            step=step,
            stall_ms=self.pace.stall_ms,
            persist_ms=self.pace.persist_ms,
            emergency=deadline is not None,
            margin_ms=None if deadline is None else deadline - now,
        )

    def _step_ms(self, tokens: tuple[str, ...]) -> int:
        speed = sum(self.workers[t].speed for t in tokens if t in self.workers) or 1.0
        return max(1, round(self.pace.step_ms * self.pace.num_nodes / speed))

    def _say(self, token: str, message: Message, at_ms: int) -> None:
        self._inbox.append(Said(token, message, at_ms))

    def _at(self, at_ms: int, happens: Callable[[int], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (at_ms, self._count, happens))
