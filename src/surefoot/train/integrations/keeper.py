"""What all integrations share: when to save, by agreement of all ranks, and where it goes."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from surefoot.checkpoint import Checkpointer, SaveHandle, open_storage
from surefoot.checkpoint.commit import read_log
from surefoot.checkpoint.drain import DEFAULT_EVERY_S, target_from
from surefoot.errors import ConfigError, SurefootError

_STEP_EVERY_S = 0.5


def library(name: str, *, extra: str) -> Any:
    """Import a library that an integration is for. Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} is not installed ({error})", hint=f"pip install {extra}"
        ) from error


class Keeper:
    """Saves at an interval and when asked: by the agent, by a notice, or by SIGTERM.

    Ask `due(step)` on every rank after each step, in the same order. It returns why to save
    ("periodic", "emergency"), the same on all ranks, or None. On a SIGTERM without an agent
    `stopping` is True from then on: save, and end. `split`: every rank writes its share.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        keep: int | None = None,
        interval_s: float = 300.0,
        split: bool = False,
    ) -> None:
        env = os.environ
        if env.get("SUREFOOT_AGENT"):
            raise ConfigError(
                "this trainer cannot re-form in place, as `engine: live` needs it to",
                hint="set engine: torchrun in the job file",
            )
        where = os.fspath(path) if path else env.get("SUREFOOT_CHECKPOINT")
        if not where:
            raise ConfigError("no checkpoint path is set", hint="pass one, or SUREFOOT_CHECKPOINT")
        if not interval_s > 0:
            raise ConfigError(f"interval_s must be above 0, not {interval_s}")
        self.path, self.interval_s, self.stopping = where, interval_s, False
        self._request = _place(env.get("SUREFOOT_SAVE_FILE"))
        self._answer = _place(env.get("SUREFOOT_SAVED_FILE"))
        self._steps = _place(env.get("SUREFOOT_STEP_FILE"))
        self._keep = keep or int(env.get("SUREFOOT_KEEP") or 3)
        self._split = split
        self._drain = target_from(env)
        self.second = self._drain.url if self._drain else None
        self._checkpointer: Checkpointer | None = None
        self._side: Any = None
        self._saved_s = self._told_s = time.monotonic()
        self._signalled = False
        self._old: Any = None
        self._last: SaveHandle | None = None
        self._report: threading.Thread | None = None
        if self._request is None and threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGTERM, self._on_signal)

    @property
    def rank(self) -> int:
        """This process's number, 0 without torch.distributed."""
        return dist.get_rank() if _distributed() else 0

    @property
    def world(self) -> int:
        """Number of processes."""
        return dist.get_world_size() if _distributed() else 1

    @property
    def checkpointer(self) -> Checkpointer:
        """The engine, opened on first use: rank 0 takes charge of the path."""
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(
                self.path,
                keep=self._keep,
                generation=self._generation(),
                rank=self.rank,
                world=self.world,
                split=self._split,
                drain_to=self.second,
                drain_every_s=self._drain.every_s if self._drain else DEFAULT_EVERY_S,
            )
        return self._checkpointer

    def due(self, step: int) -> str | None:
        """Return why to save after `step`, agreed by all ranks, or None."""
        self._tell_step(step)
        mine = 0.0
        if self.rank == 0:
            asked = self._request is not None and self._request.exists()
            late = self._request is None and time.monotonic() - self._saved_s >= self.interval_s
            mine = 2.0 if asked else float(late)
        code = self._agree(3.0 if self._signalled else mine)
        if code == 3.0:
            self.stopping = True
        return {0.0: None, 1.0: "periodic"}.get(code, "emergency")

    def save(self, step: int, state: Any, *, kind: str) -> SaveHandle:
        """Start to save (rank 0 writes); the agent hears of it once it is durable.

        A step that is saved already, or on its way, is not saved twice.
        """
        if self._last is not None and self._last.step == step:
            return self._last
        self._last = handle = self.checkpointer.save(step, state, kind=kind, blocking=self.stopping)
        self._saved_s = time.monotonic()
        if self.rank == 0:
            self._report = threading.Thread(target=self._tell_saved, args=(handle,), daemon=True)
            self._report.start()
        return handle

    def answered(self, step: int) -> None:
        """Tell the agent that `step` is durable, for a save that somebody else has made."""
        self._saved_s = time.monotonic()
        if self.rank == 0:
            self._say_saved(step)

    def load(self) -> tuple[int, Any] | None:
        """Return (step, state) of the newest good checkpoint, None where none was ever saved.

        Raises CorruptError when there are checkpoints and none is good.
        """
        reader = Checkpointer(self.path, read_only=True, drain_to=self.second)
        try:
            if not reader.steps():
                return None
            step, state, _ = reader.load()
        finally:
            reader.close()
        return step, state

    def close(self) -> None:
        """Finish what is on its way."""
        if self._report is not None:
            self._report.join()
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None
        if self._old is not None:
            signal.signal(signal.SIGTERM, self._old)
            self._old = None

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------

    def _generation(self) -> int:
        """Return the agent's generation, above what the path was ever claimed with."""
        paths = [self.path, *([self.second] if self.second else [])]
        claimed = max(0, *(read_log(open_storage(path)).generation for path in paths))
        ours = int(os.environ.get("SUREFOOT_GENERATION") or 0)
        return ours if ours >= claimed else claimed

    def _agree(self, mine: float) -> float:
        if self.world == 1:
            return mine
        if self._side is None:  # on the CPU: a training step need not wait for the device
            self._side = dist.new_group(backend="gloo")
        code = torch.tensor([mine])
        dist.all_reduce(code, op=dist.ReduceOp.MAX, group=self._side)
        return float(code.item())

    def _tell_step(self, step: int) -> None:
        now_s = time.monotonic()
        if self._steps is None or self.rank != 0 or now_s - self._told_s < _STEP_EVERY_S:
            return
        self._told_s = now_s
        _write(self._steps, str(step))

    def _tell_saved(self, handle: SaveHandle) -> None:
        with contextlib.suppress(SurefootError):  # the handle's owner and a warning tell of it
            handle.wait()
            self._say_saved(handle.step)

    def _say_saved(self, step: int) -> None:
        if self._answer is not None:
            _write(self._answer, str(step))
        if self._request is not None:
            self._request.unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True  # a flag only: the save comes at a step's end
        signal.signal(signal.SIGTERM, self._old)


def _place(text: str | None) -> Path | None:
    return Path(text) if text else None


def _write(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text + "\n")
    new.replace(path)


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
