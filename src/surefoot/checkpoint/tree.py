"""How nested state (dicts, lists, tensors, scalars) becomes a JSON tree plus tensors, and back.

Only data is stored: what would need pickle is refused by its path. The JSON tree spells a node as
one of {"dict": [[key, node], ...]}, {"list": [...]}, {"tuple": [...]}, {"value": scalar},
{"float": "nan"|"inf"|"-inf"}, {"bytes": base64}, {"tensor": name}, {"array": name} (numpy).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from surefoot.errors import CheckpointError

Node = dict[str, Any]
_SCALARS = (str, bool, int, type(None))


def flatten(state: Any) -> tuple[Node, dict[str, torch.Tensor]]:
    """Return `state` as a JSON tree and its tensors by dotted path, each storage view once.

    Objects with `state_dict()` are asked for it. Raises CheckpointError naming the path of
    anything else that only pickle could store.
    """
    walk = _Walk()
    return walk.node(state, ""), walk.leaves


def restore(node: Node, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state that `flatten` took apart; `tensors` by the names in the tree."""
    if len(node) != 1:
        raise CheckpointError(f"unknown node in the checkpoint's tree: {sorted(node)}")
    ((kind, body),) = node.items()
    make = _RESTORE.get(kind)
    if make is None:
        raise CheckpointError(f"unknown node in the checkpoint's tree: {kind!r}")
    return make(body, tensors)


_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""What has an address of its own: others may wrap several tensors, or none."""


class _Walk:
    """One pass over a state; `seen` finds tied tensors: by pointer, then by all else."""

    def __init__(self) -> None:
        self.leaves: dict[str, torch.Tensor] = {}
        self.seen: dict[int, list[tuple[torch.Tensor, str]]] = {}

    def node(self, value: Any, path: str) -> Node:
        if isinstance(value, torch.Tensor):
            return {"tensor": self.leaf(value, path)}
        if isinstance(value, np.ndarray):
            return {"array": self.leaf(_from_numpy(value, path), path)}
        if type(value) is dict or isinstance(value, Mapping):  # asking a Mapping takes long
            items = [[_key(k, path), self.node(v, _join(path, k))] for k, v in value.items()]
            return {"dict": items}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.node(v, _join(path, i)) for i, v in enumerate(value)]}
        if callable(getattr(value, "state_dict", None)):
            return self.node(value.state_dict(), path)
        return _scalar(value, path)

    def leaf(self, tensor: torch.Tensor, path: str) -> str:
        name = path or "."
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(
                f"state[{name}] is a sparse or quantized tensor, which the format does not hold",
                hint="store its dense parts (values(), indices(), int_repr()) instead",
            )
        if tensor.is_meta:
            raise CheckpointError(f"state[{name}] is on the meta device: it has no bytes to save")
        at = tensor.data_ptr() if type(tensor) in _PLAIN else 0  # 0 too where there are no bytes
        for other, known in self.seen.get(at, ()) if at else ():
            if _is_same(tensor, other):
                return known
        if name in self.leaves:
            raise CheckpointError(f"two tensors share the path {name!r}: rename one of the keys")
        self.leaves[name] = tensor.detach() if tensor.requires_grad else tensor
        if at:
            self.seen.setdefault(at, []).append((tensor, name))
        return name


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors that begin at the same address are the same numbers."""
    if one.numel() == 0 or (one.device, one.dtype) != (other.device, other.dtype):
        return False
    return one.shape == other.shape and one.stride() == other.stride()


def _from_numpy(array: np.ndarray[Any, Any], path: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape).clone()
    except TypeError as error:
        raise CheckpointError(
            f"state[{path}] is a numpy array of {array.dtype}, which only pickle could store"
        ) from error


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _key(key: Any, path: str) -> str | int:
    if type(key) is str or (isinstance(key, (str, int)) and not isinstance(key, bool)):
        return key  # no `str | int` here: making it anew takes longer than the rest
    raise CheckpointError(f"state[{path}] has the key {key!r}; only text and whole numbers go")


def _scalar(value: Any, path: str) -> Node:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _SCALARS:
        return {"value": value}
    if type(value) is float:
        return {"value": value} if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    raise CheckpointError(
        f"state[{path or '.'}] is a {type(value).__name__}, which only pickle could store",
        hint="give plain tensors, numbers, text, lists and dicts, or an object with state_dict()",
    )


Make = Callable[[Any, Mapping[str, torch.Tensor]], Any]
_RESTORE: dict[str, Make] = {
    "dict": lambda body, tensors: {key: restore(node, tensors) for key, node in body},
    "list": lambda body, tensors: [restore(node, tensors) for node in body],
    "tuple": lambda body, tensors: tuple(restore(node, tensors) for node in body),
    "value": lambda body, tensors: body,
    "float": lambda body, tensors: float(body),
    "bytes": lambda body, tensors: base64.b64decode(body),
    "tensor": lambda body, tensors: tensors[body],
    "array": lambda body, tensors: tensors[body].numpy(),
}
