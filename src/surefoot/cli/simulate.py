"""`surefoot simulate`: what a job would have cost and lost on a recorded market."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from surefoot.cli import frame, local
from surefoot.config import JobFile, duration_ms, load_job
from surefoot.core.forecast import FORECASTERS
from surefoot.core.policy import POLICIES, get_policy
from surefoot.errors import ConfigError
from surefoot.report.clean import clean
from surefoot.report.numbers import number, percent, rows_of
from surefoot.sim import CostModel, Outcome
from surefoot.sim import simulate as simulated
from surefoot.traces import read_trace

CODES = {"done": frame.DONE, "stopped": frame.DONE, "refused": frame.REFUSED}


def simulate(
    job: Annotated[Path, typer.Argument(help="The job file (YAML).")],
    trace: Annotated[
        Path | None, typer.Option(help="The market to replay; default: the job's local one.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: the job's.")
    ] = None,
    forecaster: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(FORECASTERS)}; default: the job's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal outcomes.")] = 0,
    horizon: Annotated[
        str | None, typer.Option(help="Stop after this long, such as 30m; default: the trace.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Tell what a job would do and cost on a recorded market."""
    job_file = load_job(job)
    outcome = _simulate(
        job_file, trace, policy=policy, forecaster=forecaster, seed=seed, horizon=horizon
    )
    if as_json:
        frame.print_json(outcome.as_dict())
    else:
        _print(outcome)
    raise typer.Exit(CODES.get(outcome.result, frame.FAILED))


def _simulate(
    job_file: JobFile,
    trace: Path | None,
    *,
    policy: str | None,
    forecaster: str | None,
    seed: int,
    horizon: str | None,
) -> Outcome:
    if policy is not None:
        get_policy(policy)
    market = read_trace(trace) if trace is not None else local.read_market(job_file)
    terms = job_file.terms(market.pools, start_ms=market.start_ms)
    if seed < 0:
        raise ConfigError(f"--seed: must be 0 or more, got {seed}")
    return simulated(
        terms,
        market,
        policy=policy,
        forecaster=forecaster,
        model=local.COSTS if job_file.local is not None else CostModel(),
        seed=seed,
        horizon_ms=_horizon_ms(horizon),
    )


def _horizon_ms(text: str | None) -> int | None:
    """Return --horizon in ms; `0` is allowed and gives an empty outcome."""
    if text is None:
        return None
    if text.strip() in ("0", "0s"):
        return 0
    try:
        return duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"--horizon: {error}; found {text!r}") from None


def _print(outcome: Outcome) -> None:
    console = frame.out()
    body = outcome.as_dict()
    why = f" ({outcome.message})" if outcome.message else ""
    title = f"{outcome.job} on {outcome.trace}, {outcome.policy} policy: {outcome.result}{why}"
    table = Table(title=clean(title), title_justify="left", show_header=False)
    table.add_column(style="cyan")
    table.add_column()
    for label, value in rows_of(body):
        if not label.startswith("validation"):
            table.add_row(Text(label), Text(value))
    table.add_row(Text("decisions"), Text(number(body["decisions"])))
    if outcome.unknown_share:
        table.add_row(Text("market unknown"), Text(percent(outcome.unknown_share)))
    console.print(table)
