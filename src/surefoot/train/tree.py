"""Gradients whose bits do not depend on how many workers there are: fixed shards, a fixed tree.

The global batch is cut into a fixed number of shards. A worker computes its shards one after the
other, keeps each gradient apart, and the shards' gradients are added in pairs, then pairs of
pairs. Whoever computed a shard, the numbers that are added and their order are the same. Every
worker adds up one slice of the parameters (all-to-all), then all slices go to all (all-gather).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from surefoot.errors import ConfigError, NotBuiltError
from surefoot.train.control import SLOTS, Control
from surefoot.train.gradients import GradientSum, hook
from surefoot.train.group import Group
from surefoot.train.sampler import parts_of

SHARDS = 8
"""Shards of a global batch unless the script says otherwise: as many workers can share it."""


def tree_sum(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum over dimension 0 of (shards, n), by pairs; overwrites `rows`."""
    count = rows.shape[0]
    while count > 1:
        half = count // 2
        rows[:half] = rows[0 : 2 * half : 2] + rows[1 : 2 * half : 2]
        if count % 2:
            rows[half] = rows[count - 1]
        count = half + count % 2
    return rows[0]


@dataclass(slots=True, eq=False)
class _Kind:
    """All parameters of one dtype as columns of one table of shards."""

    params: list[nn.Parameter]
    size: int
    rows: torch.Tensor


class TreeSum:
    """Like GradientSum, but the same bits for any number of workers.

    Raises ConfigError or NotBuiltError for models whose state depends on who computed what.
    """

    def __init__(self, model: nn.Module, shards: int) -> None:
        if shards < 1:
            raise ConfigError(f"shards must be 1 or more, not {shards}")
        _refuse_running_statistics(model)
        self.shards = shards
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._kinds: list[_Kind] = []
        self._group: Group | None = None
        self._parts = range(0)
        self._part, self._weight = 0, 1.0
        self._queued = self._kept = False
        self._used = [0.0] * len(self._params)
        self.reducing = False
        self.control = Control()
        self.heard: Control | None = None
        self.failure: Exception | None = None
        self._hooks = [hook(p, self._ready) for p in self._params]

    def close(self) -> None:
        """Take the hooks off the model."""
        for each in self._hooks:
            each.remove()
        self._hooks = []

    def begin(self, group: Group, weight: float, control: Control, parts: int = 1) -> None:
        """Start a step with its first part; `weight` is that part's in the global mean."""
        self._group, self.control = group, control
        self.heard, self.failure = None, None
        self._parts = parts_of(self.shards, group.rank, group.world)
        self._make_room(group.world)
        self._used = [0.0] * len(self._params)
        self.begin_part(0, weight)

    def begin_part(self, part: int, weight: float) -> None:
        """Start the part-th of this rank's shards."""
        self._part, self._weight = part, weight
        self._queued = self._kept = False

    def finish_part(self) -> None:
        """End a part that is not the last: its gradient is kept, the model's are gone."""
        if not self._kept:
            self._keep()

    def finish(self) -> None:
        """Reduce if the loop body of the last part ran no backward."""
        if self.heard is None and self.failure is None:
            self._ended()

    def _ready(self, param: torch.Tensor) -> None:
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._ended)

    def _ended(self) -> None:
        """A part's backward is over (called by autograd)."""
        self._queued = False
        if not self._kept:
            self._keep()
        if self._group is not None and self._part + 1 >= len(self._parts):
            self.reducing = True
            try:
                self._reduce(self._group)
            except RuntimeError as error:
                self._group.cut()
                self.failure = error
                self._forget()
            finally:
                self.reducing = False

    def _keep(self) -> None:
        """Move this part's gradient into its row, by its weight."""
        self._kept = True
        if self._part < len(self._parts):
            for kind in self._kinds:
                _copy(kind, kind.rows[self._part], self._weight)
            for i, param in enumerate(self._params):
                self._used[i] += param.grad is not None
        self._forget()

    def _reduce(self, group: Group) -> None:
        used = torch.tensor([*self._used, *self.control.values()])
        if group.pg is not None:
            group.settle(group.sum_async(used))
        for kind in self._kinds:
            _hand_back(kind, self._sum(kind, group))
        for param, count in zip(self._params, used.tolist(), strict=False):
            if count == 0:
                param.grad = None
        self.heard = Control(*used[-SLOTS:].tolist())

    def _sum(self, kind: _Kind, group: Group) -> torch.Tensor:
        """Return the flat sum over all shards of all ranks."""
        if group.pg is None:
            return tree_sum(kind.rows)
        world, mine = group.world, len(self._parts)
        slice_size = kind.rows.shape[1] // world
        out = kind.rows[:mine].view(mine, world, slice_size).transpose(0, 1).contiguous()
        every = torch.empty(self.shards, slice_size, dtype=out.dtype)
        counts = [len(parts_of(self.shards, rank, world)) * slice_size for rank in range(world)]
        sizes = [mine * slice_size] * world
        group.settle(group.pg.alltoall_base(every.view(-1), out.view(-1), counts, sizes))
        whole = torch.empty(world * slice_size, dtype=out.dtype)
        group.settle(group.pg._allgather_base(whole, tree_sum(every).contiguous()))
        return whole

    def _forget(self) -> None:
        for param in self._params:
            param.grad = None

    def _make_room(self, world: int) -> None:
        """Have a row for each of this rank's shards, as wide as `world` equal slices."""
        if not self._kinds:
            kinds: dict[torch.dtype, list[nn.Parameter]] = {}
            for param in self._params:
                if param.device.type != "cpu" and world > 1:
                    raise NotBuiltError("groups of more than one worker are built for CPU only")
                kinds.setdefault(param.dtype, []).append(param)
            for params in kinds.values():
                size = sum(p.numel() for p in params)
                self._kinds.append(_Kind(params, size, params[0].new_zeros(0, 0)))
        for kind in self._kinds:
            shape = (max(1, len(self._parts)), -(-kind.size // world) * world)
            if kind.rows.shape != shape:
                kind.rows = kind.params[0].detach().new_zeros(shape)


def gradients_of(model: nn.Module, shards: int) -> GradientSum | TreeSum:
    """Return what sums a model's gradients; with `shards`, in a fixed order, which torch is told.

    Sets torch.use_deterministic_algorithms then.
    """
    if not shards:
        return GradientSum(model)
    summing = TreeSum(model, shards)
    torch.use_deterministic_algorithms(True)
    return summing


def _copy(kind: _Kind, row: torch.Tensor, weight: float) -> None:
    """Write the gradients, times the weight, into a row; absent ones are zeros."""
    if weight == 0.0:
        row.zero_()  # not 0 * gradient: that would let a NaN through
        return
    at = 0
    for param in kind.params:
        place = row[at : at + param.numel()]
        at += param.numel()
        if param.grad is None:
            place.zero_()
        elif param.grad.is_sparse:
            raise NotBuiltError("sparse gradients are not built yet: use sparse=False")
        else:
            torch.mul(param.grad.reshape(-1), weight, out=place)


def _hand_back(kind: _Kind, flat: torch.Tensor) -> None:
    at = 0
    for param in kind.params:
        param.grad = flat[at : at + param.numel()].view(param.shape).clone()
        at += param.numel()


def _refuse_running_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise NotBuiltError(
                f"deterministic=True: {name} keeps running means of what one worker saw",
                hint="use LayerNorm or GroupNorm, or track_running_stats=False",
            )
