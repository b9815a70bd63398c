"""Reports: true figures, nothing foreign run as script, and a page for every kind of run."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from told_run import JOB, POOL, START, told_run

from surefoot.core.event import Event, GroupFormed, MetricSeen, OfferingsSeen, RunStarted, StepsDone
from surefoot.core.market import Capacity, Offering
from surefoot.report import Story, figures, write_report
from surefoot.report.clean import HIDDEN, clean
from surefoot.report.figure import timeline_svg
from surefoot.report.foretold import band, foretold
from surefoot.report.numbers import clock, dollars, number, percent
from surefoot.report.page import page
from surefoot.report.story import ENOUGH_POINTS, Course
from surefoot.report.strict import strict_json

NASTY = "<script>alert(1)</script><img src=x onerror=\"boom()\">\x1b[31mred\x1b[0m 'quoted'"


def told(events: list[Event]) -> Story:
    return Story(JOB).add_all(events)


class _Outline(HTMLParser):
    """Collects the tags of a page, and fails on what could reach out or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for key, value in attrs:
            assert not key.startswith("on"), (tag, key)
            assert key not in {"src"}, (tag, key)
            if key in {"href", "xlink:href"}:
                assert (value or "").startswith("#"), value


def outline(html: str) -> list[str]:
    parser = _Outline()
    parser.feed(html)
    return parser.tags


def test_the_figures_are_those_of_the_account() -> None:
    body = figures(told(told_run()))
    assert body["steps"] == 66
    assert body["lost_steps"] == 2
    assert body["preemptions"] == {"notice": 1, "silent": 1}
    assert body["checkpoints"] == 2
    assert (body["val_loss_before"], body["val_loss_after"]) == (5.5, 3.5)
    assert body["wall_s"] == pytest.approx(100.0)
    hours = (32.0 - 0.11 + 60.0 - 0.21) / 3600
    spot = hours * 0.97
    demand = (96.0 - 33.01) / 3600 * 3.06
    assert body["bill_usd"] == pytest.approx(spot + demand, abs=2e-6)
    assert body["on_demand_usd_same_time"] == pytest.approx(2 * 3.06 * 100 / 3600, abs=2e-6)


def test_summary_json_has_the_promised_keys_and_is_strict(tmp_path: Path) -> None:
    write_report(tmp_path, told(told_run()))

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in strict JSON")

    body = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    wanted = {
        "steps", "lost_steps", "preemptions", "on_demand_fallbacks", "returns_to_spot",
        "scale_ups", "recovery_s", "checkpoints", "goodput", "badput", "bill_usd",
        "on_demand_usd_same_time", "on_demand_usd_same_work", "saving_same_work",
        "val_loss_before", "val_loss_after",
    }  # fmt: skip
    assert wanted <= set(body)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "summary.json"]


@pytest.mark.parametrize("upto_s", [-1, 0, 0.15, 5.5, 6.0, 26.5, 60.05, 61.5, 100])
def test_every_half_of_a_run_has_a_page(tmp_path: Path, upto_s: float) -> None:
    write_report(tmp_path, told(told_run(upto_s=upto_s)))
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    tags = outline(html)
    assert "svg" in tags
    assert "script" not in tags
    assert html.rstrip().endswith("</html>")


def test_names_and_messages_are_text_wherever_they_show() -> None:
    job = replace(JOB, name=NASTY, policy=NASTY)
    pool = replace(POOL, zone=NASTY)
    events = told_run(NASTY, message=NASTY)
    events[1] = OfferingsSeen(START, (Offering(pool, Capacity.SPOT, 1),))
    events.insert(-1, MetricSeen(START + 99_000, NASTY, 1.0))
    story = Story(job).add_all(events)
    html = page(story, figures(story))
    assert "script" not in outline(html)
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html


def test_records_that_are_odd_do_not_blank_the_page() -> None:
    events = told_run()
    odd = (float("nan"), float("inf"), -float("inf"))
    events += [MetricSeen(START + 101_000, "val_loss", value, 70) for value in odd]
    events += [StepsDone(START + 101_000 + i, 70 + i, 0, v, 0) for i, v in enumerate(odd)]
    story = told(events)
    body = figures(story)
    html = page(story, body)
    assert "svg" in outline(html)
    assert not re.search(r"\b(?:NaN|Infinity)\b", strict_json(body))
    assert body["val_loss_after"] is None


