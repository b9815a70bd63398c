"""What a training script holds (`Session`) and what keeps it alive inside a VM (the agent).

Names are loaded on first use: the agent imports this package and must start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.train.session import Session

__all__ = ["Session"]


def __getattr__(name: str) -> Any:
    if name != "Session":
        raise AttributeError(f"module 'surefoot.train' has no attribute {name!r}")
    from surefoot.train.session import Session

    return Session
