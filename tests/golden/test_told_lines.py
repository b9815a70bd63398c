"""The words of a whole run, line by line: a change of wording shows as a difference here.

Write them anew with `SUREFOOT_GOLDEN=write python -m pytest tests/golden`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from surefoot.cli.live import PlainView
from surefoot.report import Story

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from told_run import JOB, told_run

GOLDEN = Path(__file__).with_name("told_run.txt")


def test_a_run_is_told_in_these_words() -> None:
    story, lines = Story(JOB), []
    with PlainView(story, lines.append) as view:
        for event in told_run():
            story.add(event)
            view.happened(event)
    told = "\n".join(lines) + "\n"
    if os.environ.get("SUREFOOT_GOLDEN") == "write":
        GOLDEN.write_text(told, encoding="utf-8")
    assert told == GOLDEN.read_text(encoding="utf-8")
