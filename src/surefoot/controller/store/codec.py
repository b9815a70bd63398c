"""How an event becomes JSON and back, exactly: driven by the types of the dataclasses' fields."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from surefoot.core.event import Event
from surefoot.core.market import Pool

EVENTS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Event)}
"""Event classes by the name under which they are stored."""


def encode_event(event: Event) -> tuple[str, str]:
    """Return (kind, body): the event's class name and its fields as a JSON object."""
    cls = type(event)
    body = _codec(cls).encode(event)
    return cls.__name__, json.dumps(body, separators=(",", ":"), allow_nan=False)


def decode_event(kind: str, body: str) -> Event:
    """Return the event. Unknown keys are ignored, absent ones take their default.

    Raises ValueError for an unknown kind, a body that is not JSON, or a value of another type.
    """
    cls = EVENTS.get(kind)
    if cls is None:
        raise ValueError(f"unknown kind of event {kind!r}")
    try:
        event: Event = _codec(cls).decode(json.loads(body))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"bad body of a {kind}: {error!r}") from error
    return event


@dataclass(frozen=True, slots=True)
class _Codec:
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _codec(hint: Any) -> _Codec:
    """Return the two functions for one type; built once per type."""
    known: _Codec = _build(hint)
    return known


@cache
def _build(hint: Any) -> _Codec:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union(args)
    if origin is tuple:
        return _tuple(args)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*args)
    if hint is Pool:
        return _Codec(lambda p: [p.provider, p.region, p.zone, p.instance_type], _read_pool)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Codec(lambda e: e.value, hint)
    if is_dataclass(hint):
        return _record(hint)
    return _scalar(hint)


def _read_pool(parts: Any) -> Pool:
    if not isinstance(parts, list) or not all(isinstance(p, str) for p in parts):
        raise ValueError(f"a pool is four strings, got {parts!r}")
    return Pool(*parts)


def _scalar(hint: Any) -> _Codec:
    if hint is float:
        return _Codec(_write_float, _read_float)
    if hint in (int, str, bool):
        return _Codec(lambda value: value, lambda value: _checked(hint, value))
    raise TypeError(f"events hold no {hint!r}")


def _checked(hint: Any, value: Any) -> Any:
    if type(value) is not hint:
        raise ValueError(f"expected {hint.__name__}, got {value!r}")
    return value


def _write_float(value: float) -> float | str:
    return float(value) if math.isfinite(value) else repr(float(value))


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def _tuple(args: tuple[Any, ...]) -> _Codec:
    if len(args) == 2 and args[1] is Ellipsis:
        one = _codec(args[0])
        return _Codec(
            lambda values: [one.encode(v) for v in values],
            lambda values: tuple(one.decode(v) for v in values),
        )
    each = [_codec(a) for a in args]
    return _Codec(
        lambda values: [c.encode(v) for c, v in zip(each, values, strict=True)],
        lambda values: tuple(c.decode(v) for c, v in zip(each, values, strict=True)),
    )


def _mapping(key: Any, value: Any) -> _Codec:
    keys, values = _codec(key), _codec(value)
    if key is str:
        return _Codec(
            lambda table: {k: values.encode(v) for k, v in table.items()},
            lambda table: {k: values.decode(v) for k, v in table.items()},
        )
    return _Codec(
        lambda table: [[keys.encode(k), values.encode(v)] for k, v in table.items()],
        lambda pairs: {keys.decode(k): values.decode(v) for k, v in pairs},
    )


def _union(args: tuple[Any, ...]) -> _Codec:
    rest = [a for a in args if a is not NoneType]
    if len(rest) == 1:
        one = _codec(rest[0])
        return _Codec(
            lambda value: None if value is None else one.encode(value),
            lambda value: None if value is None else one.decode(value),
        )
    by_name = {a.__name__: a for a in rest}

    def read(body: Any) -> Any:
        return _codec(by_name[body["kind"]]).decode(body)

    return _Codec(
        lambda value: {"kind": type(value).__name__, **_codec(type(value)).encode(value)}, read
    )


def _record(cls: Any) -> _Codec:
    hints = get_type_hints(cls)
    kept = [f for f in fields(cls) if f.init]
    parts = [(f.name, _codec(hints[f.name])) for f in kept]
    needed = {f.name for f in kept if f.default is MISSING and f.default_factory is MISSING}

    def read(body: Any) -> Any:
        absent = needed - body.keys()
        if absent:
            raise ValueError(f"{cls.__name__} lacks {', '.join(sorted(absent))}")
        return cls(**{name: c.decode(body[name]) for name, c in parts if name in body})

    return _Codec(lambda value: {n: c.encode(getattr(value, n)) for n, c in parts}, read)
