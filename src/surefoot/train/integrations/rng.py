"""The random number generators of Python, NumPy and torch, as state that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def take() -> dict[str, Any]:
    """Return the state of all generators; tensors are copies."""
    version, words, gauss = random.getstate()
    name, keys, place, has_gauss, cached = np.random.get_state()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "rest": [int(place), int(has_gauss), float(cached)],
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def put(state: Mapping[str, Any]) -> None:
    """Set all generators to a state that `take` returned."""
    random.setstate(python_state(state))
    np.random.set_state(numpy_state(state))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])


def python_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what `random.setstate` takes."""
    part = state["python"]
    return part["version"], tuple(part["words"].tolist()), part["gauss"]


def numpy_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what `numpy.random.set_state` takes."""
    part = state["numpy"]
    place, has_gauss, cached = part["rest"]
    return part["name"], part["keys"].numpy().astype(np.uint32), place, has_gauss, cached
