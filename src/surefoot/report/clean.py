"""Making foreign text safe to show: no terminal codes, no control characters, no secrets."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_KEY_IDS = re.compile(r"\b(?:AKIA|ASIA|ghp_|gho_|github_pat_|hf_|sk-|xox[abp]-)[A-Za-z0-9_-]{12,}")
_NAMED = re.compile(
    r"(?i)\b([a-z0-9_-]*(?:secret|token|passw(?:or)?d|api_?key|access_?key)[a-z0-9_-]*)"
    r"(\s*[=:]\s*)(?:bearer\s+)?([\"']?)[^\s\"',;]{4,}\3"
)
HIDDEN = "[hidden]"


def clean(text: object, *, limit: int = 500, lines: bool = False) -> str:
    """Return text for people: codes and control characters out, secrets masked, cut to `limit`.

    Line breaks become spaces unless `lines` keeps them.
    Escaping for HTML or for Rich markup is left to whoever prints it.
    """
    shown = _CONTROL.sub("", _ANSI.sub("", str(text)))
    shown = _NAMED.sub(lambda m: f"{m[1]}{m[2]}{HIDDEN}", _KEY_IDS.sub(HIDDEN, shown))
    shown = shown if lines else " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
