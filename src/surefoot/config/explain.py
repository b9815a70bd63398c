"""What is wrong in a job file, said to a person: place, what was found, what is allowed."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError

from surefoot.config.document import Document, Where, dotted
from surefoot.config.schema import keys_at
from surefoot.errors import ConfigError


def explain(document: Document, error: ValidationError) -> ConfigError:
    """Turn Pydantic's list into our sentences, in the order of the file."""
    problems: dict[Where, str] = {}
    for entry in error.errors(include_url=False):
        where = _place(document, tuple(entry["loc"]))
        problems.setdefault(where, _sentence(document, where, entry))
    inner = {where[:end] for where in problems for end in range(len(where))}
    problems = {where: text for where, text in problems.items() if where not in inner}
    order = sorted(problems, key=lambda w: document.line(w) or 0)
    lines = [f"{located(document, where)}: {problems[where]}" for where in order]
    return ConfigError("\n".join(lines), hint="nothing was started")


def _place(document: Document, loc: tuple[int | str, ...]) -> Where:
    """Leave Pydantic's own labels (union branches, tuple positions) out of a location."""
    where: Where = ()
    value: Any = document.value
    for part in loc:
        in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if in_list or (isinstance(value, dict) and part in value):
            where, value = (*where, part), value[part]
        elif isinstance(value, dict) and part in keys_at(where):
            return (*where, part)
    return where


def located(document: Document, where: Where) -> str:
    """Write a place as `file:line: key`."""
    line = document.line(where)
    place = f"{document.path}:{line}" if line else str(document.path)
    return f"{place}: {dotted(where)}" if where else place


def _sentence(document: Document, where: Where, entry: Any) -> str:
    kind, found = str(entry["type"]), entry.get("input")
    match kind:
        case "extra_forbidden":
            return _unknown_key(where)
        case "missing":
            return "this key is needed and is not there"
        case "value_error":
            return f"{entry['ctx']['error']}; found {_shown(document, where, found)}"
        case "literal_error":
            return f"must be {entry['ctx']['expected']}; found {_shown(document, where, found)}"
    wanted = _WANTED.get(kind) or str(entry["msg"]).lower().removeprefix("input should be ")
    return f"must be {wanted}; found {_shown(document, where, found)}{_trap(found, wanted)}"


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a section of `key: value` lines",
    "model_type": "a section of `key: value` lines",
    "model_attributes_type": "a section of `key: value` lines",
}


def _trap(found: object, wanted: str) -> str:
    if isinstance(found, bool) and wanted == "text":
        return " (YAML reads no, off, yes and on as false and true: put the text in quotes)"
    if isinstance(found, int | float) and wanted == "text":
        return " (put it in quotes to make it text)"
    return ""


def _shown(document: Document, where: Where, found: object) -> str:
    """Describe what is there, as written and cut to a line."""
    match found:
        case dict():
            return "a section"
        case list():
            return "a list"
        case None:
            return "nothing"
    if where and where[0] == "secrets":
        return "a value, which is not repeated here"
    text = document.text(where)
    shown = text if text is not None else str(found)
    return repr(shown if len(shown) <= 60 else shown[:57] + "...")


def _unknown_key(where: Where) -> str:
    allowed = keys_at(where[:-1])
    guess = nearest(str(where[-1]), allowed)
    return f"unknown key{guess} (allowed here: {', '.join(allowed)})"


def nearest(name: str, names: list[str]) -> str:
    """Return `; did you mean ...?` with the closest of `names`, or nothing."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else ""
