"""The engine for commands that cannot re-form in place: one start of torchrun for each generation.

Membership comes from the controller, so every start is torchrun's static rendezvous with a store
of its own: no key of an older group can be read, a loss is found by the heartbeats (and not by a
collective's timeout), and the controller may be away. The agent says on the script's behalf that
it is ready, formed, has stepped, saved and ended.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.core.wire import (
    Broken,
    Formed,
    Generation,
    Leave,
    Message,
    Noticed,
    Ready,
    Saved,
    SaveNow,
    SetInterval,
    Stepped,
    Stop,
    StoreUp,
    WorkerExited,
)
from surefoot.train.child import Child, worker_environment
from surefoot.train.crew import Say
from surefoot.train.launch import launch_environment
from surefoot.train.script import Script, ScriptTerms

AGAIN_EXIT = 75
"""Exit code of a script that wants to be started again and had no bug (EX_TEMPFAIL)."""

_COLLATERAL = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|DistNetworkError|DistBackendError"
    r"|[Gg]loo|NCCL|recvValue|[Ss]ocket [Tt]imeout|TCPStore"
)
"""Output of a trainer that fails because another one did."""

_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")

_VERDICT_S = 2.0
"""A failure that no loss explains within this time is the script's own (a loss shows in 1.5 s)."""

_SETTLED_S = 3.0
"""A script that shows no steps counts as training when it has lived this long."""

_PATIENCE_S = 20.0
"""How long a change of the group waits for the save that comes before it."""

_SHORT_PATIENCE_S = 2.0
"""The same for a script that has never answered."""

_STOP_S = 5.0
"""From SIGTERM to SIGKILL when the script is to be started again."""

_URGENT_S = 1.0
"""The same when its group is lost."""

_log = logging.getLogger("surefoot.agent")


@dataclass(slots=True)
class _Launch:
    """One start of the command in one generation."""

    order: Generation
    rank: int
    child: Child
    started_s: float
    before: int
    """Steps that the start before had shown."""
    formed: bool = False
    kill_s: float | None = None
    """When it is killed; set once it was told to end."""


@dataclass(slots=True)
class _Failure:
    """A start that ended with an error, until it is known whether a loss explains it."""

    generation: int
    code: int
    tail: str
    due_s: float
    told: bool = False


