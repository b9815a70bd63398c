"""When this worker saves, what it reports of it, and where a start finds its state."""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from surefoot.checkpoint import Checkpointer, SaveHandle, open_storage
from surefoot.checkpoint.commit import read_log
from surefoot.checkpoint.drain import DEFAULT_EVERY_S, DrainTarget
from surefoot.core.event import GIVEN_OVER
from surefoot.core.wire import Saved
from surefoot.errors import ConfigError, FencedError, SurefootError
from surefoot.train.link import SaveWish

_log = logging.getLogger("surefoot.train")

_HOLD_S = 60.0
"""How long a large state stays in memory for a worker that is started again after a crash."""

_SAME_DEADLINE_S = 1.5
"""Two wishes whose deadlines are this close come from one notice."""


class Saver:
    """One worker's checkpoints. Every worker counts the work; the one of rank 0 writes."""

    def __init__(
        self,
        path: str | None,
        *,
        keep: int,
        interval_s: float,
        optimizer: Any,
        report: Callable[[Saved], None],
        drain: DrainTarget | None = None,
    ) -> None:
        if not interval_s > 0:
            raise ConfigError(
                f"save_interval_s must be above 0, not {interval_s}",
                hint="use math.inf for no saves by interval",
            )
        self.interval_s = interval_s
        self.fenced: FencedError | None = None
        self._path = path or ""
        self._second = drain.url if drain and path else ""
        self._report = report
        self._work_s = 0.0
        self._begun_s = -math.inf
        self._deadlines: list[float] = []
        self._generation = -1
        self._reports: list[threading.Thread] = []
        self._checkpointer: Checkpointer | None = None
        if path:
            # Rank 1 until this worker is in charge: opening must not claim the path.
            self._checkpointer = Checkpointer(
                path,
                keep=keep,
                rank=1,
                world=2,
                hold_s=_HOLD_S,
                drain_to=drain.url if drain else None,
                drain_every_s=drain.every_s if drain else DEFAULT_EVERY_S,
            )
            self._checkpointer.guard(optimizer)
        else:
            _log.warning("no checkpoint path is set: nothing will be saved")

    @property
    def checkpointer(self) -> Checkpointer | None:
        """The engine, for those who want more of it; None without a path."""
        return self._checkpointer

    # -- loading -------------------------------------------------------------------------------

    def newest(self) -> int:
        """Return the newest loadable step, -1 if there is none."""
        if self._checkpointer is None:
            return -1
        step = self._checkpointer.latest()
        return -1 if step is None else step

    def path_generation(self) -> int:
        """Return the highest generation that has claimed the path, 0 for none (or no path).

        The second tier counts too: a new VM's folder knows nothing of those before it.
        """
        paths = [path for path in (self._path, self._second) if path]
        return max([0, *(read_log(open_storage(path)).generation for path in paths)])

    def load(self) -> tuple[int, Any] | None:
        """Return (step, state) of the newest good checkpoint; None where none was ever saved.

        Raises CorruptError when there are checkpoints and none is good: starting over on top of
        them is the user's decision.
        """
        if self._checkpointer is None or not self._checkpointer.steps():
            return None
        step, state, _ = self._checkpointer.load()
        return step, state

    def newest_durable(self) -> int:
        """Return the step of the newest checkpoint once what is on its way is settled; -1: none."""
        self.wait()
        return self.newest()

    def settle_copy(self) -> None:
        """Return when no copy reads the training state any more."""
        if self._checkpointer is not None:
            self._checkpointer.barrier()

    # -- deciding ------------------------------------------------------------------------------

    def count(self, work_s: float) -> None:
        """Add work that would be lost by now."""
        self._work_s += work_s

    @property
    def due(self) -> bool:
        """Whether the interval is over, and no save is still on its way."""
        busy = self._checkpointer is not None and self._checkpointer.busy
        return self._work_s >= self.interval_s and not busy

    def is_new(self, wish: SaveWish) -> bool:
        """Return whether a wish asks for more than the saves begun so far.

        A save that begins after a wish was uttered fulfils it, whatever its deadline and whoever
        else asked; a later wish with a deadline known by then is the same notice heard again.
        """
        if wish.asked_s <= self._begun_s:
            return False
        if wish.deadline_s is None:
            return wish.asked_s - self._begun_s > _SAME_DEADLINE_S
        deadline_s = wish.deadline_s
        return all(abs(deadline_s - known) > _SAME_DEADLINE_S for known in self._deadlines)

    def note_begun(self, *wishes: SaveWish | None) -> None:
        """Count from here again: all ranks saw that this step is saved, for these wishes."""
        self._work_s, self._begun_s = 0.0, time.monotonic()
        limit_s = self._begun_s - _SAME_DEADLINE_S
        new = [w.deadline_s for w in wishes if w is not None and w.deadline_s is not None]
        self._deadlines = [d for d in self._deadlines if d > limit_s] + new

    # -- saving --------------------------------------------------------------------------------

    def take_charge(self, generation: int) -> None:
        """Be the one who writes, from `generation` on. Raises FencedError if a newer one is."""
        if self._checkpointer is not None and self._generation < 0:
            self._checkpointer.advance(generation, rank=0, world=1)
        self._generation = generation

    def take_charge_alone(self) -> None:
        """Be the one who writes, in a script without an agent: whoever comes last has the path."""
        if self._checkpointer is not None and self._generation < 0:
            self.take_charge(self.path_generation())

    @property
    def in_charge(self) -> bool:
        """Whether this worker is the one who writes."""
        return self._generation >= 0

    def step_down(self) -> None:
        """Write no more; a save on its way may still become durable, unless it is fenced."""
        self._generation = -1

    def save(self, step: int, state: Any, *, kind: str, deadline_s: float | None = None) -> bool:
        """Start to save, report when it is durable; returns whether one was started."""
        if self._checkpointer is None or self._generation < 0:
            return False
        try:
            handle = self._checkpointer.save(step, state, kind=kind)
        except FencedError as error:
            self.fenced = error
            return False
        thread = threading.Thread(
            target=self._finish,
            args=(handle, kind, deadline_s, self._generation),
            name="surefoot-saved",
            daemon=True,
        )
        thread.start()
        self._reports = [t for t in self._reports if t.is_alive()] + [thread]
        return True

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when every save on its way is settled and reported."""
        for thread in self._reports:
            thread.join(timeout_s)

    def close(self) -> None:
        """Finish what is on its way."""
        self.wait()
        if self._checkpointer is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self._checkpointer.close()
                except SurefootError as error:
                    _log.warning("the last save failed: %s", error)

    def _finish(
        self, handle: SaveHandle, kind: str, deadline_s: float | None, generation: int
    ) -> None:
        error, saved = "", None
        try:
            saved = handle.wait()
        except FencedError as fence:
            error = str(fence)
            if self._generation == generation:
                self.fenced = fence
            else:  # this worker has left the charge to another, who saves the same work again
                error = f"{GIVEN_OVER} to the next group, which saves from here on"
        except Exception as trouble:  # reported, and the work counts as unsaved again
            error = f"{type(trouble).__name__}: {trouble}"
            self._work_s = max(self._work_s, self.interval_s / 2)
        margin_ms = None if deadline_s is None else round((deadline_s - time.monotonic()) * 1000)
        if error:
            _log.warning("the save of step %d is void: %s", handle.step, error)
        self._report(
            Saved(
                handle.step,
                stall_ms=round(handle.stall_s * 1000),
                persist_ms=round(saved.persist_s * 1000) if saved else 0,
                size_bytes=saved.n_bytes if saved else 0,
                emergency=kind == "emergency",
                margin_ms=margin_ms,
                error=error,
            )
        )
