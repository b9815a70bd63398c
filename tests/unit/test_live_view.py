"""The live view and its plain twin: they show what matters and survive every half of a run."""

from __future__ import annotations

import pytest
from rich.console import Console
from told_run import JOB, told_run

from surefoot.cli.live import LiveView, PlainView, screen, status_line
from surefoot.report import Story


def shown(story: Story, *, width: int = 110) -> str:
    console = Console(width=width, record=True, force_terminal=False, file=None, quiet=False)
    with console.capture() as caught:
        console.print(screen(story, story.state.now_ms))
    return caught.get()


def test_shows_fleet_progress_forecast_and_money() -> None:
    text = shown(Story(JOB).add_all(told_run(upto_s=26.5)))
    for part in ("east-a", "spot", "noticed", "19 of 100", "hazard forecast", "3.00 losses/h"):
        assert part in text
    assert "NOTICE: spot VM s1" in text
    assert "all on demand" in text
    assert "4,096" in text


@pytest.mark.parametrize("upto_s", [-1, 0, 0.15, 5.5, 6.0, 60.05, 61.5, 100])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_half_of_a_run_can_be_shown(upto_s: float, width: int) -> None:
    text = shown(Story(JOB).add_all(told_run(upto_s=upto_s)), width=width)
    assert "fleet" in text


def test_markup_in_names_is_shown_as_text() -> None:
    text = shown(Story(JOB).add_all(told_run(upto_s=61, message="[bold red]x[/] [link=a]b[/link]")))
    assert "[link=a]" in text


def test_plain_lines_tell_each_event_once_and_progress_now_and_then() -> None:
    story, lines = Story(JOB), []
    with PlainView(story, lines.append) as view:
        for event in told_run():
            story.add(event)
            view.happened(event)
            view.pulse(event.at_ms)
    told = [line for line in lines if "step" not in line.split("  ")[1][:4]]
    assert len(told) == len(set(told))
    assert any("was taken without warning" in line for line in lines)
    assert any(line.startswith("  0:26  NOTICE") for line in lines)
    progress = [line for line in lines if "VMs train, loss" in line or "VM trains, loss" in line]
    assert 5 <= len(progress) <= 10


def test_the_live_view_draws_on_a_terminal() -> None:
    story = Story(JOB)
    console = Console(force_terminal=True, width=100, height=40, record=True, legacy_windows=False)
    with console.capture() as caught, LiveView(story, console) as view:
        for event in told_run(upto_s=40):
            story.add(event)
            view.happened(event)
            view.pulse(event.at_ms)
    assert "surefoot" in caught.get()


def test_the_status_line_says_where_the_run_is() -> None:
    line = status_line(Story(JOB).add_all(told_run(upto_s=70)))
    assert line.startswith("step 45 of 100, 1 VM trains, loss 4, safe up to 19, $0.0")
