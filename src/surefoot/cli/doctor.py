"""`surefoot doctor`: whether a job's cloud would do as asked, before any money is spent."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from surefoot.cli import clouds, frame
from surefoot.config import JobFile, load_job
from surefoot.core.market import Capacity
from surefoot.report.clean import clean

app = typer.Typer(
    help="Look whether a cloud would do as a job asks; nothing is launched.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _top() -> None:
    """Look whether a cloud would do as a job asks; nothing is launched."""


@app.command()
def aws(
    job: Annotated[Path, typer.Argument(help="The job file (YAML).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check credentials, permissions, quotas, image, key and prices on AWS.

    Exits with 0 when all is well or cannot be told, with 3 when AWS would refuse.
    """
    from surefoot.providers.aws.check import Finding, check

    job_file = load_job(job)
    provider = clouds.open_aws(job_file)
    found: list[Finding] = []
    try:
        capacities = job_file.job.capacities & {Capacity.SPOT, Capacity.ON_DEMAND}
        for finding in check(provider, vms=_most(job_file), capacities=capacities):
            found.append(finding)
            if not as_json:
                _print(finding.name, finding.ok, finding.detail, finding.hint)
    finally:
        provider.close()
    bad = [finding for finding in found if finding.ok is False]
    if as_json:
        rows = [
            {"name": f.name, "ok": f.ok, "detail": clean(f.detail), "hint": f.hint} for f in found
        ]
        frame.print_json({"ok": not bad, "findings": rows})
    else:
        frame.out().print(Text(f"{len(found)} looked at, {len(bad)} would fail", "bold"))
    raise typer.Exit(frame.REFUSED if bad else frame.DONE)


def _most(job_file: JobFile) -> int:
    """Return how many VMs the job may hold at once."""
    most = max(job_file.job.num_nodes, ceil(job_file.job.throughput.ceiling))
    limit = job_file.job.limits.max_vms
    return most if limit is None else min(most, limit)


def _print(name: str, ok: bool | None, detail: str, hint: str) -> None:
    word, style = {True: ("ok", "green"), False: ("FAIL", "bold red"), None: ("?", "yellow")}[ok]
    line = Text.assemble((f"{word:<5}", style), f"{name}: {clean(detail, limit=400)}")
    frame.out().print(line)
    if hint:
        frame.out().print(Text(f"      {clean(hint)}", "dim"))
