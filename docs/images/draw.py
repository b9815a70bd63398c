"""Draws the README's pictures from a real run's folder: python docs/images/draw.py demo-out 121."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from surefoot.cli.live import screen
from surefoot.cli.outdir import read
from surefoot.report.figure import timeline_svg
from surefoot.report.story import Story

HERE = Path(__file__).parent


def main(folder: str, at_s: str) -> None:
    """Write live.svg (the terminal view `at_s` seconds into the run) and timeline.svg."""
    found = read(Path(folder))
    start = found.events[0].at_ms
    now_ms = start + round(float(at_s) * 1000)
    before = [event for event in found.events if event.at_ms <= now_ms]
    story = Story(found.card.job()).add_all(before)
    console = Console(width=112, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen(story, now_ms))
    svg = console.export_svg(title="surefoot run examples/gpt/job.yaml")
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # nothing from elsewhere
    (HERE / "live.svg").write_text(svg, encoding="utf-8")
    whole = Story(found.card.job()).add_all(found.events)
    (HERE / "timeline.svg").write_text(timeline_svg(whole), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
