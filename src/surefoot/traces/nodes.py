"""YAML as values that know their line, so that every complaint names file, line and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

import yaml

from surefoot.errors import TraceError


@dataclass(frozen=True, slots=True)
class Node:
    """One YAML value with where it stands: `key` is its path, such as `pools[0].supply`."""

    file: str
    key: str
    line: int
    raw: yaml.Node

    def fail(self, why: str, *, hint: str = "") -> NoReturn:
        """Raise TraceError naming file, line and key."""
        raise TraceError(f"{self.file}:{self.line}: {self.key or 'file'}: {why}", hint=hint)

    @property
    def is_mapping(self) -> bool:
        """Whether this is a mapping."""
        return isinstance(self.raw, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        """Whether this is a list."""
        return isinstance(self.raw, yaml.SequenceNode)

    def scalar(self) -> object:
        """Return the scalar's value (str, int, float, bool or None); fail if it is none."""
        if not isinstance(self.raw, yaml.ScalarNode):
            self.fail("expected one value, not a list or mapping")
        value: object = yaml.safe_load(yaml.serialize(self.raw))
        return value

    def pairs(self) -> list[tuple[Node, Node]]:
        """Return the mapping's (key, value) nodes in order; fail on a key given twice."""
        if not isinstance(self.raw, yaml.MappingNode):
            self.fail("expected a mapping (key: value)")
        seen: set[str] = set()
        out = []
        for key, value in self.raw.value:
            name = str(key.value)
            path = f"{self.key}.{name}" if self.key else name
            node = Node(self.file, path, value.start_mark.line + 1, value)
            if name in seen:
                node.fail("this key is given twice")
            seen.add(name)
            out.append((Node(self.file, path, key.start_mark.line + 1, key), node))
        return out

    def fields(self, allowed: Mapping[str, bool]) -> dict[str, Node]:
        """Return the mapping's values by key; `allowed` says which keys are required."""
        found: dict[str, Node] = {}
        for key, value in self.pairs():
            name = str(key.raw.value)
            if name not in allowed:
                near = get_close_matches(name, allowed, n=1)
                known = ", ".join(allowed)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {known}"
                key.fail(f"unknown key {name!r}", hint=hint)
            found[name] = value
        for name, required in allowed.items():
            if required and name not in found:
                self.fail(f"the key {name!r} is missing")
        return found

    def items(self) -> list[Node]:
        """Return the list's nodes; fail if it is no list."""
        if not isinstance(self.raw, yaml.SequenceNode):
            self.fail("expected a list")
        return [
            Node(self.file, f"{self.key}[{i}]", item.start_mark.line + 1, item)
            for i, item in enumerate(self.raw.value)
        ]


def read_yaml(path: Path) -> Node:
    """Return the root node of a YAML file. Raises TraceError when it cannot be parsed."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error)
        raise TraceError(f"{path.name}:{line}: not valid YAML: {problem}") from None
    if root is None:
        raise TraceError(f"{path.name}:1: the file is empty")
    return Node(path.name, "", root.start_mark.line + 1, root)
