"""A run's journal in another place than its folder: `SUREFOOT_JOURNAL`."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from surefoot.cli import main as cli
from surefoot.cli import outdir
from surefoot.controller.recover import this_process
from surefoot.controller.store import Store
from surefoot.core.event import MetricSeen, RunEnded, RunStarted
from surefoot.testing.postgres import new_database
from surefoot.web.watch import Watch

CARD = outdir.Card("gpt-1", "gpt", 2, "hybrid", ("local/e/e-a/m",), steps=100, started_ms=1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    outdir.write_card(tmp_path / "out", CARD)
    return tmp_path / "out"


def test_a_run_whose_journal_is_in_postgresql_is_told_as_any_other(
    folder: Path,
    postgres: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = new_database(postgres, f"c{uuid4().hex}")
    monkeypatch.setenv("SUREFOOT_JOURNAL", url)
    assert cli.main(["status", "out", "--json"]) == 0  # nothing is there yet
    store = Store(url)
    journal = store.acquire("gpt-1", this_process(), now_ms=4_000_000_000_000)
    journal.extend([RunStarted(1_000, "gpt"), MetricSeen(2_000, "loss", 3.5, step=1)])
    capsys.readouterr()
    assert cli.main(["events", "out", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["seq"], row["kind"]) for row in rows] == [(1, "RunStarted"), (2, "MetricSeen")]
    watch = Watch(folder, CARD)
    watch.refresh(now_ms=10_000_000)
    assert (watch.seq, watch.trouble) == (2, "")
    journal.append(RunEnded(3_000, "done"))
    journal.release()
    assert cli.main(["stop", "out"]) == 0
    assert "nothing leads it" in capsys.readouterr().out
    assert outdir.read(folder).outcome == "done"
    assert not (folder / outdir.JOURNAL).exists()
    assert watch.store is not None
    watch.store.close()
    store.close()


def test_a_journal_in_the_folder_stays_the_runs_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_JOURNAL", "postgresql://me:hunter2@127.0.0.1:1/x")
    (folder / outdir.JOURNAL).touch()
    assert outdir.journal_of(folder) == folder / outdir.JOURNAL
    assert outdir.read(folder).events == []


def test_a_server_that_is_not_there_is_named_without_its_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("SUREFOOT_JOURNAL", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert cli.main(["status", "out"]) == 2
    told = capsys.readouterr()
    assert "cannot open the journal at" in told.err
    assert "hunter2" not in told.out + told.err
