"""The figures of a run, and the two files that hold them: summary.json and report.html."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefoot.report.foretold import foretold
from surefoot.report.page import page
from surefoot.report.story import Story
from surefoot.report.strict import plain, strict_json


def figures(story: Story) -> dict[str, Any]:
    """Return the run's figures as strict JSON values: the account's, and whose they are.

    Dollars and seconds are floats, shares are fractions of 1, what is unknown is None.
    """
    account = story.account
    body = {
        "name": story.job.name,
        "run": story.state.run,
        "policy": story.job.policy,
        "outcome": story.state.outcome,
        **account.summary(),
        "wall_s": account.goodput.wall_ms / 1000,
        "unknown_price_s": account.bill.unknown_ms / 1000,
        "pool_events": foretold(story).as_dict(),
    }
    known: dict[str, Any] = plain(body)
    return known


def write_report(folder: Path, story: Story) -> Mapping[str, Any]:
    """Write summary.json and report.html into `folder`, each whole or not at all.

    Returns the figures.
    """
    body = figures(story)
    _replace(folder / "summary.json", strict_json(body) + "\n")
    _replace(folder / "report.html", page(story, body))
    return body


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
