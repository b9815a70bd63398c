"""The command line: help, exit codes, errors as sentences and as JSON, a run's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from told_run import told_run

from surefoot.cli import main as cli
from surefoot.cli import outdir
from surefoot.config import load_job
from surefoot.controller.store import Store
from surefoot.core.event import Event, RunStarted
from surefoot.errors import ConfigError

POOL = "local/east/east-a/p3.2xlarge"
MARKET = f"""\
duration: 60s
pools:
  - {{pool: {POOL}, supply: 2, spot: 0.97, on_demand: 3.06, boot: 2s, notice: 5s}}
"""
JOB = """\
name: gpt
num_nodes: 2
resources: {infra: local}
run: python train.py
local: {trace: market.yaml}
out: out
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "market.yaml").write_text(MARKET)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def journal_of(folder: Path, events: list[Event], *, run: str = "gpt-1") -> None:
    """Write a run's folder as `surefoot run` leaves it."""
    card = outdir.Card(run, "gpt", 2, "hybrid", (POOL,), steps=100, ceiling=3.0, started_ms=1)
    outdir.write_card(folder, card)
    store = Store(folder / outdir.JOURNAL)
    journal = store.acquire(run, "test:1", now_ms=0)
    journal.extend(events)
    journal.release()
    store.close()


def test_help_lists_what_exists_and_hides_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in ("run", "status", "report"):
        assert f"\n  {verb} " in text
    for verb in cli.NOT_BUILT:
        assert f"\n  {verb} " not in text


@pytest.mark.parametrize("verb", cli.NOT_BUILT)
def test_verbs_that_are_not_built_say_so(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "x", "--flag", "--json"]) == 2
    body = json.loads(capsys.readouterr().out)
    assert body["error"]["kind"] == "NotBuiltError"
    assert f"`surefoot {verb}` is not built yet" in body["error"]["message"]


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["run"], ["run", "a", "b"], ["status", "--colour"]]
)
def test_wrong_use_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("checkpiont: {}\n", "did you mean `checkpoint`?"),
        ("steps: many\n", "steps: must be a whole number"),
        ("throughput: {floor: 5, ceiling: 4}\n", "is over the ceiling"),
        ("deadline: 2020-01-01\n", "is in the past"),
    ],
)
def test_a_bad_job_is_refused_with_two_and_nothing_is_started(
    folder: Path, change: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "job.yaml").write_text(JOB + change)
    before = sorted(p.name for p in folder.iterdir())
    assert cli.main(["run", "job.yaml"]) == 2
    assert wanted in capsys.readouterr().err
    assert cli.main(["run", "job.yaml", "--json"]) == 2
    assert wanted in json.loads(capsys.readouterr().out)["error"]["message"]
    assert sorted(p.name for p in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("infra", "wanted"),
    [
        ("gcp/us-central1", "the gcp provider is not built yet"),
        ("aws/us-east-1", "checkpoint.path"),
        ("'*'", "name the cloud"),
        ("awz", "awz"),
        ("local/west", "no pool"),
    ],
)
def test_a_cloud_that_cannot_be_used_is_refused_before_anything_starts(
    folder: Path, infra: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = JOB.replace("infra: local", f"infra: {infra}")
    if infra == "'*'":
        text = text.replace("local: {trace: market.yaml}\n", "")
    (folder / "job.yaml").write_text(text)
    assert cli.main(["run", "job.yaml"]) == 2
    assert wanted in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_a_broken_market_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "market.yaml").write_text(MARKET.replace("0.97", "0,97x"))
    assert cli.main(["run", "job.yaml"]) in (1, 2)
    assert "market.yaml" in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_status_reads_a_journal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal_of(folder / "out", told_run(upto_s=70))
    assert cli.main(["status", "out"]) == 0
    text = capsys.readouterr().out
    assert "gpt (gpt-1): under way" in text
    assert "step 45 of 100" in text
    assert cli.main(["status", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["state"], body["step"], body["steps_safe"]) == ("under way", 45, 19)
    assert body["vms"] == [{"pool": POOL, "capacity": "on_demand", "ready": 1}]


def test_report_is_written_for_whole_half_and_empty_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, events in (("a", told_run()), ("b", told_run(upto_s=30)), ("c", [])):
        journal_of(folder / name, events)
        assert cli.main(["report", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "gpt"
        assert "</html>" in (folder / name / "report.html").read_text()
        assert cli.main(["report", name]) == 0
        assert "report.html" in capsys.readouterr().out
        assert cli.main(["status", name]) == 0
        capsys.readouterr()


@pytest.mark.parametrize("name", ["nowhere", "empty", "spoilt"])
def test_a_folder_without_a_run_is_refused(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    (folder / "spoilt").mkdir()
    (folder / "spoilt" / "run.json").write_text("[1, 2")
    for verb in ("status", "report"):
        assert cli.main([verb, name]) == 2
        assert name in capsys.readouterr().err


def test_a_finished_run_is_set_aside_and_an_unfinished_one_goes_on(folder: Path) -> None:
    job_file = load_job(folder / "job.yaml")
    journal_of(folder / "out", told_run(upto_s=70))
    found = outdir.claim(job_file, now_ms=5_000)
    assert (found.card.run, found.outcome) == ("gpt-1", None)
    assert len(found.events) > 30

    journal_of(folder / "out2", told_run())
    other = load_job(write(folder, JOB.replace("out: out", "out: out2")))
    fresh = outdir.claim(other, now_ms=5_000)
    assert fresh.card.run != "gpt-1"
    assert fresh.events == []
    assert (folder / "out2.previous" / "journal.db").exists()
    assert not (folder / "out2").exists()

    journal_of(folder / "out2", told_run())
    outdir.claim(other, now_ms=6_000)
    assert (folder / "out2.previous" / "journal.db").exists()


def write(folder: Path, text: str) -> Path:
    path = folder / "other.yaml"
    path.write_text(text)
    return path


def test_a_run_taken_up_again_after_its_end_counts_as_unfinished(folder: Path) -> None:
    events = told_run()
    again = [*events, RunStarted(events[-1].at_ms + 1, "gpt-1", resumed=True)]
    journal_of(folder / "out", again)
    assert outdir.read(folder / "out").outcome is None


def test_strangers_in_the_way_are_left_alone(folder: Path) -> None:
    job_file = load_job(folder / "job.yaml")
    (folder / "out").mkdir()
    (folder / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="holds no run of ours"):
        outdir.claim(job_file, now_ms=0)

    journal_of(folder / "done", told_run())
    (folder / "done.previous").mkdir()
    (folder / "done.previous" / "thesis.tex").write_text("precious")
    other = load_job(write(folder, JOB.replace("out: out", "out: done")))
    with pytest.raises(ConfigError, match="is in the way"):
        outdir.claim(other, now_ms=0)
    assert (folder / "done.previous" / "thesis.tex").read_text() == "precious"


def test_another_jobs_unfinished_run_is_not_taken_up(folder: Path) -> None:
    journal_of(folder / "out", told_run(upto_s=70))
    other = load_job(write(folder, JOB.replace("name: gpt", "name: bert")))
    with pytest.raises(ConfigError, match="unfinished run of another job, 'gpt'"):
        outdir.claim(other, now_ms=0)


def test_the_command_itself_prints_no_traceback(folder: Path) -> None:
    command = [sys.executable, "-c", "from surefoot.cli.main import run; run()", "run", "no.yaml"]
    env = {**os.environ, "COLUMNS": "80"}
    found = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert found.returncode == 2
    assert "there is no such file" in found.stderr
    assert "Traceback" not in found.stderr + found.stdout
