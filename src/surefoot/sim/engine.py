"""The event-driven simulator: a recorded market, a modelled fleet, and the live decision code."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.core.account import Account
from surefoot.core.attention import ROUNDS, Mind, is_news
from surefoot.core.backoff import Backoff
from surefoot.core.decide import Observation, Policy
from surefoot.core.event import (
    Decided,
    DrainStarted,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    LaunchFailed,
    OfferingsSeen,
    RunEnded,
    RunStarted,
    State,
)
from surefoot.core.fleet import HELD, Ending, Instance, InstanceState
from surefoot.core.floor import FloorWatch
from surefoot.core.forecast.port import Forecaster
from surefoot.core.job import Job
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.plan import Checkpoint, Decision, Drain, Launch, Resize, Terminate
from surefoot.core.replay import Replay
from surefoot.core.trace import History
from surefoot.core.units import charge_micro_usd
from surefoot.sim.crew import Books, Crew
from surefoot.sim.model import CostModel, Dice
from surefoot.sim.world import World

FRUITLESS_LAUNCHES = 10_000
"""VMs granted without a single step done in between: no progress is possible."""

WIND_DOWN_MS = 30_000
"""Time to save and end a fleet that a budget must still pay for (as in the live controller)."""

PATIENT = (InstanceState.STARTING, InstanceState.READY, InstanceState.NOTICED)


@dataclass(slots=True)
class Setup:
    """What one simulation is made of; `history` is what is known before it begins."""

    job: Job
    replay: Replay
    policy: Policy
    forecaster: Forecaster
    model: CostModel
    seed: int
    start_ms: int
    end_ms: int
    history: History | None = None
    known: State | None = None
    keep: bool = False


class Engine:
    """One simulated run. `run` goes to the end; nothing outside of the setup matters."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        job, model = setup.job, setup.model
        self.dice = Dice(setup.seed, model)
        self.world = World(setup.replay, setup.end_ms + 1)
        boots = [r.boot_ms for p in job.pools if (r := setup.replay.record(p)) is not None]
        boot = model.boot_ms if model.boot_ms is not None else max(boots, default=0)
        self.books = Books(
            account=Account(job),
            history=setup.history or History(),
            floor=FloorWatch(job),
            state=setup.known or model.state(boot),
            backoff=Backoff(model.backoff_ms, model.backoff_limit_ms),
            now_ms=setup.start_ms,
            keep=setup.keep,
        )
        self.crew = Crew(job, model, self.dice, self.world, self.books)
        self.decisions: list[Decision] = []
        self.decisions_made = 0
        self.result: tuple[str, str] | None = None
        self._mind = Mind(job, setup.policy, setup.forecaster)
        self._recorded: Decision | None = None
        self._revisit_ms: int | None = None
        self._launched = 0
        self._price_ms: int | None = setup.start_ms

    @property
    def state(self) -> State:
        """The folded state of the run."""
        return self.books.state

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate to the end of the work, the horizon, or a limit."""
        books, crew = self.books, self.crew
        end = self.setup.end_ms
        books.add(RunStarted(books.now_ms, "sim"))
        while True:
            self._market()
            crew.train()
            crew.lead()
            self._decide()
            crew.lead()
            self._see_end()
            if self.result is not None:
                break
            if not self.setup.keep:
                crew.skip_saves(min(self._next_ms(training=False) or end, end))
            later = self._next_ms()
            if later is None or later >= end:
                books.now_ms = end
                self.result = ("stopped", "the horizon was reached")
                break
            books.now_ms = max(books.now_ms, later)
        self._end(*self.result)

    def _next_ms(self, *, training: bool = True) -> int | None:
        """Return when something happens next, saves and the end of the work included or not."""
        now = self.books.now_ms
        instants = (
            self._price_ms,
            self.world.next_ms(now),
            min(self.crew.boots.values(), default=None),
            self.crew.next_training_ms() if training else self.crew.training.finish_ms(),
            self.crew.next_group_ms(),
            self._revisit_ms,
            self._exhausted_ms(),
            now + 1_000 if self.books.dirty else None,  # more to think about than rounds allow
        )
        return min((t for t in instants if t is not None), default=None)

    def _see_end(self) -> None:
        if self.crew.done:
            self.result = ("done", "")
        elif self.crew.fruitless > FRUITLESS_LAUNCHES:
            message = f"no progress possible: {self.crew.fruitless} VMs and not a step done"
            self.result = ("failed", message)
        elif self._budget_left() <= 0:
            self.result = ("refused", "the budget is spent")

    def _end(self, outcome: str, message: str) -> None:
        self.crew.report()
        for vm in list(self.state.fleet):
            if vm.state is InstanceState.REQUESTED:
                self.books.add(LaunchFailed(self.books.now_ms, vm.token, "Cancelled"))
            else:
                self.books.add(InstanceGone(self.books.now_ms, vm.token, Ending.RELEASED))
        self.books.add(RunEnded(self.books.now_ms, outcome, message))
        self.books.floor.close(self.books.now_ms)

    # -- the market ----------------------------------------------------------------------------

    def _market(self) -> None:
        now = self.books.now_ms
        if self._price_ms is not None and self._price_ms <= now:
            self._see_prices(now)
        told, taken = self.world.due(now)
        for pool, departure in taken:
            noticed = departure.token in self.world.doomed
            ending = Ending.PREEMPTED_NOTICE if noticed else Ending.PREEMPTED_SILENT
            self.crew.lose(departure.token, pool, ending)
        for token in [t for t, at in self.world.failing.items() if at <= now]:
            vm = self.state.fleet.get(token)
            self.world.failing.pop(token, None)
            if vm is not None:
                self.crew.lose(token, vm.pool, Ending.HARDWARE)
        for _, departure in told:
            self.world.tell(departure)
            if self.dice.notice_arrives():
                self.crew.told(departure.token, departure.gone_ms)
        for token in [t for t, at in self.crew.boots.items() if at <= now]:
            self.crew.boots.pop(token)
            self.crew.come_up(token)

    def _see_prices(self, now: int) -> None:
        market = self.state.market
        offers = self.setup.replay.offerings(now)
        fresh = tuple(o for o in offers if market.get(o.pool, o.capacity) != o)
        if fresh:
            self.books.add(OfferingsSeen(now, fresh))
        self._price_ms = self.setup.replay.next_price_ms(now)

    # -- deciding and acting ---------------------------------------------------------------------

    def _decide(self) -> None:
        now = self.books.now_ms
        for _ in range(ROUNDS):
            due = self._revisit_ms is not None and now >= self._revisit_ms
            if not (self.books.dirty or due) or self.crew.done:
                return
            self.books.dirty = False
            self.crew.report()
            decision = self._think(now)
            self._revisit_ms = decision.plan.revisit_at_ms
            if self._revisit_ms is not None and self._revisit_ms <= now:
                self._revisit_ms = now + 1
            if is_news(self._recorded, decision):
                self._recorded = decision
                self.books.add(Decided(now, decision))
            self._carry_out(decision)

    def _think(self, now: int) -> Decision:
        seen = Observation(
            now_ms=now,
            state=self.state,
            spent_micro_usd=self.books.account.bill_at(now).total,
            launch_failures=self.books.backoff.spot(now),
        )
        decision = self._mind.decide(seen, self.books.history)
        self.decisions_made += 1
        if self.setup.keep:
            self.decisions.append(decision)
        return decision

    def _carry_out(self, decision: Decision) -> None:
        self.crew.training.interval_ms = decision.interval.interval_ms
        for action in decision.plan.actions:
            match action:
                case Launch():
                    self._launch(action)
                case Drain():
                    vm = self.state.fleet.get(action.token)
                    if vm is not None and vm.state in PATIENT:
                        self.books.add(DrainStarted(self.books.now_ms, action.token))
                case Terminate():
                    self._terminate(action.token)
                case Checkpoint():
                    self.crew.want_save(None)
                case Resize():
                    ready = {vm.token for vm in self.state.fleet.select(InstanceState.READY)}
                    self.crew.kept_out = frozenset(ready - set(action.members))

    def _launch(self, wish: Launch) -> None:
        """Launch up to `count` VMs; the first refusal ends the attempt."""
        for _ in range(wish.count):
            if not self._launch_one(wish.pool, wish.capacity):
                return

    def _launch_one(self, pool: Pool, capacity: Capacity) -> bool:
        now, books = self.books.now_ms, self.books
        offer = self.state.market.get(pool, capacity)
        if offer is None or books.backoff.why_not((pool, capacity), now):
            return False
        if not self._allowed(offer):
            return False
        self._launched += 1
        token = f"sim-{self._launched}"
        books.add(InstanceRequested(now, token, pool, capacity, offer.speed))
        if not self.world.launch(token, pool, capacity, now):
            books.add(LaunchFailed(now, token, "CapacityError", "no capacity in the trace"))
            return False
        books.add(InstanceLaunched(now, token, f"vm-{self._launched}"))
        self.crew.fruitless += 1
        self.crew.boots[token] = now + self.dice.spread(self._boot_ms(pool))
        life = self.dice.life_ms()
        if life is not None:
            self.world.failing[token] = now + life
        return True

    def _boot_ms(self, pool: Pool) -> int:
        if self.setup.model.boot_ms is not None:
            return self.setup.model.boot_ms
        record = self.setup.replay.record(pool)
        return record.boot_ms if record else 0

    def _terminate(self, token: str) -> None:
        vm = self.state.fleet.get(token)
        if vm is None:
            return
        if vm.state is InstanceState.REQUESTED:
            self.books.add(LaunchFailed(self.books.now_ms, token, "Cancelled"))
        elif token in self.crew.group.members:
            self.crew.lose(token, vm.pool, Ending.RELEASED)
        else:
            self.crew.release(vm)

    # -- limits --------------------------------------------------------------------------------

    def _allowed(self, offer: Offering) -> bool:
        """Return whether the job's limits let one more VM of an offering be bought."""
        limits = self.setup.job.limits
        cap = limits.max_price_micro_usd_h
        if offer.capacity not in self.setup.job.capacities:
            return False
        if cap is not None and offer.price_micro_usd_h > cap:
            return False
        if limits.max_vms is not None and len(self.state.fleet) >= limits.max_vms:
            return False
        if limits.budget_micro_usd is None:
            return True
        boot_ms = self.state.fleet_cost.boot_ms
        horizon = max(boot_ms + WIND_DOWN_MS, offer.minimum_billing_ms)
        spent = self.books.account.bill_at(self.books.now_ms).total
        burn = self._burn() + offer.price_micro_usd_h
        return spent + charge_micro_usd(burn, horizon) <= limits.budget_micro_usd

    def _burn(self) -> int:
        """Return micro-dollars per hour of the fleet."""
        prices = (self._price(vm) for vm in self.state.fleet.select(*HELD, InstanceState.REQUESTED))
        return sum(prices)

    def _price(self, vm: Instance) -> int:
        offer = self.state.market.get(vm.pool, vm.capacity)
        return offer.price_micro_usd_h if offer else 0

    def _budget_left(self) -> int:
        budget = self.setup.job.limits.budget_micro_usd
        if budget is None:
            return 1
        spent = self.books.account.bill_at(self.books.now_ms).total
        return budget - spent - charge_micro_usd(self._burn(), WIND_DOWN_MS)

    def _exhausted_ms(self) -> int | None:
        if self.setup.job.limits.budget_micro_usd is None:
            return None
        burn = self._burn()
        if not burn:
            return None
        return self.books.now_ms + max(0, self._budget_left()) * 3_600_000 // burn + 1
