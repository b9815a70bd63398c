"""How gradients become the same on all ranks: flat buckets, summed while backward still runs.

A rank's gradient counts by its share of the global batch, so uneven shares give exactly the
gradient of the whole batch's mean loss. When a member is lost in the middle, nothing is raised
into the user's loop: gradients are set to None, so that the optimizer's step changes nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from surefoot.errors import NotBuiltError
from surefoot.train.control import SLOTS, Control
from surefoot.train.group import Group

BUCKET_BYTES = 16 << 20


@dataclass(slots=True, eq=False)
class _Bucket:
    """Some parameters' gradients in one flat tensor; `waiting` are those still to come."""

    params: list[nn.Parameter]
    flat: torch.Tensor
    views: list[torch.Tensor]
    waiting: int = 0
    work: Any = None


class GradientSum:
    """Averages a model's gradients over a group at the end of each backward."""

    def __init__(self, model: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._bucket_of: dict[nn.Parameter, _Bucket] = {}
        self._buckets: list[_Bucket] = []
        self._tail = torch.zeros(0)
        self._used = torch.zeros(0)
        self._bucket_bytes = bucket_bytes
        self._group: Group | None = None
        self._weight = 1.0
        self._launched = 0
        self._queued = False
        self.control = Control()
        self.heard: Control | None = None
        """The sums of the step's last reduction; None before it."""
        self.failure: Exception | None = None
        """Why the step's reduction failed."""
        self._hooks = [hook(p, self._ready) for p in self._params]

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def begin(self, group: Group, weight: float, control: Control) -> None:
        """Start a step: its group, this rank's weight in the mean, and what it has to say."""
        self._group, self._weight, self.control = group, weight, control
        self.heard, self.failure, self._queued = None, None, False
        if group.pg is not None and not self._buckets:
            self._make_buckets()

    def finish(self) -> None:
        """Reduce the control slots alone if the loop body ran no backward."""
        if self.heard is None and self.failure is None:
            self._reset()
            self._reduce()

    def _ready(self, param: torch.Tensor) -> None:
        """Count a finished gradient (called by autograd); a full bucket starts at once."""
        if self._group is None or self._group.pg is None or self.failure is not None:
            return self._queue_once(self._local)
        self._queue_once(self._reduce)
        bucket = self._bucket_of[param]  # type: ignore[index]
        bucket.waiting -= 1
        while self._launched < len(self._buckets) and self._buckets[self._launched].waiting <= 0:
            self._launch()
        return None

    def _queue_once(self, callback: Any) -> None:
        if not self._queued:
            self._queued = True
            self._reset()
            torch.autograd.Variable._execution_engine.queue_callback(callback)

    def _reset(self) -> None:
        self._launched = 0
        for bucket in self._buckets:
            bucket.waiting, bucket.work = len(bucket.params), None

    def _local(self) -> None:
        self._queued = False
        if self.failure is not None:
            self._forget()
        elif self._group is not None:
            self.heard = self.control

    def _reduce(self) -> None:
        """Finish the step's reduction (called by autograd when backward ends)."""
        self._queued = False
        group = self._group
        if group is None or group.pg is None:
            return self._local()
        try:
            while self._launched < len(self._buckets):
                self._launch()
            tail = self._launch_tail(group)
            for bucket in self._buckets:
                bucket.work.wait()
            tail.wait()
        except RuntimeError as error:
            self._fail(group, error)
        else:
            self._hand_back()
        return None

    def _launch(self) -> None:
        """Copy the next bucket's gradients and start its sum; always in the same order."""
        bucket, group = self._buckets[self._launched], self._group
        assert group is not None
        self._launched += 1
        if self._weight == 0.0:
            bucket.flat.zero_()  # not 0 * gradient: that would let a NaN through
        else:
            _gather(bucket)
            bucket.flat.mul_(self._weight)
        bucket.work = group.sum_async(bucket.flat)

    def _launch_tail(self, group: Group) -> Any:
        used = [0.0 if p.grad is None else 1.0 for p in self._params]
        self._tail.copy_(torch.tensor(used + self.control.values()))
        return group.sum_async(self._tail)

    def _hand_back(self) -> None:
        self._used = self._tail[: len(self._params)]
        self.heard = Control(*self._tail[-SLOTS:].tolist())
        unused = {id(p) for p, n in zip(self._params, self._used.tolist(), strict=True) if n == 0}
        for bucket in self._buckets:
            pairs = [pv for pv in zip(bucket.params, bucket.views, strict=True)]
            pairs = [(p, v) for p, v in pairs if id(p) not in unused]
            for param, _ in pairs:
                if param.grad is None:
                    param.grad = torch.empty_like(param)
            grads = [p.grad for p, _ in pairs if p.grad is not None]
            if grads:
                torch._foreach_copy_(grads, [v for _, v in pairs])

    def _fail(self, group: Group, error: Exception) -> None:
        group.cut()  # the sums still on their way fail too
        for bucket in self._buckets[: self._launched]:
            with contextlib.suppress(RuntimeError):
                if bucket.work is not None:
                    bucket.work.wait()
        self.failure = error
        self._forget()

    def _forget(self) -> None:
        for param in self._params:
            param.grad = None

    def _make_buckets(self) -> None:
        if any(p.device.type != "cpu" for p in self._params):
            raise NotBuiltError(
                "groups of more than one worker are built for CPU (gloo) only; NCCL is not yet",
                hint="train on one VM, or move the model to the CPU",
            )
        waiting: dict[torch.dtype, list[nn.Parameter]] = {}
        for param in reversed(self._params):  # about the order in which backward finishes them
            members = waiting.setdefault(param.dtype, [])
            members.append(param)
            if sum(p.numel() * p.element_size() for p in members) >= self._bucket_bytes:
                self._add_bucket(waiting.pop(param.dtype))
        for members in waiting.values():
            self._add_bucket(members)
        self._tail = torch.zeros(len(self._params) + SLOTS)

    def _add_bucket(self, params: list[nn.Parameter]) -> None:
        flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype)
        parts = torch.split(flat, [p.numel() for p in params])
        views = [part.view(p.shape) for part, p in zip(parts, params, strict=True)]
        bucket = _Bucket(params, flat, views)
        self._buckets.append(bucket)
        self._bucket_of.update(dict.fromkeys(params, bucket))


def hook(param: nn.Parameter, call: Any) -> Any:
    """Have `call(param)` called when a parameter's gradient is complete; returns the handle."""
    register: Any = param.register_post_accumulate_grad_hook
    return register(call)


def wait_all(works: list[Any]) -> None:
    """Wait for collectives. Raises RuntimeError when a member is lost."""
    for work in works:
        work.wait()


def _gather(bucket: _Bucket) -> None:
    """Copy the gradients that there are into the flat tensor; absent ones count as zeros."""
    views, grads = [], []
    for param, view in zip(bucket.params, bucket.views, strict=True):
        if param.grad is None:
            view.zero_()
        elif param.grad.is_sparse:
            raise NotBuiltError("sparse gradients are not built yet: use sparse=False")
        else:
            views.append(view)
            grads.append(param.grad)
    if views:
        torch._foreach_copy_(views, grads)
