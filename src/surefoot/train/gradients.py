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
    kept: torch.Tensor | None = None
    """Sum of the step's parts before the last one, by weight."""
    waiting: int = 0
    work: Any = None


class GradientSum:
    """Averages a model's gradients over a group at the end of each backward.

    In a step of several parts the gradients of all but the last are kept on this rank, so that
    the group adds up once a step.
    """

    def __init__(self, model: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._bucket_of: dict[nn.Parameter, _Bucket] = {}
        self._buckets: list[_Bucket] = []
        self._tail = torch.zeros(0)
        self._bucket_bytes = bucket_bytes
        self._group: Group | None = None
        self._weight = 1.0
        self._part, self._parts = 0, 1
        self._seen: set[int] = set()
        self._launched = 0
        self._queued = False
        self.reducing = False
        """Whether this rank waits for the others' gradients."""
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

    def begin(self, group: Group, weight: float, control: Control, parts: int = 1) -> None:
        """Start a step of `parts` with its first one; `weight` is that part's in the mean."""
        self._group, self.control, self._parts = group, control, parts
        self.heard, self.failure = None, None
        self._seen.clear()
        if group.pg is not None:
            self._refuse_other_devices()
        if not self._buckets and (group.pg is not None or parts > 1):
            self._make_buckets()
        for bucket in self._buckets:
            bucket.kept = None
        self.begin_part(0, weight)

    def begin_part(self, part: int, weight: float) -> None:
        """Start the part-th part of the step."""
        self._part, self._weight, self._queued = part, weight, False

    def finish_part(self) -> None:
        """End a part that is not the last: its gradient is kept, the model's are gone."""
        self._keep()

    def finish(self) -> None:
        """Reduce the control slots alone if the loop body ran no backward."""
        if self.heard is None and self.failure is None:
            self._reset()
            self._reduce()

    def _ready(self, param: torch.Tensor) -> None:
        """Count a finished gradient (called by autograd); a full bucket starts at once."""
        if self._part + 1 < self._parts:
            return self._queue_once(self._keep)
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
            return self._forget()
        if self._parts > 1:
            for bucket in self._buckets:
                self._fill(bucket)
            self._note_seen()
            self._hand_back({id(p) for p in self._params} - self._seen)
        if self._group is not None:
            self.heard = self.control
        return None

    def _keep(self) -> None:
        """Add a part's gradient to what is kept (called by autograd, or when the part ends)."""
        self._queued = False
        if all(p.grad is None for p in self._params):
            return
        self._note_seen()
        for bucket in self._buckets:
            self._fill(bucket)
            bucket.kept = bucket.flat.clone() if bucket.kept is None else bucket.kept
            bucket.kept.copy_(bucket.flat)
        self._forget()

    def _note_seen(self) -> None:
        self._seen.update(id(p) for p in self._params if p.grad is not None)

    def _fill(self, bucket: _Bucket) -> None:
        """Put the part's gradient by its weight, and what was kept before, into the flat tensor."""
        if self._weight == 0.0:
            bucket.flat.zero_()  # not 0 * gradient: that would let a NaN through
        else:
            _gather(bucket)
            bucket.flat.mul_(self._weight)
        if bucket.kept is not None:
            bucket.flat.add_(bucket.kept)
            bucket.kept.zero_()  # a second backward of this part adds its own only

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
            self.reducing = True
            for bucket in self._buckets:
                group.settle(bucket.work)
            group.settle(tail)
        except RuntimeError as error:
            self._fail(group, error)
        else:
            used = self._tail[: len(self._params)].tolist()
            self._hand_back({id(p) for p, n in zip(self._params, used, strict=True) if n == 0})
            self.heard = Control(*self._tail[-SLOTS:].tolist())
        finally:
            self.reducing = False
        return None

    def _launch(self) -> None:
        """Copy the next bucket's gradients and start its sum; always in the same order."""
        bucket, group = self._buckets[self._launched], self._group
        assert group is not None
        self._launched += 1
        self._fill(bucket)
        bucket.work = group.sum_async(bucket.flat)

    def _launch_tail(self, group: Group) -> Any:
        self._note_seen()
        used = [float(id(p) in self._seen) for p in self._params]
        self._tail.copy_(torch.tensor(used + self.control.values()))
        return group.sum_async(self._tail)

    def _hand_back(self, unused: set[int]) -> None:
        """Make the flat tensors' sums the gradients; parameters that nobody used have none."""
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
                    group.settle(bucket.work)
        self._buckets = []  # what gloo did not end may still hold these tensors
        self.failure = error
        self._forget()

    def _forget(self) -> None:
        for param in self._params:
            param.grad = None

    def _refuse_other_devices(self) -> None:
        if any(p.device.type != "cpu" for p in self._params):
            raise NotBuiltError(
                "groups of more than one worker are built for CPU (gloo) only; NCCL is not yet",
                hint="train on one VM, or move the model to the CPU",
            )

    def _make_buckets(self) -> None:
        waiting: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for param in reversed(self._params):  # about the order in which backward finishes them
            kind = (param.dtype, param.device)
            members = waiting.setdefault(kind, [])
            members.append(param)
            if sum(p.numel() * p.element_size() for p in members) >= self._bucket_bytes:
                self._add_bucket(waiting.pop(kind))
        for members in waiting.values():
            self._add_bucket(members)
        self._tail = torch.zeros(len(self._params) + SLOTS)

    def _add_bucket(self, params: list[nn.Parameter]) -> None:
        flat = params[0].detach().new_zeros(sum(p.numel() for p in params))
        parts = torch.split(flat, [p.numel() for p in params])
        views = [part.view(p.shape) for part, p in zip(parts, params, strict=True)]
        bucket = _Bucket(params, flat, views)
        self._buckets.append(bucket)
        self._bucket_of.update(dict.fromkeys(params, bucket))


def hook(param: nn.Parameter, call: Any) -> Any:
    """Have `call(param)` called when a parameter's gradient is complete; returns the handle."""
    register: Any = param.register_post_accumulate_grad_hook
    return register(call)


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
