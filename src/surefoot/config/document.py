"""Reading YAML so that every value keeps its line, and nothing is dropped or guessed in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from surefoot.errors import ConfigError

MAX_BYTES = 512 * 1024
MAX_NODES = 50_000

Where = tuple[str | int, ...]
"""A place in the document: keys and list positions from the top."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed mapping, with the line and the text as written for every place in it."""

    path: Path
    value: dict[str, Any]
    lines: Mapping[Where, int] = field(default_factory=dict)
    written: Mapping[Where, str] = field(default_factory=dict)

    def line(self, where: Where) -> int | None:
        """Return the line of the nearest known place at or above `where`."""
        for end in range(len(where), 0, -1):
            if where[:end] in self.lines:
                return self.lines[where[:end]]
        return None

    def text(self, where: Where) -> str | None:
        """Return the scalar at `where` as the user wrote it, or None."""
        return self.written.get(where)

    def change(self, key: str, text: str) -> None:
        """Set a dotted key to a value written as in a file, making the sections it lies in.

        Raises ConfigError for text that is no YAML, and for a key below a value.
        """
        *above, last = key.split(".")
        section: Any = self.value
        for part in above:
            section = section.setdefault(part, {}) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise ConfigError(f"{self.path}: {key}: there is a value where a section would be")
        try:
            section[last] = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise ConfigError(f"{key}: cannot be read: {text!r}", hint=str(error)) from None


class _Loader(yaml.SafeLoader):
    """YAML without dates and base-60 numbers: `12:30` and `2026-12-24` stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_document(path: Path) -> Document:
    """Read one YAML mapping from a file.

    Raises ConfigError, naming file and line, when the file is missing, empty, too big, not
    UTF-8, not YAML, not a mapping at the top, or has a key twice.
    """
    text = _read_text(path)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(*_syntax(path, text, error)) from None
    if root is None:
        raise ConfigError(
            f"{path}: the file is empty", hint="a job file needs at least: name, run, resources"
        )
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
        raise ConfigError(
            f"{path}:{_line(root)}: the top of the file is {kind}, where `key: value` lines belong"
        )
    walker = _Walker(path)
    value = walker.mapping(root, ())
    return Document(path, value, walker.lines, walker.written)


def _read_text(path: Path) -> str:
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file", hint=_nearby(path))
    if path.is_dir():
        raise ConfigError(f"{path}: this is a folder, not a job file", hint=_nearby(path / "x"))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes are too many for a job file ({MAX_BYTES})")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text (byte {error.start})") from None


def _nearby(path: Path) -> str:
    """Name the YAML files beside a missing one."""
    folder = path.parent
    found = sorted(p.name for p in folder.glob("*.y*ml")) if folder.is_dir() else []
    return f"in {folder}: {', '.join(found[:6])}" if found else ""


def _syntax(path: Path, text: str, error: yaml.YAMLError) -> tuple[str]:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark else 1
    problem = getattr(error, "problem", None) or str(error)
    rows = text.splitlines()
    row = rows[line - 1] if 0 < line <= len(rows) else ""
    if "\t" in row[: len(row) - len(row.lstrip())] or "'\\t'" in problem:
        problem = "the line is indented with a tab; YAML wants spaces"
    return (f"{path}:{line}: {problem}",)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Walker:
    """Turns nodes into values, noting lines; bounded, so that aliases cannot blow it up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Where, int] = {}
        self.written: dict[Where, str] = {}
        self._constructor = yaml.constructor.SafeConstructor()
        self._left = MAX_NODES

    def mapping(self, node: yaml.MappingNode, at: Where) -> dict[str, Any]:
        """Return a mapping as a dict; keys must be plain text and occur once."""
        found: dict[str, Any] = {}
        for key_node, value_node in self._entries(node):
            key = self._key(key_node)
            where = (*at, key)
            if key in found:
                raise ConfigError(
                    f"{self.path}:{_line(key_node)}: {dotted(where)}: the key is there twice"
                    f" (first on line {self.lines[where]})",
                    hint="keep one of the two",
                )
            self.lines[where] = _line(key_node)
            found[key] = self._value(value_node, where)
        return found

    def _entries(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        yield from node.value

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise ConfigError(f"{self.path}:{_line(node)}: a key must be plain text")
        return str(node.value)

    def _value(self, node: yaml.Node, where: Where) -> Any:
        self._left -= 1
        if self._left < 0 or len(where) > 32:
            raise ConfigError(f"{self.path}:{_line(node)}: the file is too big or nested too deep")
        match node:
            case yaml.MappingNode():
                return self.mapping(node, where)
            case yaml.SequenceNode():
                return self._list(node, where)
            case _:
                return self._scalar(node, where)

    def _list(self, node: yaml.SequenceNode, where: Where) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self.lines[(*where, index)] = _line(item)
            values.append(self._value(item, (*where, index)))
        return values

    def _scalar(self, node: yaml.Node, where: Where) -> Any:
        text = str(node.value)
        self.written[where] = text
        if node.tag.endswith(":int") and ":" in text:
            return text
        try:
            return self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            problem = getattr(error, "problem", None) or str(error)
            raise ConfigError(f"{self.path}:{_line(node)}: {dotted(where)}: {problem}") from None


def dotted(where: Where) -> str:
    """Write a place as people do: `resources.any_of[1].infra`."""
    out = ""
    for part in where:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out
