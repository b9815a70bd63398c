"""What a loop body changes besides weights, kept so that a failed step leaves no trace."""

from __future__ import annotations

import copy
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from surefoot.train.sampler import mix


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed every library's generator for one step of one rank.

    Random numbers are so a function of (seed, step, rank): they need no place in a checkpoint,
    and a step that is done again, after a resume or a lost member, draws the same ones.
    """
    value = mix(seed, step, rank)
    torch.default_generator.manual_seed(value & 0x7FFFFFFFFFFFFFFF)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(value & 0x7FFFFFFFFFFFFFFF)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


class StepUndo:
    """The scheduler and the optimizer's settings as they were before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        self._optimizer, self._scheduler = optimizer, scheduler
        self._settings: list[dict[str, Any]] = []
        self._schedule: Any = None
        self._marked = False

    def mark(self) -> None:
        """Remember."""
        self._marked = True
        groups = self._optimizer.param_groups
        self._settings = [{k: v for k, v in g.items() if k != "params"} for g in groups]
        if self._scheduler is not None:
            self._schedule = copy.deepcopy(self._scheduler.state_dict())

    def keep(self) -> None:
        """The step counts: there is nothing to put back."""
        self._marked = False

    def undo(self) -> None:
        """Put back what was remembered, once."""
        if not self._marked:
            return
        self._marked = False
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=False):
            group.update(settings)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(self._schedule)


def gate(scaler: torch.amp.GradScaler, stepped: Callable[[], bool]) -> None:
    """Let a grad scaler do nothing in a step whose gradients are not there.

    Without gradients it would stop the script ("No inf checks were recorded").
    """

    def only_if_stepped(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def gated(*args: Any, **more: Any) -> Any:
            if stepped():
                return call(*args, **more)
            scaler._per_optimizer_states.clear()
            return None

        return gated

    for name in ("unscale_", "step", "update"):
        setattr(scaler, name, only_if_stepped(getattr(scaler, name)))
