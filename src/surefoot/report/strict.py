"""JSON that every reader accepts: no NaN, no infinity, enums and paths as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Return `value` as JSON types; numbers that are not finite become null."""
    match value:
        case None | bool() | str():
            return value
        case Enum():
            return plain(value.value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(plain(key)): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)


def strict_json(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON text of anything `plain` can take."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)