def test_the_figure_is_a_tree_of_svg_with_its_panels() -> None:
    svg = timeline_svg(told(told_run()))
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    text = " ".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("text"))
    for label in ("VMs", "US dollars", "interval, s", "losses per hour", "loss", "lost silently"):
        assert label in text
    assert timeline_svg(told(told_run())) == svg, "the same run gives the same figure"


def test_a_step_done_again_counts_once_with_its_last_loss() -> None:
    events = told_run(upto_s=5)
    for step in range(1, 213):
        events.append(StepsDone(START + 6_000 + step, step, 1, 1.0))
    story = told(events)
    assert max(story.losses) == 212
    story.add(GroupFormed(START + 9_000, 2, ("t-s1",), 200, 12))
    assert max(story.losses) == 200
    story.add(StepsDone(START + 9_500, 201, 1, 2.0))
    assert story.losses[201] == 2.0


def test_a_long_run_is_thinned_and_quick() -> None:
    course = Course()
    for i in range(200_000):
        course.add(i * 10, float(i))
    assert len(course.points) <= ENOUGH_POINTS
    assert course.points[0] == (0, 0.0)
    assert course.last == 199_999.0

    events: list[Event] = [*told_run(upto_s=6)]
    events += [StepsDone(START + 7_000 + i * 100, i, 100, 3.0) for i in range(20_000)]
    begun = time.perf_counter()
    story = told(events)
    html = page(story, figures(story))
    took = time.perf_counter() - begun
    assert len(html) < 1_000_000
    assert took < 20.0


def test_secrets_and_codes_are_taken_out_of_foreign_text() -> None:
    assert clean("\x1b[31mred\x1b[0m\x07") == "red"
    assert clean("key AKIAABCDEFGHIJKLMNOP here") == f"key {HIDDEN} here"
    assert clean("AWS_SECRET_ACCESS_KEY=abcd/efgh+ijkl") == f"AWS_SECRET_ACCESS_KEY={HIDDEN}"
    assert clean("api_key: 'hunter2222' ok") == f"api_key: {HIDDEN} ok"
    assert clean("tokens/s 300, token count 4") == "tokens/s 300, token count 4"
    assert clean("one\ntwo\tthree") == "one two three"
    assert clean("one\ntwo", lines=True) == "one\ntwo"
    assert clean("x" * 600).endswith("...")


def test_missing_figures_are_dashes() -> None:
    assert [f(None) for f in (number, percent, dollars, clock)] == ["-"] * 4
    assert [f(float("nan")) for f in (number, percent, dollars, clock)] == ["-"] * 4
    assert number("12") == "-"
    assert (number(12_345), percent(0.306), dollars(0.0123)) == ("12,345", "30.6 %", "$0.0123")
    assert [clock(x) for x in (8.44, 161, 11_100, 190_000)] == [
        "8.4 s", "2 min 41 s", "3 h 5 min", "2 d 4 h",
    ]  # fmt: skip


def test_a_run_taken_up_again_goes_on_in_one_story() -> None:
    first = told_run(upto_s=50)
    story = told([*first, RunStarted(START + 200_000, "gpt-1", resumed=True, step=19)])
    assert story.began_ms == START
    assert story.ending is None
    assert any("was taken up again at step 19" in text for _, (_, text) in story.lines)


def test_forecast_losses_are_added_up_and_compared_with_those_that_came() -> None:
    story = told(told_run())
    found = foretold(story)
    # 3 an hour for the first 61 s, then 9 an hour until the end at 100 s
    assert found.total == pytest.approx((3 * 61 + 9 * 39) / 3600)
    assert len(found.seen) == 1, "two losses of one pool within three minutes are one event"
    assert figures(story)["pool_events"]["seen"] == 1
    assert "Forecast against what happened" in page(story, figures(story))
    assert found.odds == pytest.approx(2 * (1 - math.exp(-found.total)))


def test_a_band_holds_nine_of_ten_counts() -> None:
    dice = np.random.default_rng(1)
    for mean in (0.0, 0.3, 2.0, 17.0):
        low, high = band(mean)
        counts = dice.poisson(mean, 20_000)
        assert np.mean((counts >= low) & (counts <= high)) >= 0.9
        assert np.mean(counts < low) <= 0.055 and np.mean(counts > high) <= 0.055
