"""`surefoot interval`: formulas side by side from figures, without any run."""

from __future__ import annotations

import json

import pytest

from surefoot.cli import main as cli


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    assert cli.main(["interval", *arguments, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    return {row["formula"]: row for row in body["formulas"]}


def test_dalys_published_case_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--cost", "5m", "--mtbf", "24h")
    assert found["daly, higher order"]["interval_s"] == pytest.approx(117 * 60, rel=0.01)


def test_notices_make_ours_longer_and_less_wasteful(capsys: pytest.CaptureFixture[str]) -> None:
    terms = ("--cost", "12s", "--mtbf", "4h", "--notice-share", "0.9")
    found = rows(capsys, *terms)
    ours, young = found["surefoot"], found["young"]
    assert ours["interval_s"] > 2 * young["interval_s"]
    assert ours["waste"] < young["waste"]
    never = rows(capsys, *terms[:4], "--notice-share", "1")["surefoot"]
    assert (never["interval_s"], never["waste"]) == (None, 0.0)
    assert rows(capsys, *terms, "--persist", "2h")["surefoot"]["interval_s"] == 7200


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--cost", "12s"], "go together"),
        (["--cost", "12", "--mtbf", "4h"], "--cost: must be a time with its unit"),
        (["--cost", "12s", "--mtbf", "4h", "--notice-share", "1.5"], "within 0 and 1"),
        (["nowhere"], "no such folder"),
    ],
)
def test_wrong_use_is_explained(
    arguments: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["interval", *arguments]) == 2
    assert wanted in capsys.readouterr().err
