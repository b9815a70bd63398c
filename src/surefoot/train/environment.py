"""What a worker's process is told by its environment, and how it ends."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from surefoot.errors import ConfigError


def positive(env: Mapping[str, str], name: str) -> float | None:
    """Return a number above 0 from the environment, None where it is not set.

    Raises ConfigError for anything else.
    """
    text = env.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number above 0, not {text!r}") from error
    if not value > 0:
        raise ConfigError(f"{name} must be a number above 0, not {text!r}")
    return value


def local_place(env: Mapping[str, str]) -> tuple[int, int]:
    """Return this worker's number in its VM and how many there are, as the agent says it."""
    if not env.get("SUREFOOT_AGENT") or not env.get("LOCAL_RANK"):
        return 0, 1
    return int(env["LOCAL_RANK"]), int(env.get("LOCAL_WORLD_SIZE") or 1)


def end_promptly() -> None:
    """Leave the interpreter's last sweep nothing to do: it takes longer than the last save."""
    gc.disable()
    gc.freeze()
