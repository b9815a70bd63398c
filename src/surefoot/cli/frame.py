"""What all verbs share: where they print, how they fail, and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from surefoot.errors import AskUserError, LimitError, QuotaError, SurefootError
from surefoot.report.clean import clean
from surefoot.report.strict import strict_json

DONE, FAILED, WRONG_USE, REFUSED, INTERRUPTED = 0, 1, 2, 3, 130


def exit_code(error: SurefootError) -> int:
    """Return the exit code that tells a script what kind of trouble it is."""
    if isinstance(error, LimitError | QuotaError):
        return REFUSED
    return WRONG_USE if isinstance(error, AskUserError) else FAILED


def out() -> Console:
    """Return the console of results (stdout); no colour codes into files and pipes."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def wide() -> Console:
    """Return the console of wide tables: files and pipes have room for all of them."""
    console = out()
    return console if console.is_terminal else Console(highlight=False, width=140)


def err() -> Console:
    """Return the console of complaints (stderr)."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one strict JSON document on stdout."""
    sys.stdout.write(strict_json(value) + "\n")
    sys.stdout.flush()


def print_error(error: SurefootError, *, as_json: bool) -> None:
    """Say what went wrong and what helps: on stderr, and with --json as an object on stdout."""
    if as_json:
        print_json({"error": error_body(error)})
        return
    console = err()
    console.print(f"[bold red]error:[/] {escape(clean(error, limit=4_000, lines=True))}")
    if error.hint:
        console.print(f"[dim]{escape(clean(error.hint, limit=1_000, lines=True))}[/]")


def error_body(error: SurefootError) -> Mapping[str, Any]:
    """Return the error for --json: its kind by class name, message, hint and exit code."""
    return {
        "kind": type(error).__name__,
        "message": clean(error, limit=4_000, lines=True),
        "hint": clean(error.hint, limit=1_000, lines=True),
        "exit_code": exit_code(error),
    }
