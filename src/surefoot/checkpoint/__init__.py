"""Checkpoints that cost next to nothing and lose nothing; usable alone with any PyTorch loop.

    from surefoot.checkpoint import Checkpointer

    with Checkpointer("checkpoints", keep=3) as checkpointer:
        checkpointer.guard(optimizer)     # copies overlap the next forward and backward
        if checkpointer.latest() is not None:
            step, state, metadata = checkpointer.load()
        ...
        checkpointer.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

Names are loaded on first use, so that the writer process starts without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.checkpoint.engine import Checkpointer
    from surefoot.checkpoint.manifest import Manifest
    from surefoot.checkpoint.retention import Best, EveryNHours, Latest
    from surefoot.checkpoint.save import Saved, SaveHandle
    from surefoot.checkpoint.storage import open_storage

__all__ = [
    "Best",
    "Checkpointer",
    "EveryNHours",
    "Latest",
    "Manifest",
    "SaveHandle",
    "Saved",
    "open_storage",
]

_WHERE = {
    "Checkpointer": "engine",
    "Manifest": "manifest",
    "Latest": "retention",
    "EveryNHours": "retention",
    "Best": "retention",
    "SaveHandle": "save",
    "Saved": "save",
    "open_storage": "storage",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _WHERE:
        raise AttributeError(f"module 'surefoot.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(f"surefoot.checkpoint.{_WHERE[name]}"), name)
