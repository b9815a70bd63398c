"""The training group as the controller leads it: announces generations, tells the members."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from surefoot.controller.agents import Agents
from surefoot.controller.hear import Ears
from surefoot.controller.membership import (
    Group,
    Regroup,
    Seats,
    dissolve,
    joinable_ms,
    last_ones,
    regroup,
)
from surefoot.controller.record import Record
from surefoot.controller.settings import Settings
from surefoot.core.event import GroupBroken
from surefoot.core.fleet import Instance, InstanceState
from surefoot.core.wave import wave_ms
from surefoot.core.wire import Generation, Leave, Message, SaveNow, SetInterval

FIRST_STEPS = 5
"""How many usual steps the first step of a group, perhaps a much smaller one, may take."""

JOINABLE = (InstanceState.READY, InstanceState.NOTICED, InstanceState.DRAINING)


@dataclass(slots=True)
class Lead:
    """Keeps the group in step with the fleet."""

    record: Record
    ears: Ears
    agents: Agents
    settings: Settings
    group: Group = Group()
    addresses: dict[str, str] = field(default_factory=dict)
    kept_out: frozenset[str] = frozenset()
    interval_ms: int = 0
    _holders: frozenset[str] = frozenset()
    """Members of the newest group that trained, even if it is broken by now."""
    _last_save_ms: int = 0
    """When the last ones to leave were asked to save; 0 when nobody was."""

    def turn(self, now_ms: int, *, may_join: bool) -> bool:
        """Announce the next generation if one is due; True when one was."""
        seats = self.seats(now_ms, may_join=may_join)
        for token in seats.ready:
            address = self.agents.address(token)
            if address is not None:
                self.addresses[token] = address
        if self.record.formed and self.record.formed.generation == self.group.number:
            self.group = replace(self.group, formed=True)
        last = last_ones(self.group, seats)
        if last:
            return self._hand_over(last, now_ms)
        again = self._is_stuck(now_ms)
        if again:  # whoever has left without a word is not waited for any more
            for token in self.ears.exited:
                self.ears.ready.pop(token, None)
            seats = self.seats(now_ms, may_join=may_join)
        change = regroup(self.group, seats, now_ms, self.settings, again=again)
        if change is not None:
            self.announce(change, now_ms)
        return change is not None

    def seats(self, now_ms: int, *, may_join: bool) -> Seats:
        """Return whom a group may be made of now."""
        fleet = self.record.state.fleet
        heard = self.agents.connected()
        present = {vm.token: vm for vm in fleet.select(*JOINABLE)}
        members = set(self.group.members)
        ready = {
            token: since
            for token, since in self.ears.ready.items()
            if token in present
            and (token in heard or token in self.ears.exited)
            and (may_join or token in members)
        }
        pressed = {t for t, vm in present.items() if self._notice_is_due(vm, now_ms)}
        drained = {t for t, vm in present.items() if vm.state is InstanceState.DRAINING}
        fresh = {
            t for t, vm in present.items() if vm.state is InstanceState.NOTICED
        } - members  # a VM that will be taken is not worth a re-forming
        leaving = frozenset(pressed | drained | fresh)
        waiting = ready.keys() - members - leaving - self.kept_out
        if waiting and self.settings.by_checkpoint:  # one new start for both: come and go
            noticed = {t for t, vm in present.items() if vm.state is InstanceState.NOTICED}
            leaving |= noticed
        wave = wave_ms(fleet, sorted(waiting), members=len(members))
        if self.record.formed is not None:
            self._holders = frozenset(self.record.formed.members)
        return Seats(ready, leaving, frozenset(pressed), self.kept_out, self._holders, wave)

    def _is_stuck(self, now_ms: int) -> bool:
        """Return whether members keep on asking for another generation than the newest."""
        asked = any(n >= self.settings.reannounce for n in self.ears.broken.values())
        wait_ms = self.settings.again_ms if self.group.formed else self.settings.again_forming_ms
        return asked and now_ms - self.group.announced_ms >= wait_ms

    def announce(self, change: Regroup, now_ms: int) -> None:
        """Give the next number, tell everyone concerned, let the leavers go."""
        if not change.members:
            self._dissolved(change, now_ms)
            return
        number = self.record.journal.next_generation(above=self.ears.path_generation)
        # A controller that took over and knows of no group cannot name the dead of an older one:
        # whoever still waits for them in a collective is cut loose.
        unknown = self.group.number == 0 and number > 1
        message = Generation(
            number=number,
            tokens=change.members,
            addresses=tuple(self.addresses.get(t, "") for t in change.members),
            lost=tuple(self.addresses[t] for t in change.lost if t in self.addresses),
            urgent=change.urgent or unknown,
            former=self.record.formed.generation if self.record.formed is not None else 0,
        )
        if change.urgent and self.record.formed is not None:
            self.record.add(*self.ears.flush())
            self.record.add(GroupBroken(now_ms, self.record.formed.generation, change.reason))
        form_ms = self.settings.form_limit_ms + FIRST_STEPS * self.record.state.progress.step_ms
        self.group = Group(number, change.members, now_ms, form_by_ms=now_ms + form_ms)
        self.ears.announced(number, change.members)
        for token in dict.fromkeys((*change.members, *change.left)):
            self.agents.send(token, message)
        self._last_save_ms = 0
        if self.interval_ms:
            self.tell(SetInterval(self.interval_ms))
        self.let_go(change.left, change.reason)

    def let_go(self, tokens: tuple[str, ...], reason: str) -> None:
        """Tell VMs that they are not needed; that they fall silent is then no loss."""
        for token in tokens:
            self.ears.told.add(token)
            self.agents.send(token, Leave(reason))

    def tell(self, message: Message) -> None:
        """Send a message to all members."""
        for token in self.group.members:
            self.agents.send(token, message)

    def set_interval(self, interval_ms: int) -> None:
        """Tell all members a new checkpoint interval, if it is new."""
        if interval_ms != self.interval_ms:
            self.interval_ms = interval_ms
            self.tell(SetInterval(interval_ms))

    def has_left(self, token: str) -> bool:
        """Return whether a VM that is let go has nothing more to hand over."""
        if token in self.ears.exited or token not in self.agents.connected():
            return True
        if token in self.group.members:
            return False
        return self.group.formed or not self.group.members

    def wake_ms(self, now_ms: int, *, may_join: bool) -> int | None:
        """Return when the group is to be looked at next, if nothing happens before."""
        seats = self.seats(now_ms, may_join=may_join)
        due = [joinable_ms(self.group, seats, now_ms, self.settings)]
        for vm in self.record.state.fleet.select(InstanceState.NOTICED):
            if vm.token in self.group.members and vm.token not in seats.pressed:
                due.append(self._leave_ms(vm))
        if self.ears.broken:
            due.append(self.group.announced_ms + self.settings.again_ms)
            due.append(self.group.announced_ms + self.settings.again_forming_ms)
        if self._last_save_ms:
            due.append(self._last_save_ms + self.settings.drain_limit_ms // 2)
        return min((d for d in due if d is not None and d > now_ms), default=None)

    def _notice_is_due(self, vm: Instance, now_ms: int) -> bool:
        return vm.notice_deadline_ms is not None and now_ms >= self._leave_ms(vm)

    def _leave_ms(self, vm: Instance) -> int:
        """When a noticed VM goes: it has to end its step, and the rest to re-form, before."""
        state = self.record.state
        margin = self.settings.leave_margin_ms + state.fleet_cost.reform_ms
        margin += state.progress.step_ms
        return (vm.notice_deadline_ms or 0) - margin

    def _hand_over(self, last: tuple[str, ...], now_ms: int) -> bool:
        """Nobody will go on from their memory: dissolve only once a checkpoint is durable."""
        if not self._last_save_ms:
            self._last_save_ms = now_ms
            for token in last:
                self.agents.send(token, SaveNow("the last VMs leave"))
            return False
        saved = self.ears.saved_ms >= self._last_save_ms
        late = now_ms - self._last_save_ms >= self.settings.drain_limit_ms // 2
        gone = all(t in self.ears.exited for t in last)
        if not (saved or late or gone or not self.group.formed):
            return False
        self.announce(dissolve(self.group, "nobody is left to hand over to"), now_ms)
        return True

    def _dissolved(self, change: Regroup, now_ms: int) -> None:
        self.record.add(*self.ears.flush())
        if self.record.formed is not None:
            self.record.add(GroupBroken(now_ms, self.record.formed.generation, change.reason))
        self.group = replace(self.group, members=(), formed=False)
        self._last_save_ms = 0
        here = tuple(t for t in change.left if t in self.ears.ready)
        self.let_go(here, change.reason)
