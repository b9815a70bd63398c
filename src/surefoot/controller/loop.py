"""The live controller: observe, decide with the core, record, act; one turn at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from surefoot.controller.act import Actor
from surefoot.controller.agents import Agents, Said, Silent
from surefoot.controller.clock import Clock, SteadyClock
from surefoot.controller.guard import Guard
from surefoot.controller.hear import Ears
from surefoot.controller.lead import Lead
from surefoot.controller.membership import Group
from surefoot.controller.observe import Watch, ending_of
from surefoot.controller.passes import Passes
from surefoot.controller.record import Record
from surefoot.controller.recover import is_dead, reconcile, this_process, trains_on
from surefoot.controller.settings import Settings
from surefoot.controller.store import Store
from surefoot.controller.view import Phase, View
from surefoot.core.attention import ROUNDS, Mind, is_news, matters
from surefoot.core.decide import Observation, Policy
from surefoot.core.event import (
    Decided,
    Event,
    GroupFormed,
    InstanceGone,
    RunEnded,
    RunStarted,
    State,
)
from surefoot.core.fleet import Ending, InstanceState
from surefoot.core.forecast.port import Forecaster
from surefoot.core.job import Job
from surefoot.core.plan import Checkpoint, Decision, Drain, Launch, Resize, Terminate
from surefoot.core.trace import History
from surefoot.core.wire import Hello, Leave, Saved, SaveNow, Stop
from surefoot.errors import SurefootError, ThrottledError
from surefoot.providers.base import Provider, Vm

LONGEST_WAIT_S = 1.0


class Controller:
    """Runs one job. Call `turn` whenever something may have happened, or `run` to let it.

    `boot` is the environment that every VM of the run gets; token, run and, with `passes`, its
    own pass are added. `step` is
    the newest durable step known when the run begins. Raises FencedError from any call once
    another controller is in charge of the run.
    """

    def __init__(
        self,
        job: Job,
        provider: Provider,
        *,
        agents: Agents,
        store: Store,
        clock: Clock,
        policy: Policy,
        forecaster: Forecaster,
        run: str,
        boot: Mapping[str, str] | None = None,
        passes: Passes | None = None,
        settings: Settings | None = None,
        history: History | None = None,
        step: int = 0,
        owner: str = "",
        on_event: Iterable[Callable[[Event], None]] = (),
    ) -> None:
        self.job, self.provider, self.agents = job, provider, agents
        self.run_id = run
        self.settings = settings or Settings()
        self.phase = Phase.RUNNING
        self.decision: Decision | None = None
        """The newest decision, recorded or not."""
        owner = owner or this_process()
        journal = store.acquire(run, owner, now_ms=clock.now_ms(), is_dead=is_dead)
        self.record = Record(journal, self.settings, job=job, history=history, on_event=on_event)
        self.clock = clock = SteadyClock(clock, not_before_ms=self.record.state.now_ms)
        self.guard = Guard(job, self.settings)
        self._ears = Ears(self.record, self.settings)
        self._lead = Lead(self.record, self._ears, agents, self.settings)
        self._watch = Watch(provider, run, self.guard, self.settings, told=self._ears.told)
        self._actor = Actor(
            provider, self.record, self.guard, clock, self.settings, run, dict(boot or {}), passes
        )
        self._mind = Mind(job, policy, forecaster)
        self._step = step
        self._started = False
        self._dirty = True
        self._recorded: Decision | None = None
        self._revisit_ms: int | None = None
        self._renewed_ms = clock.now_ms()
        self._rejoin_until_ms = 0
        self._draining: dict[str, int] = {}
        self._wish: tuple[str, str, bool] | None = None
        self._outcome: tuple[str, str] | None = None
        self._phase_ms = 0
        self._trouble = ""
        self.record.listen(self._heed)

    # -- what others may ask and tell ------------------------------------------------------------

    @property
    def state(self) -> State:
        """The folded state of the run."""
        return self.record.state

    @property
    def finished(self) -> bool:
        """Whether the run is over and no VM is left to end."""
        return self.phase is Phase.ENDED and not self._unclean()

    def request_stop(self, *, save: bool = True, message: str = "stopped by the user") -> None:
        """End the run: final checkpoint, then no VM is left. From any thread; returns at once."""
        self._wish = ("stopped", message, save)
        self.agents.wake()

    def view(self) -> View:
        """Return what a person wants to see now."""
        now_ms = self._now()
        refusals = self._actor.why_not(now_ms)
        counts = self.record.account.counts
        return View(
            now_ms=now_ms,
            phase=self.phase,
            state=self.state,
            newest=self._ears.newest,
            decision=self.decision,
            spent_micro_usd=self.guard.spent(self.record, now_ms),
            burn_micro_usd_h=self.guard.burn(self.record),
            refusals=refusals,
            trouble=self._trouble,
            clean_up=tuple(sorted(self._actor.doomed)),
            crashes=self.record.crashes,
            preemptions=counts.notice + counts.silent,
        )

    def run(self, stop_event: threading.Event | None = None) -> str:
        """Take turns until the run is over and clean; return its outcome.

        When `stop_event` is set the run is stopped with a final checkpoint.
        """
        while True:
            if stop_event is not None and stop_event.is_set() and self._wish is None:
                self.request_stop()
            wake_ms = self.turn()
            if wake_ms is None:
                break
            wait_s = (wake_ms - self.clock.now_ms()) / 1000
            self.agents.wait(min(max(wait_s, 0.0), LONGEST_WAIT_S))
        self.close()
        return self.state.outcome or ""

    def close(self) -> None:
        """Give up the lease (again is no error). VMs keep running: a successor takes them over."""
        self.record.journal.release()

    # -- one turn --------------------------------------------------------------------------------

    def turn(self) -> int | None:
        """Take in what happened, decide if that changes anything, act; return when to come back.

        The instant is epoch ms; None once the run is over and clean.
        """
        now_ms = self._now()
        self._renew(now_ms)
        if not self._started and not self._start(now_ms):
            return now_ms + self.settings.slow_down_ms
        self._hear(now_ms)
        orphans = self._look(now_ms)
        self._check_limits(now_ms)
        self._lead_group(now_ms)
        if self.phase is Phase.RUNNING:
            self._decide(now_ms)
            self._lead_group(now_ms)
        self._check_limits(now_ms)
        self._actor.work(now_ms, orphans)
        self._end(now_ms)
        return None if self.finished else self._wake_ms(now_ms)

    def _now(self) -> int:
        return max(self.clock.now_ms(), self.state.now_ms)

    def _start(self, now_ms: int) -> bool:
        """Take the run over as the journal leaves it; False while the provider cannot be seen."""
        resumed = self.record.journal.seq > 0
        vms: Sequence[Vm] = ()
        if resumed:
            try:
                vms = self.provider.list(self.run_id)
            except SurefootError as error:
                self._trouble = f"{error} {error.hint}".strip()
                return False
        self._started = True
        left = trains_on(self.record) if resumed else None
        self.record.add(RunStarted(now_ms, self.run_id, resumed=resumed, step=self._step))
        if resumed:
            self.record.add(*reconcile(self.state, vms, now_ms))
            self._rejoin_until_ms = now_ms + self.settings.rejoin_ms
        if left is not None and any(self.state.fleet.get(t) for t in left[1]):
            self._lead.group = Group(left[0], left[1], now_ms, formed=True)
            self._ears.announced(*left)
        return True

    def _renew(self, now_ms: int) -> None:
        if now_ms - self._renewed_ms >= self.settings.renew_ms:
            self._renewed_ms = now_ms
            self.record.journal.renew(now_ms)

    def _hear(self, now_ms: int) -> None:
        for news in self.agents.poll():
            at_ms = now_ms - max(0, self.clock.monotonic_ms() - news.at_ms)
            at_ms = max(at_ms, self.state.now_ms)
            if isinstance(news, Silent):
                self._silent(news, at_ms)
            elif self.state.fleet.get(news.token) is None:
                self._stranger(news)
            else:
                self.record.add(*self._ears.take(news, at_ms))
                if isinstance(news.message, Saved):
                    self._lead.tell(news.message)  # a change of the group may wait for it
        self._tell_notices(now_ms)

    def _stranger(self, said: Said) -> None:
        """A VM that is not ours any more is told to go; the provider's list has it ended."""
        if isinstance(said.message, Hello):
            self.agents.send(said.token, Leave("this run does not know the VM"))
            self._watch.due_ms = 0

    def _silent(self, news: Silent, now_ms: int) -> None:
        vm = self.state.fleet.get(news.token)
        if vm is None:
            return
        if news.token in self._ears.told:
            self._ears.exited.add(news.token)
            return
        self.record.add(*self._ears.flush())
        self.record.add(InstanceGone(now_ms, vm.token, ending_of(vm, preempted=False)))
        self._actor.bury(vm.token, vm.instance_id, now_ms)

    def _tell_notices(self, now_ms: int) -> None:
        tokens, self._ears.notices = self._ears.notices, []
        for token in tokens:
            vm = self.state.fleet.get(token)
            if vm is not None and vm.notice_deadline_ms is not None:
                left_ms = max(0, vm.notice_deadline_ms - now_ms)
                self._lead.tell(SaveNow(f"{token} will be taken", left_ms))

    def _look(self, now_ms: int) -> list[Vm]:
        if self._watch.wake_ms() > now_ms:
            return []
        try:
            facts, orphans = self._watch.look(self.state, now_ms, self.agents.connected())
        except SurefootError as error:
            if isinstance(error, ThrottledError):
                self._actor.slowed(now_ms)
            pause_ms = now_ms + self.settings.slow_down_ms
            self._watch.due_ms = max(pause_ms, self._actor.slow_until_ms)
            self._trouble = f"{error} {error.hint}".strip()
            return []
        self._trouble = ""
        self.record.add(*facts)
        return orphans

    def _heed(self, event: Event) -> None:
        """Note what calls for a new decision, and drop what is kept of VMs that are gone."""
        self._dirty = self._dirty or matters(event)
        if isinstance(event, InstanceGone):
            self._ears.forget(event.token)
            self._draining.pop(event.token, None)

    # -- deciding --------------------------------------------------------------------------------

    def _decide(self, now_ms: int) -> None:
        for _ in range(ROUNDS):
            again = (self._revisit_ms, self._actor.retry_ms)
            due = any(at is not None and now_ms >= at for at in again)
            if not (self._dirty or due) or now_ms < self._rejoin_until_ms:
                return
            self._dirty, self._actor.retry_ms = False, None
            self.record.add(*self._ears.flush())  # decide on progress as it is
            decision = self._think(now_ms)
            self.decision, self._revisit_ms = decision, decision.plan.revisit_at_ms
            if self._revisit_ms is not None and self._revisit_ms <= now_ms:
                self._revisit_ms = now_ms + 1
            if is_news(self._recorded, decision):
                self._recorded = decision
                self.record.add(Decided(now_ms, decision))
            self._carry_out(decision, now_ms)

    def _think(self, now_ms: int) -> Decision:
        seen = Observation(
            now_ms=now_ms,
            state=self.state,
            spent_micro_usd=self.guard.spent(self.record, now_ms),
            launch_failures=self.record.backoff.spot(now_ms),
        )
        return self._mind.decide(seen, self.record.history)

    def _carry_out(self, decision: Decision, now_ms: int) -> None:
        self._lead.set_interval(decision.interval.interval_ms)
        for action in decision.plan.actions:
            match action:
                case Launch():
                    self._actor.launch(action, now_ms)
                case Drain():
                    self._actor.drain(action.token, now_ms)
                case Terminate():
                    self._actor.end(action.token, now_ms)
                case Checkpoint():
                    self._lead.tell(SaveNow(action.reason))
                case Resize():
                    ready = set(self._ears.ready)
                    self._lead.kept_out = frozenset(ready - set(action.members))

    # -- the group and time limits ---------------------------------------------------------------

    def _lead_group(self, now_ms: int) -> None:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return
        if now_ms < self._rejoin_until_ms and not self._rejoined(now_ms):
            return
        if self._lead.turn(now_ms, may_join=self.phase is Phase.RUNNING):
            if self.phase is Phase.STOPPING:
                self._lead.tell(Stop())
            self._check_limits(now_ms)

    def _rejoined(self, now_ms: int) -> bool:
        """After a restart: whether all members are heard again (which ends the wait for them)."""
        group = self._lead.group
        if not group.members or not set(group.members) <= set(self._ears.ready):
            return False
        self._rejoin_until_ms = now_ms
        if self.record.journal.generation > group.number:
            self._ears.broken[group.members[0]] = self.settings.reannounce
        step = max(self.state.progress.steps_done, self.state.progress.steps_safe)
        self.record.add(GroupFormed(now_ms, group.number, group.members, step))
        return True

    def _check_limits(self, now_ms: int) -> None:
        for vm in self.state.fleet:
            age_ms = now_ms - vm.requested_ms
            if vm.state is InstanceState.STARTING and age_ms >= self.settings.boot_limit_ms:
                self._actor.end(vm.token, now_ms, Ending.BOOT_FAILED)
            elif vm.state is InstanceState.DRAINING:
                since_ms = self._draining.setdefault(vm.token, now_ms)
                late = now_ms - since_ms >= self.settings.drain_limit_ms
                if late or self._lead.has_left(vm.token):
                    self._actor.end(vm.token, now_ms)
            elif vm.state is InstanceState.NOTICED and vm.notice_deadline_ms is not None:
                if now_ms >= vm.notice_deadline_ms + self.settings.list_lag_ms:
                    self._actor.end(vm.token, now_ms, ending_of(vm, preempted=False))
            elif vm.state is InstanceState.READY and self._did_not_come_back(vm.token, now_ms):
                self._silent(Silent(vm.token, "did not come back", now_ms), now_ms)

    def _did_not_come_back(self, token: str, now_ms: int) -> bool:
        waited = bool(self._rejoin_until_ms) and now_ms >= self._rejoin_until_ms
        return waited and token not in self.agents.connected()

    # -- the end ---------------------------------------------------------------------------------

    def _end(self, now_ms: int) -> None:
        if self.phase is Phase.RUNNING:
            self._see_end(now_ms)
        if self.phase is Phase.STOPPING and self._is_saved(now_ms):
            self._enter(Phase.ENDING, now_ms)
            for vm in self.state.fleet:
                self._lead.let_go((vm.token,), "the run is over")
        if self.phase is Phase.ENDING:
            self._end_vms(now_ms)

    def _see_end(self, now_ms: int) -> None:
        settings, record = self.settings, self.record
        if self._ears.finished is not None or self._all_exited():
            self._stop("done", "", save=False, now_ms=now_ms)
        elif self._wish is not None:
            outcome, message, save = self._wish
            self._stop(outcome, message, save=save, now_ms=now_ms)
        elif record.crashes > settings.max_crashes:
            why = f"the training script crashed {record.crashes} times: {record.last_crash}"
            self._stop("failed", why, save=False, now_ms=now_ms)
        elif self._setup_is_wrong():
            why = f"set-up failed before any step: {record.last_crash}"
            self._stop("failed", why, save=False, now_ms=now_ms)
        elif record.formed is None and record.boot_rounds >= settings.max_boot_rounds:
            why = f"{record.boot_rounds} VMs in a row were started and none came up"
            self._stop("failed", why, save=True, now_ms=now_ms)
        elif self.guard.exhausted(record, now_ms):
            self._stop("refused", "the budget is spent", save=True, now_ms=now_ms)

    def _setup_is_wrong(self) -> bool:
        failed = self.record.setup_failures
        return not self.record.ever_formed and failed >= self.settings.max_setup_failures

    def _all_exited(self) -> bool:
        members = self._lead.group.members
        return bool(members) and self._lead.group.formed and set(members) <= self._ears.exited

    def _stop(self, outcome: str, message: str, *, save: bool, now_ms: int) -> None:
        self._outcome = (outcome, message)
        self._enter(Phase.STOPPING, now_ms)
        self._ears.saved_ms = 0
        if not save or not self._lead.group.members or not self.record.ever_formed:
            self._phase_ms = now_ms - self.settings.stop_limit_ms  # there is nothing to save
            return
        for vm in self.state.fleet:
            self._ears.told.add(vm.token)
            self.agents.send(vm.token, Stop())

    def _enter(self, phase: Phase, now_ms: int) -> None:
        self.phase, self._phase_ms = phase, now_ms

    def _is_saved(self, now_ms: int) -> bool:
        if now_ms - self._phase_ms >= self.settings.stop_limit_ms:
            return True
        members = [t for t in self._lead.group.members if self.state.fleet.get(t)]
        gone = all(t in self._ears.exited for t in members)
        return gone or not members

    def _end_vms(self, now_ms: int) -> None:
        waited = now_ms - self._phase_ms >= self.settings.leave_limit_ms
        for vm in self.state.fleet:
            silent = vm.token not in self.agents.connected() or vm.token in self._ears.exited
            if waited or silent:
                self._actor.end(vm.token, now_ms)
        stuck = all(d.tries >= 3 for d in self._actor.doomed.values())
        empty = not len(self.state.fleet)
        if empty or (waited and stuck and self._actor.doomed):
            outcome, message = self._outcome or ("failed", "")
            self.record.add(*self._ears.flush(), RunEnded(now_ms, outcome, message))
            self._enter(Phase.ENDED, now_ms)

    def _unclean(self) -> bool:
        """Whether a VM is left to end, or one may still turn up that no list has shown."""
        left = bool(self._actor.doomed) or bool(len(self.state.fleet))
        return left or self._now() < self._actor.unsure_until_ms

    # -- when to come back -----------------------------------------------------------------------

    def _wake_ms(self, now_ms: int) -> int:
        running = self.phase is Phase.RUNNING
        due: list[int | None] = [
            now_ms + self.settings.poll_ms,
            self._watch.wake_ms(),
            self._actor.wake_ms(),
            self._renewed_ms + self.settings.renew_ms,
            self._lead.wake_ms(now_ms, may_join=running),
        ]
        if running:
            due += [
                self._revisit_ms,
                self._actor.retry_ms,
                self.guard.exhausted_ms(self.record, now_ms),
            ]
        if self._rejoin_until_ms > now_ms:
            due.append(self._rejoin_until_ms)
        if self.phase is Phase.STOPPING:
            due.append(self._phase_ms + self.settings.stop_limit_ms)
        if self.phase is Phase.ENDING:
            due.append(self._phase_ms + self.settings.leave_limit_ms)
        due += [t + self.settings.drain_limit_ms for t in self._draining.values()]
        starting = self.state.fleet.select(InstanceState.STARTING)
        due += [vm.requested_ms + self.settings.boot_limit_ms for vm in starting]
        return min(d for d in due if d is not None and d > now_ms)
