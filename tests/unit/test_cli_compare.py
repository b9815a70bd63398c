"""`surefoot compare`: policies side by side, and what is counted as a broken floor."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from surefoot.cli import main as cli
from surefoot.core.event import (
    Event,
    GroupBroken,
    GroupFormed,
    InstanceLaunched,
    InstanceReady,
    InstanceRequested,
    RunEnded,
)
from surefoot.core.floor import FloorWatch
from surefoot.core.job import FloorKind, Job, Throughput
from surefoot.core.market import Capacity, Pool

POOL = Pool("local", "east", "east-a", "p3.2xlarge")
MARKET = f"""\
duration: 1200s
pools:
  - pool: {POOL}
    supply: {{0s: 2, 300s: 0, 540s: 2}}
    spot: 1.00
    on_demand: 3.00
    boot: 10s
    notice: 5s
"""
JOB = """\
name: gpt
num_nodes: 2
resources: {infra: local}
run: python train.py
steps: 500
step_time: 1s
deadline: 15m
local: {trace: market.yaml}
"""

WITHOUT_RAY = pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "market.yaml").write_text(MARKET)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert cli.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_policies_are_ranked_by_what_their_work_costs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "on_demand,greedy,spot-only"
    figure = folder / "figure.svg"
    body = told(
        ["compare", "job.yaml", "--policies", names, "--figure", str(figure), "--workers", "1"],
        capsys,
    )
    lines = {line["policy"]: line for line in body["policies"]}
    assert [*lines] == sorted(lines, key=lambda name: lines[name]["usd_per_kstep"])
    assert set(lines) == {"on-demand", "greedy", "spot-only"}
    assert lines["on-demand"]["over_on_demand"] == pytest.approx(1.0, abs=0.1)
    assert lines["spot-only"]["over_on_demand"] < lines["greedy"]["over_on_demand"] < 1
    assert lines["spot-only"]["floor_broken_s"] > 200, "nothing trains in the drought"
    assert lines["on-demand"]["floor_broken_s"] == 0
    assert all(line["done"] == 1 and line["late"] == 0 for line in lines.values())
    assert "offline" not in figure.read_text() and "greedy" in figure.read_text()


def test_several_processes_give_the_same_rows_as_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["compare", "job.yaml", "--policies", "greedy,hybrid", "--starts", "2", "--workers"]
    assert told([*again, "1"], capsys) == told([*again, "2"], capsys)


def test_the_oracle_can_be_compared_with(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = ["compare", "job.yaml", "--policies", "oracle,on-demand", "--workers", "1"]
    lines = {line["policy"]: line for line in told(again, capsys)["policies"]}
    assert lines["oracle"]["usd_per_kstep"] < lines["on-demand"]["usd_per_kstep"]


def test_a_sweep_varies_keys_keeps_rows_and_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "job.yaml", "--out", "sw", "--policies", "greedy", "--workers", "1"]
    command += ["--set", "throughput.floor=1,2"]
    body = told(command, capsys)
    lines = {(line["policy"], line["label"]): line for line in body["policies"]}
    assert set(lines) == {
        (policy, f"throughput.floor={floor}") for policy in ("greedy", "oracle") for floor in "12"
    }
    half, full = (lines["greedy", f"throughput.floor={n}"]["usd_per_kstep"] for n in "12")
    assert half < full, "a lower floor needs less on-demand"
    parts = {p: p.stat().st_mtime_ns for p in (folder / "sw/parts").iterdir()}
    assert told(command, capsys) == body
    assert {p: p.stat().st_mtime_ns for p in (folder / "sw/parts").iterdir()} == parts
    assert told(["report", "sw"], capsys) == body
    page = (folder / "sw/report.html").read_text()
    assert "offline optimum" in page and "throughput.floor=2" in page


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (["--set", "throughput.flor=1"], "did you mean `floor`?"),
        (["--set", "floor"], "must be KEY=VALUE"),
        (["--set", "steps.many=1"], "there is a value where a section would be"),
        (["--out", "."], "holds no sweep"),
        pytest.param(["--engine", "ray"], "ray", marks=WITHOUT_RAY),
    ],
)
def test_a_wrong_sweep_is_explained(
    folder: Path, change: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "job.yaml", "--out", "sw", "--policies", "greedy", "--workers", "1"]
    assert cli.main([*command, *change]) == 2
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (["--policies", "gredy"], "did you mean 'greedy'"),
        (["--traces", "nowhere.yaml"], "nowhere.yaml"),
        (["--traces", "empty"], "no trace in this folder"),
        (["--starts", "0"], "--starts: must be 1 or more"),
        (["--horizon", "soon"], "--horizon: must be a time"),
        (["--policies", "greedy", "--figure", "a.gif"], "must end in .svg"),
    ],
)
def test_wrong_use_is_explained(
    folder: Path, change: list[str], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    assert cli.main(["compare", "job.yaml", *change]) in (1, 2)
    assert wanted in capsys.readouterr().err


def joined(count: int, at_ms: int) -> list[Event]:
    events: list[Event] = []
    for token in map(str, range(count)):
        events += [
            InstanceRequested(at_ms, token, POOL, Capacity.SPOT),
            InstanceLaunched(at_ms, token, token),
            InstanceReady(at_ms, token),
        ]
    return events


def watched(floor: float, kind: FloorKind, events: list[Event]) -> FloorWatch:
    rule = Throughput(floor, 4.0, kind=kind, window_ms=100_000)
    return FloorWatch(Job("j", 4, (POOL,), rule)).add_all(events)


def test_a_pause_as_long_as_a_boot_is_short_of_the_floor_but_does_not_break_it() -> None:
    events = [
        *joined(2, 0),
        GroupFormed(1_000, 1, ("0", "1"), 0),
        GroupBroken(100_000, 1),
        GroupFormed(160_000, 2, ("0", "1"), 0),
        GroupBroken(300_000, 2),
        GroupFormed(500_000, 3, ("0", "1"), 0),
        RunEnded(600_000, "done"),
    ]
    floor = watched(2.0, FloorKind.INSTANT, events)
    assert floor.short_ms == 60_000 + 200_000
    assert floor.broken_ms == 200_000 - 60_000 - 2_000 - 5_000 - 1_000


def test_good_hours_pay_for_bad_ones_when_the_floor_is_an_average() -> None:
    events = [
        *joined(4, 0),
        GroupFormed(0, 1, ("0", "1", "2", "3"), 0),
        GroupBroken(50_000, 1),  # 2 on average in the first window
        GroupFormed(190_000, 2, ("0", "1", "2", "3"), 0),  # 0.4 in the second
        RunEnded(300_000, "done"),  # 4 in the third
    ]
    assert watched(2.0, FloorKind.AVERAGE, events).broken_ms == 100_000
    assert watched(0.4, FloorKind.AVERAGE, events).broken_ms == 0
