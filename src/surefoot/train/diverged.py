"""Whether training has diverged: weights that are NaN or infinite must not replace good ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import nn

from surefoot.errors import UserCodeError


def first_bad(model: nn.Module) -> str | None:
    """Return the name of the first parameter that holds NaN or infinity, None if all are finite.

    Buffers are not looked at: masks hold infinity by right. All ranks hold the same weights and
    so find the same.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[str, torch.Tensor]]]
    kinds = defaultdict(list)
    for name, param in model.named_parameters():
        if param.is_floating_point() and param.numel():
            kinds[param.device, param.dtype].append((name, param.detach()))
    for members in kinds.values():
        norms = torch._foreach_norm([tensor for _, tensor in members], float("inf"))
        finite = torch.isfinite(torch.stack([norm.float() for norm in norms]))
        if not bool(finite.all()):
            return members[int((~finite).nonzero()[0].item())][0]
    return None


def refuse_diverged(model: nn.Module, step: int, newest: Callable[[], int]) -> None:
    """Raise UserCodeError if a parameter is not finite; `newest` tells the last good step."""
    name = first_bad(model)
    if name is not None:
        good = newest()
        kept = f"step {good}" if good >= 0 else "none"
        raise UserCodeError(
            f"training diverged: after step {step} parameter {name} holds NaN or infinity;"
            f" nothing was saved, the last good checkpoint is: {kept}",
            hint="lower the learning rate, clip gradients, or look at the data of these steps",
        )
