"""`--url`: the command line asks a real server instead of a folder, and keeps the token safe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from told_run import told_run

pytest.importorskip("fastapi", reason="needs the extra `web`")

from web_world import TOKEN, Served, serving, tell

from surefoot.cli import main as cli


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    folder = tell(root)
    log = folder / "vms" / "i-t-s1" / "worker.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n\x1b[31mthree\n")
    tell(root, told_run("old-1", upto_s=50), run="old-1", started_ms=0)
    with serving(root) as found:
        yield found


@pytest.fixture
def there(served: Served, tmp_path: Path) -> list[str]:
    file = tmp_path / "api.token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    return ["--url", served.url, "--token-file", str(file)]


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(arguments) == code
    return capsys.readouterr().out


def test_status_of_the_newest_or_a_named_run(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, "status", *there)
    assert "gpt (gpt-1): done" in text and "step 66 of 100" in text and "run done" in text
    assert json.loads(told(capsys, "status", "old-1", "--json", *there))["state"] == "left"
    body = json.loads(told(capsys, "status", "none-1", "--json", *there, code=2))
    assert "no run 'none-1'" in body["error"]["message"]


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_events_are_the_same_as_from_the_folder(
    follow: list[str], there: list[str], served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(x) for x in told(capsys, "events", "--json", *follow, *there).splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(told_run()) + 1))
    assert rows[0]["body"]["run"] == "gpt-1"
    only = told(capsys, "events", "gpt-1", "--kind", "InstanceGone", *follow, *there)
    assert len(only.splitlines()) == 3 and "was taken, as announced" in only


def test_logs_name_their_vm_and_hold_no_terminal_codes(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, "logs", "gpt-1", "s1", "-f", *there)
    assert text.splitlines() == ["s1 | one", "s1 | two", "s1 | three"]
    assert json.loads(told(capsys, "logs", "--json", "--tail", "1", *there)) == {"s1": ["three"]}
    told(capsys, "logs", "gpt-1", "s9", *there, code=2)


def test_stop_says_when_nothing_leads_the_run(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing leads it; its state: done" in told(capsys, "stop", *there)


def test_the_token_goes_to_nobody_it_should_not(
    there: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(url: str, file: str = there[3]) -> str:
        assert cli.main(["status", "--url", url, "--token-file", file]) == 2
        return capsys.readouterr().err

    assert "in the clear" in refused("http://example.org:8787")
    assert "no user or password" in refused("https://me:secret@example.org")
    assert "is no address" in refused("ftp://127.0.0.1")
    assert "there is no token" in refused(there[1], str(tmp_path / "none"))
    Path(there[3]).chmod(0o644)
    assert "others may read" in refused(there[1])
    Path(there[3]).chmod(0o600)
    Path(there[3]).write_text("some-other-token-123\n")
    assert "a token is needed" in refused(there[1])


def test_a_server_that_is_not_there_is_named(
    there: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "--url", "http://127.0.0.1:9", *there[2:]]) == 1
    assert "surefoot dashboard" in capsys.readouterr().err
