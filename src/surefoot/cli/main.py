"""The command line: which verbs there are, and how each error becomes words and an exit code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

import typer

from surefoot.cli import frame
from surefoot.errors import NotBuiltError, SurefootError

VERBS = {
    "run": "surefoot.cli.run",
    "simulate": "surefoot.cli.simulate",
    "compare": "surefoot.cli.compare",
    "plan": "surefoot.cli.plan",
    "status": "surefoot.cli.status",
    "report": "surefoot.cli.report",
    "forecast": "surefoot.cli.forecast",
    "traces": "surefoot.cli.traces",
    "checkpoints": "surefoot.cli.checkpoints",
    "interval": "surefoot.cli.interval",
    "sweep": "surefoot.cli.sweep",
    "stop": "surefoot.cli.stop",
    "logs": "surefoot.cli.logs",
    "events": "surefoot.cli.events",
    "ssh": "surefoot.cli.ssh",
    "prune": "surefoot.cli.prune",
    "doctor": "surefoot.cli.doctor",
    "dashboard": "surefoot.web.dashboard",
}
"""Verb -> module with a function or Typer app of the same name."""

WRAP = "surefoot.cli.wrap"
"""What `run` is when a command follows `--` instead of a job file."""

NOT_BUILT = tuple(verb for verb in VERBS if importlib.util.find_spec(VERBS[verb]) is None)
"""Verbs of the design whose module does not exist yet."""


def build(verb: str | None = None, *, wraps: bool = False) -> typer.Typer:
    """Return the command line; with the name of a verb only its module is imported.

    `wraps`: `run` takes a command and not a job file.
    """
    app = typer.Typer(
        name="surefoot",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def top() -> None:
        """Train PyTorch models on preemptible VMs: at spot prices, without losing work."""

    if wraps:
        app.command(name="run")(importlib.import_module(WRAP).wrap)
        return app
    for name in [verb] if verb in VERBS else VERBS:
        _add(app, name)
    return app


def _add(app: typer.Typer, verb: str) -> None:
    """Add a verb."""
    if verb in NOT_BUILT:
        _add_missing(app, verb)
        return
    module = importlib.import_module(VERBS[verb])
    command = getattr(module, "app", None) or getattr(module, verb)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=verb)
    else:
        app.command(name=verb)(command)


def _add_missing(app: typer.Typer, verb: str) -> None:
    """Answer a verb of the design that does not exist yet with a clear sentence."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(name=verb, hidden=True, context_settings=settings)
    def missing() -> None:
        raise NotBuiltError(
            f"`surefoot {verb}` is not built yet", hint="see what there is: surefoot --help"
        )


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are printed, never traced."""
    try:
        verb = next(iter(arguments), None)
        app = build(verb, wraps=verb == "run" and "--" in arguments)
        app(args=list(arguments), prog_name="surefoot")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else frame.FAILED * bool(end.code)
    except SurefootError as error:
        frame.print_error(error, as_json="--json" in arguments)
        return frame.exit_code(error)
    except KeyboardInterrupt:
        return frame.INTERRUPTED
    except BrokenPipeError:
        return frame.FAILED
    return frame.DONE


def run() -> None:
    """Entry point of the `surefoot` command."""
    sys.exit(main(sys.argv[1:]))