class ScriptCrew:
    """Runs a plain command in this VM, once for each generation, and speaks for it."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        command: str,
        setup: str,
        workdir: str,
        vm_dir: Path,
        terms: ScriptTerms,
        workers: int,
        grace_s: float,
        max_crashes: int,
        say: Say,
    ) -> None:
        self._command, self._setup, self._workdir = command, setup, workdir
        self._log, self._workers = vm_dir / "worker.log", workers
        self._env = worker_environment(env, "")
        del self._env["SUREFOOT_AGENT"]
        self._env["SUREFOOT_ENGINE"] = "torchrun"
        self._token, self._address = env["SUREFOOT_TOKEN"], env["SUREFOOT_ADDRESS"]
        self._run = env.get("SUREFOOT_RUN") or "run"
        self._grace_s, self._max_crashes, self._say = grace_s, max_crashes, say
        self._script = Script(terms, vm_dir, Path(workdir or "."), self._log)
        self._began_s = self._retry_s = time.monotonic()
        self._preparing: Child | None = None
        self._prepared = self._over = False
        self._launch: _Launch | None = None
        self._next: Generation | None = None
        self._newest = 0
        self._heard_s = self._told_saved_s = 0.0
        self._store: StoreUp | None = None
        self._failure: _Failure | None = None
        self._crashes = self._failed_setups = 0
        self._interval_s = float("inf")
        self._leaving: float | None = None
        self._lost_s: float | None = None

    # -- what the agent needs --------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether anything of the command runs."""
        return self._launch is not None or self._preparing is not None

    def hear(self, message: Message) -> None:
        """Act on what the controller says, or on a notice."""
        now_s = time.monotonic()
        match message:
            case Generation():
                self._new_generation(message, now_s)
            case StoreUp():
                self._store = message
            case SetInterval():
                self._interval_s = max(message.interval_ms, 1) / 1000
            case SaveNow() | Noticed():
                self._ask(getattr(message, "reason", "") or "notice", message.left_ms)
            case Saved() if not message.error:
                self._told_saved_s = now_s
            case Leave():
                self._leave(now_s, save=True)
            case Stop():
                self._leave(now_s, save=message.save)
            case _:
                pass

    def turn(self, now_s: float) -> None:
        """Do what is due."""
        if not self._prepared:
            return self._prepare(now_s)
        if self._launch is not None:
            self._look(self._launch, now_s)
        if self._launch is not None:
            self._watch(self._launch, now_s)
        self._judge(now_s)
        if self._leaving is not None:
            self._wind_up(now_s)
        elif self._next is not None:
            self._go_on(self._next, now_s)
        return None

    def kill(self) -> None:
        """End all that the command has started."""
        for child in (self._preparing, self._launch.child if self._launch else None):
            if child is not None:
                child.kill()
        self._preparing = self._launch = None

    # -- set-up ----------------------------------------------------------------------------------

    def _prepare(self, now_s: float) -> None:
        """Run the set-up once, then say that the VM is ready."""
        if self._preparing is None:
            if self._leaving is not None or now_s < self._retry_s:
                return
            if not self._setup.strip():
                return self._be_ready(now_s)
            self._preparing = self._start(self._setup, {})
            return
        code = self._preparing.exit_code()
        if code is None:
            return
        tail = self._preparing.tail() if code else ""
        self._preparing = None
        if code == 0:
            return self._be_ready(now_s)
        self._failed_setups += 1
        self._retry_s = now_s + min(30.0, 0.5 * 2**self._failed_setups)
        if self._failed_setups > self._max_crashes:
            self._retry_s = float("inf")
        self._say(WorkerExited(code, tail))

    def _be_ready(self, now_s: float) -> None:
        self._prepared = True
        self._say(Ready(round(1000 * (now_s - self._began_s))))

    # -- the present start -----------------------------------------------------------------------

    def _look(self, launch: _Launch, now_s: float) -> None:
        """Pass on what the script shows; ask for a save when the interval is over."""
        for message in self._script.look(now_s):
            if launch.rank != 0:
                continue  # rank 0 speaks for all
            if isinstance(message, Stepped) and not launch.formed:
                self._form(launch, message.step, now_s)
            self._say(message)
        quiet = launch.kill_s is None and self._next is None and self._leaving is None
        since_s = max(self._script.saved_s, launch.started_s)
        if launch.rank == 0 and launch.formed and quiet and now_s - since_s >= self._interval_s:
            self._ask("interval", None)
        mute = not launch.formed and launch.rank == 0 and not self._script.tells_steps
        if mute and now_s - launch.started_s >= _SETTLED_S and launch.child.exit_code() is None:
            self._form(launch, self._script.step, now_s)

    def _form(self, launch: _Launch, step: int, now_s: float) -> None:
        """Say that training goes on; `step` is the first that was shown."""
        launch.formed = True
        began = max(0, step - 1) if self._script.stepped else step
        source = "checkpoint" if began > 0 else "fresh"
        paused_ms = 0 if self._lost_s is None else round(1000 * (now_s - self._lost_s))
        self._lost_s = None
        lost = max(0, launch.before - began)
        world = len(launch.order.tokens) * self._workers
        self._say(Formed(launch.order.number, began, world, lost, source, paused_ms))

    def _watch(self, launch: _Launch, now_s: float) -> None:
        """See whether the command has ended; end it where that is overdue."""
        code = launch.child.exit_code()
        if code is None:
            if launch.kill_s is not None and now_s >= launch.kill_s:
                launch.child.kill()
            return
        for message in self._script.look(now_s + 1.0):  # its last words
            if launch.rank == 0:
                self._say(message)
        tail = launch.child.tail() if code else ""
        launch.child.kill()  # what it left running
        told = launch.kill_s is not None
        self._launch, self._lost_s = None, now_s
        _log.info("generation %d: the command ended with %d", launch.order.number, code)
        if told or self._leaving is not None or self._next is not None:
            return
        if code == 0:
            self._finish(launch, now_s)
        else:
            self._fail(launch, code, tail, now_s)

    def _finish(self, launch: _Launch, now_s: float) -> None:
        if launch.rank == 0 and not launch.formed:
            self._form(launch, self._script.step, now_s)
        self._say(WorkerExited(0))

    def _fail(self, launch: _Launch, code: int, tail: str, now_s: float) -> None:
        number = launch.order.number
        reason = f"the command ended with {code}"
        self._say(Broken(number, self._script.step, reason))
        wait_s = _VERDICT_S * (2 if _COLLATERAL.search(tail) else 1)  # the cause speaks first
        self._failure = _Failure(number, code, tail, now_s + wait_s)

    def _judge(self, now_s: float) -> None:
        """Report a failure that no loss has explained."""
        failure = self._failure
        if failure is None or now_s < failure.due_s:
            return
        if not failure.told:
            self._tell_failure(failure)
        self._say(Broken(failure.generation, self._script.step, "waits for another start"))
        failure.due_s = now_s + 3.0

    def _tell_failure(self, failure: _Failure) -> None:
        failure.told = True
        if failure.code == AGAIN_EXIT or _PORT_TAKEN.search(failure.tail):
            return
        self._crashes += 1
        self._retry_s = time.monotonic() + min(30.0, 0.5 * 2 ** (self._crashes - 1))
        self._say(WorkerExited(failure.code, failure.tail, failure.generation))

    def _ask(self, reason: str, left_ms: int | None) -> bool:
        """Ask the script for a save if its rank 0 is here; returns whether that was possible."""
        launch = self._launch
        if launch is None or launch.rank != 0 or launch.kill_s is not None:
            return False
        return self._script.ask(reason, left_ms, launch.child.pids(), rank=0)

    # -- from generation to generation -----------------------------------------------------------

    def _new_generation(self, order: Generation, now_s: float) -> None:
        if order.number <= self._newest:
            return
        self._newest = order.number
        failure, self._failure = self._failure, None
        if failure is not None and not failure.told and not order.lost:
            self._tell_failure(failure)
        if self._token not in order.tokens:
            self._next = None  # Leave comes with it
            return
        self._next, self._heard_s = order, now_s
        if self._launch is not None and not order.urgent:
            self._ask("the group changes", None)

    def _go_on(self, order: Generation, now_s: float) -> None:
        launch, first = self._launch, order.tokens[0] == self._token
        if launch is not None:
            if launch.kill_s is not None:
                return
            if order.urgent:
                return self._stop(launch, now_s, _URGENT_S)
            if first and self._is_saved(now_s):
                self._publish(order)
            if self._store is not None and self._store.generation == order.number:
                self._stop(launch, now_s, _STOP_S)
            return
        if now_s < self._retry_s:
            return
        known = self._store is not None and self._store.generation == order.number
        if first and not known and (not order.former or order.urgent or self._is_saved(now_s)):
            self._publish(order)
        if self._store is not None and self._store.generation == order.number:
            self._begin(order, (self._store.host, self._store.port), now_s)

    def _is_saved(self, now_s: float) -> bool:
        """Whether the save before a change is done, or no longer waited for."""
        if self._launch is not None and not self._launch.formed:
            return True  # it has done nothing yet
        patience_s = _SHORT_PATIENCE_S if self._script.unanswered else _PATIENCE_S
        if max(self._script.saved_s, self._told_saved_s) >= self._heard_s:
            return True
        if now_s - self._heard_s < patience_s:
            return False
        self._script.give_up()
        return True

    def _publish(self, order: Generation) -> None:
        """Say where this VM's torchrun will serve the generation's store."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        self._store = StoreUp(order.number, self._address, port)
        self._say(self._store)

    def _stop(self, launch: _Launch, now_s: float, grace_s: float) -> None:
        """Tell the script to end; it is killed after the grace."""
        self._lost_s = now_s if self._lost_s is None else self._lost_s
        launch.child.end()
        launch.kill_s = now_s + grace_s

    def _begin(self, order: Generation, store: tuple[str, int], now_s: float) -> None:
        self._next = None
        before = self._script.step
        self._script.begin()
        env = self._script.environment() | launch_environment(
            order,
            self._token,
            store,
            workers=self._workers,
            run=self._run,
            grace_s=self._grace_s,
        )
        child = self._start(self._command, env)
        if child is not None:
            rank = order.tokens.index(self._token)
            self._launch = _Launch(order, rank, child, now_s, before)
            _log.info(
                "generation %d: rank %d of %d, pid %d",
                order.number,
                rank,
                len(order.tokens),
                child.pid,
            )

    def _start(self, command: str, more: Mapping[str, str]) -> Child | None:
        try:
            return Child(command, self._workdir, {**more, **self._chosen(more)}, self._log)
        except OSError as error:
            self._say(WorkerExited(127, f"{command}: {error}"))
            self._retry_s = float("inf")
            return None

    def _chosen(self, more: Mapping[str, str]) -> dict[str, str]:
        """Return the job's environment; its own network interface wins over what we found."""
        ours = {name for name in more if not name.endswith("_SOCKET_IFNAME")}
        return {name: value for name, value in self._env.items() if name not in ours}

    # -- the end ---------------------------------------------------------------------------------

    def _leave(self, now_s: float, *, save: bool) -> None:
        if self._leaving is not None:
            return
        self._leaving, self._heard_s = now_s, now_s
        if self._preparing is not None:
            self._preparing.kill()
            self._preparing = None
        launch = self._launch
        if launch is None:
            return
        if not save or self._next is not None or not launch.formed:
            self._stop(launch, now_s, _URGENT_S)
        elif launch.rank == 0 and not self._ask("this VM leaves", None):
            self._stop(launch, now_s, self._grace_s)  # SIGTERM is its request

    def _wind_up(self, now_s: float) -> None:
        """End once the last save is done: rank 0 hears it from the script, others from rank 0."""
        launch = self._launch
        if launch is None or launch.kill_s is not None:
            return
        if self._is_saved(now_s):
            self._stop(launch, now_s, _STOP_S)
