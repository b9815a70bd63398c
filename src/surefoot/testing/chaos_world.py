"""A whole world round the real controller: its cloud, agents, clocks and store, all failing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.exc import OperationalError

from surefoot.controller import Controller, Settings, Store
from surefoot.controller.store import Journal
from surefoot.core.event import Event, InstanceRequested, RunEnded
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import Job, Limits, Throughput, Work
from surefoot.core.policy import get_policy
from surefoot.errors import FencedError
from surefoot.providers.base import LaunchRequest, Vm
from surefoot.testing.agents import Pace
from surefoot.testing.chaos_agents import LEASE_MS, ChaosAgents, Line
from surefoot.testing.chaos_cloud import NOTICE_MS, POOLS, SPOT_USD, SUPPLY, ChaosCloud
from surefoot.testing.chaos_faults import AT_OPERATIONS, AT_TIMES, Fault
from surefoot.testing.clock import FakeClock

RUN = "storm"
START = 1_800_000_000_000
NODES = 2
MEMORY = "sqlite://"
"""Where the journal is, if nothing else is said: a database within this process."""

TAKEOVER_MS = 11_000
"""How long a stalled controller stands still: longer than its lease."""

SETTINGS = Settings(
    list_lag_ms=20_000,
    request_ms=40_000,
    boot_limit_ms=90_000,
    progress_ms=5_000,
    backoff_ms=5_000,
    backoff_limit_ms=30_000,
    auth_pause_ms=30_000,
    drain_limit_ms=20_000,
    stop_limit_ms=20_000,
)


class Killed(BaseException):
    """The controller's process is gone."""


class Skewed:
    """The clock of one controller's machine: right about durations, perhaps not about the date."""

    def __init__(self, clock: FakeClock, offset_ms: int) -> None:
        self.clock, self.offset_ms = clock, offset_ms

    def now_ms(self) -> int:
        """Return epoch ms as this machine believes."""
        return self.clock.now_ms() + self.offset_ms

    def monotonic_ms(self) -> int:
        """Return ms since an arbitrary start."""
        return self.clock.monotonic_ms()


class Tapped:
    """The cloud as one controller sees it: each launch and terminate is an operation."""

    name = "fake"

    def __init__(self, world: ChaosWorld, number: int) -> None:
        self.world, self.number = world, number
        cloud = world.cloud
        self.offerings, self.list = cloud.offerings, cloud.list
        self.next_change_ms, self.close = cloud.next_change_ms, cloud.close

    def launch(self, request: LaunchRequest) -> Vm:
        """Launch a VM."""
        vm: Vm = self.world.operate(self.number, lambda: self.world.cloud.launch(request))
        return vm

    def terminate(self, instance_id: str) -> None:
        """End a VM."""
        self.world.operate(self.number, lambda: self.world.cloud.terminate(instance_id))


