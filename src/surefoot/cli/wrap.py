"""`surefoot run -- COMMAND`: a command on this machine that is asked to save when it matters."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import frame, markets
from surefoot.errors import ConfigError
from surefoot.providers.watchers import make_watcher
from surefoot.train.script import ScriptTerms
from surefoot.train.solo import Solo, SoloSettings


def wrap(
    command: Annotated[list[str], typer.Argument(help="The command, after `--`.")],
    notice: Annotated[
        str, typer.Option(help="Whose notices to watch: aws, gcp, azure, kubernetes, none.")
    ] = "none",
    save: Annotated[
        str, typer.Option(help="How to ask for a save: file, SIGUSR1, SIGUSR2, http://..., none.")
    ] = "",
    saved: Annotated[str, typer.Option(help="Pattern of the checkpoints' paths.")] = "",
    step: Annotated[str, typer.Option(help="File, or /regular expression/, of the steps.")] = "",
    interval: Annotated[
        str, typer.Option(help="Time between saves; auto: from what a save costs.")
    ] = "auto",
    mtbf: Annotated[str, typer.Option(help="Mean time between losses, for auto.")] = "4h",
    grace: Annotated[str, typer.Option(help="From SIGTERM until the command is killed.")] = "30s",
) -> None:
    """Run a command here, ask it to save on a notice and at an interval; nothing is launched."""
    make_watcher(notice)
    fixed_ms = None if interval == "auto" else markets.span_ms("--interval", interval)
    spans = {"--mtbf": mtbf, "--grace": grace}
    found = {name: markets.span_ms(name, text) or 0 for name, text in spans.items()}
    for name in ("--mtbf", "--grace"):
        if found[name] <= 0:
            raise ConfigError(f"{name}: must be above 0")
    settings = SoloSettings(
        ScriptTerms(save, saved, step),
        notice=notice,
        interval_s=None if fixed_ms is None else fixed_ms / 1000,
        mtbf_s=found["--mtbf"] / 1000,
        grace_s=found["--grace"] / 1000,
    )

    def tell(line: str) -> None:
        frame.err().print(Text(f"surefoot: {line}"))

    raise typer.Exit(Solo(command, settings, tell).run())
