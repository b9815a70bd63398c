"""What a training script holds: the loop that survives a fleet that changes under it."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn

import torch

from surefoot.checkpoint import Checkpointer
from surefoot.checkpoint.drain import target_from
from surefoot.core.wire import Finished, Formed, Metric, Ready, Stepped
from surefoot.train.control import Control
from surefoot.train.diverged import first_bad, refuse_diverged
from surefoot.train.elastic import Membership, Patience
from surefoot.train.environment import end_promptly, positive
from surefoot.train.feed import feed_of, pieces_of
from surefoot.train.figures import Figures
from surefoot.train.group import Group, GroupError
from surefoot.train.link import Link, SaveWish, agreed
from surefoot.train.rewind import StepUndo, gate, seed_step
from surefoot.train.sampler import Cut, Share
from surefoot.train.saver import Saver
from surefoot.train.signals import Signals
from surefoot.train.state import TrainingState
from surefoot.train.stepclock import StepClock, since_process_start_ms
from surefoot.train.tree import SHARDS, gradients_of
from surefoot.train.watchdog import Watchdog, limit_of

_log = logging.getLogger("surefoot.train")


class Session:
    """Keeps a plain PyTorch loop going through preemptions; resumes by itself.

    `dataloader.batch_size` is the global batch, whatever the number of workers; `checkpoint`
    (default: SUREFOOT_CHECKPOINT) is a path or URL. `extra` names further objects that have
    state_dict() and load_state_dict(), such as a grad scaler. `save_interval_s` counts when no
    controller sets the interval. `micro_batch` is the most samples that a forward may hold: a
    worker whose share is larger gets it in equal parts, one after the other, and the gradient is
    that of all (accumulation follows the size of the fleet); `stepped` is True for the last.
    A worker under an agent that hangs for `hang_limit_s` (default 1800) is ended and restarted.
    A loader over an iterable data set is read by every worker, who takes its rows; a step is one
    batch of it. Started without an agent it is a world of one, and SIGTERM or
    Ctrl-C saves and exits with 128 + the signal's number.

        with Session(model=model, optimizer=optimizer, dataloader=loader) as session:
            for step, batch in session.steps(total=600):
                loss = criterion(model(batch.x), batch.y)
                loss.backward()              # gradients are averaged over all workers here
                optimizer.step()
                optimizer.zero_grad()
                session.log(loss=loss)

    With `deterministic` the weights are bitwise the same for any number of workers and through
    any changes of it, on CPUs of one kind: each step yields this worker's part of `shards` fixed
    shards, one after the other, as with `micro_batch`.

    A step that loses a member in the middle is yielded again once the group has re-formed, with
    the same samples and random numbers; its loop body ran for nothing (`session.stepped` is
    False after its backward, gradients are None).
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        dataloader: Iterable[Any],
        scheduler: Any = None,
        extra: Mapping[str, Any] | None = None,
        seed: int = 0,
        checkpoint: str | os.PathLike[str] | None = None,
        keep: int | None = None,
        save_interval_s: float = 300.0,
        micro_batch: int | None = None,
        hang_limit_s: float | None = None,
        deterministic: bool = False,
        shards: int = SHARDS,
    ) -> None:
        env = os.environ
        self._pace = positive(env, "SUREFOOT_PACE")
        if self._pace is not None:
            torch.set_num_threads(1)  # a local VM is a slice of this machine
        self._model = model
        self._feed = feed_of(dataloader, seed)
        self._state = TrainingState(model, optimizer, scheduler, extra or {}, self._feed)
        self._undo = StepUndo(optimizer, scheduler)
        for part in (extra or {}).values():
            if isinstance(part, torch.amp.GradScaler):
                gate(part, lambda: self.stepped)
        self._touched = False
        optimizer.register_step_post_hook(self._touch)
        self._link = Link(env.get("SUREFOOT_AGENT"))
        token = env.get("SUREFOOT_TOKEN", "alone")
        self._membership = Membership(self._link, token, env.get("SUREFOOT_ADDRESS", "127.0.0.1"))
        self._patience = Patience(self._link)
        self._saver = Saver(
            os.fspath(checkpoint) if checkpoint else env.get("SUREFOOT_CHECKPOINT"),
            keep=keep or int(env.get("SUREFOOT_KEEP") or 3),
            interval_s=save_interval_s,
            optimizer=optimizer,
            report=self._link.send,
            drain=target_from(env),
        )
        self._shards = shards if deterministic else 0
        self._micro_batch = micro_batch
        self._shares: list[Share] = []
        self._was_deterministic = torch.are_deterministic_algorithms_enabled()
        self._gradients = gradients_of(model, self._shards)
        self._watch = Watchdog(
            limit_of(hang_limit_s, self._link.alone), lambda: self._gradients.reducing
        )
        self._group: Group | None = None
        self._figures = Figures()
        self._clock = StepClock()
        self._formed: Formed | None = None
        self._leave_limit_s: float | None = None
        self._total = 0
        self._signals = Signals(self._link)
        if not self._link.alone:
            atexit.register(end_promptly)
        self._link.start()
        newest, generation = max(0, self._saver.newest()), self._saver.path_generation()
        self._link.send(Ready(since_process_start_ms(), newest, generation))

    # -- the user's side -----------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps done so far."""
        return max(0, self._state.step)

    @property
    def rank(self) -> int:
        """This worker's number in the present group, from 0."""
        return self._group.rank if self._group is not None else 0

    @property
    def world(self) -> int:
        """Workers in the present group."""
        return self._group.world if self._group is not None else 1

    @property
    def is_main(self) -> bool:
        """Whether this worker reports for all of them; can change when a worker is lost."""
        return self._group is not None and self._group.rank == 0

    @property
    def stepped(self) -> bool:
        """Whether the present step's gradients are those of all workers (else it is redone)."""
        return self._gradients.heard is not None and self._gradients.failure is None

    @property
    def checkpoint(self) -> Checkpointer | None:
        """The checkpoint engine; None where no path is set."""
        return self._saver.checkpointer

    def log(self, **values: Any) -> None:
        """Report figures of this step: this worker's mean `loss`, its `tokens`, and others.

        Losses are averaged and tokens added up over the workers; other names are the main
        worker's own.
        """
        for name, value in values.items():
            number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            if name == "loss":
                self._figures.tell_loss(number)
            elif name == "tokens":
                self._figures.tell_tokens(number)
            elif self.is_main:
                self._link.send(Metric(name, number, self.step))

    def check_notice(self) -> bool:
        """Act on a notice now, in the middle of a long evaluation; returns whether it was saved.

        For the part of a loop body before its `optimizer.step()`: the weights are still those of
        the step before. Costs nothing without a notice; the main worker saves without the others.
        """
        self._watch.see_life()
        wish, group = self._link.orders.save, self._group
        if wish is None or group is None or self._touched or not self._saver.is_new(wish):
            return False
        if not self._saver.in_charge:
            return False
        self._begin_save("emergency", wish)
        return True

    def steps(self, total: int) -> Iterator[tuple[int, Any]]:
        """Yield (step, this worker's batch) for every step still to do, up to `total`.

        Ends when all are done and the final checkpoint is durable; raises SystemExit when the
        worker is told to leave or stop. Raises FencedError when another run took the checkpoint
        path, CorruptError when there are checkpoints of which none is good.
        """
        self._total = total
        while True:
            group = self._settled_group()
            if self._state.step >= total:
                if self._finish(group):
                    return
                continue
            step = self._state.step
            pieces = pieces_of(self._feed.batch_size, group.world, self._micro_batch)
            cut = Cut.make(group.rank, group.world, self._shards, pieces=pieces)
            self._begin_step(group, cut)
            yield step, self._begin_part(group, cut, 0)
            for number in range(1, len(cut.parts)):
                self._end_part()
                yield step, self._begin_part(group, cut, number)
            self._watch.end()
            self._end_step(group)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.close()
        self._gradients.close()
        torch.use_deterministic_algorithms(self._was_deterministic)
        self._saver.close()
        self._membership.drop()
        self._link.close()
        self._signals.close()

    # -- one step ------------------------------------------------------------------------------

    def _begin_step(self, group: Group, cut: Cut) -> None:
        self._watch.begin(f"in fetching the data of step {self._state.step}")
        self._shares = shares = self._feed.shares(self._state.step, cut)
        samples = sum(share.samples for share in shares)
        self._clock.begin(0.0 if self._pace is None else samples / self._pace)
        self._gradients.begin(group, shares[0].weight, self._say(group), len(shares))
        self._figures.begin_step(samples)
        self._touched = False

    def _begin_part(self, group: Group, cut: Cut, number: int) -> Any:
        """Return the number-th part of this worker's batch; most often there is only one."""
        step = self._state.step
        weight = self._shares[number].weight
        self._gradients.begin_part(number, weight)
        self._figures.begin_part(weight)
        self._undo.mark()
        batch = self._feed.batch(step, self._total, cut, number)
        self._watch.begin(f"in the loop body of step {step}")
        seed_step(self._feed.seed, step, cut.parts[number])
        return batch

    def _end_part(self) -> None:
        """The gradient of a part is kept; the loop body's other doings count once a step."""
        self._gradients.finish_part()
        self._touched = False
        self._undo.undo()

    def _touch(self, *_: Any) -> None:
        self._touched = True  # by the optimizer: until the step ends, weights and step differ

    def _say(self, group: Group) -> Control:
        """Return what this worker has to say in the coming step's all-reduce."""
        orders, control = self._link.orders, Control()
        control.leave = float(self._membership.ready_to_leave)
        control.save = float(group.rank == 0 and self._saver.due)
        wish = orders.save
        if wish is not None and self._saver.is_new(wish):
            control.urgent = 1.0
            control.left_s = wish.left_s
        if orders.stop is not None or self._signals.number:
            control.stop = 1.0
            control.drop = float(orders.stop is not None and not orders.stop.save)
        figures = self._figures
        control.loss, control.losses, control.tokens = figures.loss, figures.losses, figures.tokens
        return control

    def _end_step(self, group: Group) -> None:
        """Commit the step that the loop body ran, and do what all ranks agreed on."""
        self._gradients.finish()
        heard = self._gradients.heard
        if self._gradients.failure is not None or heard is None:
            return self._lose_group(group, str(self._gradients.failure))
        self._undo.keep()
        self._state.step += 1
        self._saver.count(self._clock.end())
        self._report(group, heard)
        self._act(group, heard)
        return None

    def _act(self, group: Group, heard: Control) -> None:
        orders = self._link.orders
        if orders.interval_s is not None:
            self._saver.interval_s = orders.interval_s
        if heard.stop:
            self._stop(group, save=not heard.drop)
        wish = agreed(heard)
        if wish is not None:
            self._begin_save("emergency", wish, orders.save)
        elif heard.save:
            self._begin_save("periodic")
        if self._saver.fenced is not None:
            raise self._saver.fenced
        if heard.leave == group.world:
            self._leave_group(group)
        elif orders.leave:
            self._leave_soon(group)

    def _begin_save(self, kind: str, *wishes: SaveWish | None) -> None:
        refuse_diverged(self._model, self._state.step, self._saver.newest_durable)
        deadlines = [w.deadline_s for w in wishes if w is not None and w.deadline_s is not None]
        first_s = min(deadlines, default=None)
        self._saver.save(self._state.step, self._state.take(), kind=kind, deadline_s=first_s)
        self._saver.note_begun(*wishes)

    def _report(self, group: Group, heard: Control) -> None:
        if group.rank != 0:
            return
        if self._formed is not None:
            self._link.send(self._formed)
            self._formed = None
        figures = self._figures
        if group.world == 1 and figures.losses:
            heard.loss, heard.losses = figures.loss, figures.losses
            heard.tokens = figures.tokens
        if self._clock.may_report():
            loss = heard.loss / heard.losses if heard.losses > 0 else None
            self._link.send(
                Stepped(self._state.step, self._clock.step_ms, loss, round(heard.tokens))
            )

    # -- from group to group -------------------------------------------------------------------

    def _settled_group(self) -> Group:
        """Return the group to train in, joining the next one where that is needed."""
        while self._group is None:
            group = self._alone() if self._link.alone else self._next_group()
            try:
                formed = self._state.sync(group, self._saver, self._watch)
            except GroupError as error:
                self._lose_group(group, str(error))
                continue
            if group.rank == 0:
                self._charge(group)
            else:
                self._saver.step_down()
            self._group, self._formed = group, self._clock.formed(formed)
        return self._group

    def _alone(self) -> Group:
        return Group(0, 0, ("127.0.0.1",))

    def _charge(self, group: Group) -> None:
        if self._link.alone:
            self._saver.take_charge_alone()
        else:
            self._saver.take_charge(group.number)

    def _next_group(self) -> Group:
        """Wait until the next generation's group stands; may end the process."""
        membership = self._membership
        while True:
            orders = self._link.orders
            if orders.stop is not None or self._signals.number:
                self._stop(None, save=orders.stop is None or orders.stop.save)
            if orders.leave and (membership.excluded or not membership.next_number):
                self._exit(0)
            group = membership.adopt()
            if group is not None:
                return group
            if orders.leave:
                self._exit(0)
            if membership.next_number and not membership.excluded:
                reason = membership.trouble or self._reason
                self._patience.complain(membership.next_number, self.step, reason)
            membership.wait(0.1)

    _reason = "no group yet"

    def _lose_group(self, group: Group, reason: str) -> None:
        """The group broke in a step or while it formed: leave no trace of the step, wait."""
        reason = reason[:200]
        _log.warning("generation %d broke at step %d: %s", group.number, self.step, reason)
        self._undo.undo()
        self._feed.rewind()
        self._figures.begin_step(0)
        self._group, self._reason = None, reason
        if not self._link.alone:
            self._membership.drop()
            newest = self._membership.next_number
            self._patience.lost(group.number, newest, self.step, reason)

    def _leave_group(self, group: Group) -> None:
        """All members are ready for the next generation: go there together."""
        if group.rank == 0 and self._membership.survivors() == 0:
            self._save_last(kind="emergency")  # nobody carries the live state on
        self._group, self._reason = None, "waiting for the next group"
        self._membership.drop()

    def _leave_soon(self, group: Group) -> None:
        """Told to leave: hand over at the step that all agree on, or now if none is coming."""
        now_s = time.monotonic()
        if self._leave_limit_s is None:
            self._leave_limit_s = now_s + 5.0
        if not self._membership.excluded or now_s > self._leave_limit_s:
            if group.rank == 0 and not self._membership.survivors():
                self._save_last(kind="emergency")
            self._exit(0)

    # -- the end -------------------------------------------------------------------------------

    def _finish(self, group: Group) -> bool:
        """Make the last step durable; returns False if a member was lost meanwhile."""
        refuse_diverged(self._model, self._state.step, self._saver.newest_durable)
        saved = self._save_last(kind="final") if group.rank == 0 else True
        try:
            rows = group.gather_rows([int(saved)])
        except GroupError as error:
            self._lose_group(group, str(error))
            return False
        if group.rank == 0:
            if self._formed is not None:
                self._link.send(self._formed)
            self._link.send(Finished(self._state.step))
        if not all(row[0] for row in rows):
            _log.error("the final checkpoint could not be written")
        return True

    def _save_last(self, *, kind: str) -> bool:
        """Save and wait until it is durable; returns False if it is not."""
        checkpointer = self._saver.checkpointer
        if checkpointer is None:
            return True
        self._saver.wait()
        if self._saver.newest() == self._state.step:
            return True  # by interval, by the worker that was in charge before, or loaded from it
        if (bad := first_bad(self._model)) is not None:
            _log.error("step %d is not saved: %s holds NaN or infinity", self._state.step, bad)
            return False
        self._saver.save(self._state.step, self._state.take(), kind=kind)
        self._saver.wait()
        if self._saver.fenced is not None:
            raise self._saver.fenced
        durable = checkpointer.last_durable
        return durable is not None and durable.step == self._state.step

    def _stop(self, group: Group | None, *, save: bool) -> NoReturn:
        """End the run at this step; the others wait until rank 0's save is durable."""
        if save and self._state.step >= 0:
            if self._saver.in_charge:
                self._save_last(kind="final")
            if group is not None and group.pg is not None:
                try:
                    group.gather_rows([1])
                except GroupError:
                    _log.warning("a member was lost during the final save")
        self._exit(128 + self._signals.number if self._signals.number else 0)

    def _exit(self, code: int) -> NoReturn:
        raise SystemExit(code)