class ChaosWorld:
    """One storm. `wrong` collects what must never be."""

    def __init__(
        self,
        faults: Sequence[Fault],
        *,
        budget_micro_usd: int | None = None,
        journal: str = MEMORY,
    ) -> None:
        self.clock = FakeClock(START)
        self.wrong: list[str] = []
        self.cloud = ChaosCloud(self.clock, faults)
        self.cloud.before_launch = self._check_intent
        pace = Pace(step_ms=2_000, num_nodes=NODES, detect_ms=200)
        self.agents = ChaosAgents(self.cloud, self.clock, pace=pace)
        self.journal = journal
        self.store = Store(journal)
        self._stores = [self.store]
        self._journals: list[Journal] = []
        self.job = Job(
            "storm",
            NODES,
            POOLS,
            Throughput(NODES, NODES + 1),
            limits=Limits(budget_micro_usd=budget_micro_usd, max_vms=NODES + 3),
            work=Work(step_ms=2_000),
        )
        self.controller: Controller | None = None
        self.zombies: list[Controller] = []
        self.line: Line | None = None
        self.number, self.owner = 0, "first"
        self.operations = 0
        self.offset_ms = 0
        self.over = self.stopping = False
        self._restart_ms: int | None = START
        self._by_operation = {f.at: f for f in faults if f.kind in AT_OPERATIONS}
        self._timed = sorted((f for f in faults if f.kind in AT_TIMES), key=lambda f: -f.at)

    # -- the controllers' processes ----------------------------------------------------------------

    def run_until(self, until_ms: int) -> None:
        """Let the world go on to an instant of true time."""
        turns = 0
        while self.clock.now_ms() < until_ms and not self.wrong:
            self._befall()
            wake_ms = self._turn()
            self.agents.advance()
            if self.controller is not None and self.agents.waiting and (turns := turns + 1) < 20:
                continue
            turns = 0
            due = [wake_ms, self.cloud.next_event_ms(), self.agents.next_event_ms()]
            due += [self._restart_ms, until_ms]
            due += [START + self._timed[-1].at] if self._timed else []
            later = min(at for at in due if at is not None)
            self.clock.advance_to(max(later, self.clock.now_ms() + 1))

    def calm(self) -> None:
        """End the storm: from now on everything works."""
        self.cloud.quiet = True
        self._by_operation.clear()
        self._timed.clear()
        self.cloud.supply = dict.fromkeys(POOLS, SUPPLY)
        self.cloud.prices = dict.fromkeys(POOLS, SPOT_USD)
        if self._restart_ms is not None:
            self._restart_ms = self.clock.now_ms()

    def events(self) -> list[Event]:
        """Return the journal."""
        return [event for _, event in self.store.events(RUN)]

    def operate(self, number: int, do: Callable[[], Any], *, write: bool = False) -> Any:
        """Do an operation of controller `number`, or let it go wrong as scheduled."""
        self.operations += 1
        fault = self._by_operation.get(self.operations)
        kind = fault.kind if fault is not None else ""
        if kind == "crash_before":
            raise Killed
        if kind == "store_fails" and write:
            raise OperationalError("chaos", None, OSError("disk full"))
        if kind == "stall_inside":
            self._take_over()
        value = do()
        if write and number < self.number:
            self.wrong.append(f"controller {number} wrote although {self.number} leads")
        if kind == "crash_after":
            raise Killed
        if kind == "commit_unknown" and write:
            raise OperationalError("chaos", None, OSError("no answer"))
        return value

    def _turn(self) -> int | None:
        if self.controller is None and not self.over and self._restart_is_due():
            self._start(self.owner)
        for zombie in self.zombies:
            self._turn_zombie(zombie)
        self.zombies.clear()
        controller = self.controller
        if controller is None:
            return None
        try:
            wake_ms = controller.turn()
        except (Killed, OperationalError):
            self._die(controller, 2_000)
            return self.clock.now_ms()
        except FencedError as error:
            if self.controller is controller:
                self.wrong.append(f"the only controller was fenced: {error}")
            return self.clock.now_ms()  # its successor has the next turn
        if wake_ms is None and self.controller is controller:
            self.over, self.controller = True, None
            return None
        if wake_ms is None or self.controller is not controller:
            return self.clock.now_ms()
        return wake_ms - self.offset_of(controller)

    def offset_of(self, controller: Controller) -> int:
        """Return how far a controller's calendar is from true time."""
        return controller.clock.now_ms() - self.clock.now_ms()

    def _turn_zombie(self, zombie: Controller) -> None:
        calls = len(self.cloud.machines)
        try:
            zombie.turn()
        except (FencedError, Killed, OperationalError):
            if len(self.cloud.machines) == calls:
                return
        self.wrong.append("a deposed controller took a turn")

    def _restart_is_due(self) -> bool:
        return self._restart_ms is not None and self._restart_ms <= self.clock.now_ms()

    def _die(self, controller: Controller, down_ms: int) -> None:
        if self.controller is not controller:
            return
        self.controller, self.line = None, None
        self._restart_ms = self.clock.now_ms() + down_ms
        tail = self.events()[-1:]
        if tail and isinstance(tail[0], RunEnded):
            self.over = True  # nobody starts a run again that is over; leases end what is left

    def _start(self, owner: str) -> bool:
        line, former = Line(self), self.line
        self.line = line
        try:
            number = self.number + 1
            controller = Controller(
                self.job,
                Tapped(self, number),
                agents=line,
                store=self._store(),
                clock=Skewed(self.clock, self.offset_ms),
                policy=get_policy("greedy"),
                forecaster=get_forecaster("gamma_poisson"),
                run=RUN,
                settings=SETTINGS,
                owner=owner,
            )
        except FencedError:
            self.line = former
            self._restart_ms = self.clock.now_ms() + 1_000
            return False
        self.number, self.controller, self._restart_ms = number, controller, None
        self.owner = owner
        self._tap(controller.record.journal, number)
        self.agents.restarted()
        if self.stopping:
            controller.request_stop()
        return True

    def _store(self) -> Store:
        """Return a store for one more controller: connections of its own, if there can be any."""
        if self.journal == MEMORY:
            return self.store
        self._stores.append(Store(self.journal))
        return self._stores[-1]

    def close(self) -> None:
        """Let go of all stores, and of the connections that dead controllers left."""
        for journal in self._journals:
            journal.abandon()
        for store in self._stores:
            store.close()

    def _tap(self, journal: Journal, number: int) -> None:
        """Make each write of a journal an operation."""
        self._journals.append(journal)

        def tapped(write: Callable[..., Any]) -> Callable[..., Any]:
            def operation(*args: Any, **terms: Any) -> Any:
                return self.operate(number, lambda: write(*args, **terms), write=True)

            return operation

        for name in ("extend", "renew", "next_generation"):
            setattr(journal, name, tapped(getattr(journal, name)))

    def _take_over(self) -> None:
        """Let the present controller stand still until another has its lease, then go on."""
        stalled = self.controller
        if stalled is None:
            return
        self.clock.advance_to(self.clock.now_ms() + TAKEOVER_MS)
        if not self._start(f"other-{self.number}"):
            self._restart_ms = None
            return
        self._turn()
        self.zombies.append(stalled)

    # -- misfortunes -------------------------------------------------------------------------------

    def _befall(self) -> None:
        while self._timed and START + self._timed[-1].at <= self.clock.now_ms():
            self._suffer(self._timed.pop())

    def _suffer(self, fault: Fault) -> None:
        vms = self.cloud.running()
        token = vms[fault.pick % len(vms)].token if vms else ""
        pool, span = POOLS[fault.pick % 2], fault.span_ms
        match fault.kind:
            case "supply":
                self.cloud.squeeze(pool, fault.pick % (SUPPLY + 1))
            case "price":
                self.cloud.prices[pool] = SPOT_USD * (1 + fault.pick % 4)
            case "jump_back":
                self.offset_ms -= span * 60
            case "jump_forward":
                self.offset_ms += span * 10
            case "kill" if self.controller is not None:
                self._die(self.controller, span)
            case "rival":
                self._rival()
            case "stall":
                self._take_over()
            case _ if token:
                self._hit(fault.kind, token, span)

    def _hit(self, kind: str, token: str, span: int) -> None:
        cloud = self.cloud
        match kind:
            case "notice":
                cloud.notice(token, NOTICE_MS, take_ms=NOTICE_MS)
            case "late_notice":
                cloud.notice(token, span // 20, take_ms=span // 20)
            case "early_notice":
                cloud.notice(token, 2 * NOTICE_MS, take_ms=2 * NOTICE_MS)
            case "broken_notice":  # taken before the time that it was promised
                cloud.notice(token, NOTICE_MS, take_ms=span % NOTICE_MS)
            case "false_notice":
                cloud.notice(token, span, take_ms=None)
            case "double_notice":
                cloud.notice(token, NOTICE_MS, take_ms=NOTICE_MS)
                cloud.notice(token, NOTICE_MS, take_ms=None)
            case "moved_notice":
                cloud.notice(token, NOTICE_MS, take_ms=None)
                cloud.at(
                    cloud.clock.now_ms() + span // 2,
                    lambda now: cloud.notice(token, span // 4, take_ms=span // 4),
                )
            case "silent_loss":
                cloud.take(token)
            case "unseen_loss":
                self._unseen(token)
            case "mute":
                self.agents.mute(token, span)
            case "worker_crash":
                self.agents.crash_worker(token)

    def _unseen(self, token: str) -> None:
        """End a VM whose connections hang: its agent is missed by its beats only."""
        machine = self.cloud.machines[token]
        self.agents.mute(token, LEASE_MS * 10)
        machine.taken = True
        self.cloud.end(machine.vm.instance_id, preempted=True)

    def _rival(self) -> None:
        """Somebody starts the run a second time while it is led: that must be refused."""
        leader = self.controller
        if leader is None or self.offset_of(leader) < self.offset_ms:
            return
        now_ms = self.clock.now_ms() + self.offset_ms
        try:
            self.store.acquire(RUN, "rival", now_ms=now_ms)
        except FencedError:
            return
        self.wrong.append("a live lease was taken")

    def _check_intent(self, request: LaunchRequest) -> None:
        """Each call must be about a VM whose intent is in the journal, once."""
        written = [e for e in self.events() if isinstance(e, InstanceRequested)]
        if request.token not in {e.token for e in written}:
            self.wrong.append(f"launched {request.token} before its intent was written")
