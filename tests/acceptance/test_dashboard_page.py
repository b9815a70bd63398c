"""The page in a real browser: what it shows, odd and large runs, names that would be script."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
pytest.importorskip("fastapi", reason="needs the extra `web`")

from told_run import POOL, START, told_run
from web_world import serving, tell

from surefoot.core.event import InstanceRequested, MetricSeen, RunStarted, StepsDone, WorkerFailed
from surefoot.core.market import Capacity
from surefoot.testing.records import big_card, big_run, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

BAD = "<script>window.ran=1</script><img src=x onerror=window.ran=2>\"'\x1b[31m"
KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
BIG_LIMIT_BYTES = 1_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """A page of a served run, with what went wrong in it and how much was sent."""

    def __init__(self, browser: Any, served: Any, **terms: Any) -> None:
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.sent_bytes = 0
        self.page = browser.new_context(**terms).new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("response", self._count)
        self.page.goto(f"{served.url}/#once={served.doors.link()}")
        self.page.locator("body[data-looked]").wait_for()

    def _count(self, answer: Any) -> None:
        self.hosts.add(answer.url.split("/")[2].split(":")[0])
        self.sent_bytes += int(answer.headers.get("content-length", 0))

    def text(self, where: str) -> str:
        return str(self.page.locator(where).inner_text())


def test_the_page_shows_the_run_and_its_sum_to_the_cent(browser: Any, tmp_path: Path) -> None:
    folder = tell(tmp_path)
    log = folder / "vms" / "i-t-s1" / "worker.log"
    log.parent.mkdir(parents=True)
    log.write_text("loss 5.5\nloss 5.4\n")
    with serving(tmp_path) as served:
        seen = Opened(browser, served)
        spent = served.get("/runs/gpt-1/bill")["total_usd"]
        assert seen.text("#name") == "gpt" and seen.text("#state") == "done"
        assert f"${spent:.4f}" in seen.text("#cards") and f"${spent:.4f}" in seen.text("#bill")
        assert "66" in seen.text("#cards") and "kept training" in seen.text("#badput")
        assert seen.page.locator("#vms tbody tr").count() == 3
        assert "taken without warning" in seen.text("#vms")
        assert "void: disk full" in seen.text("#saves")
        assert "run done" in seen.text("#events") and "loss 5.4" in seen.text("#log")
        assert seen.page.locator("#charts svg").count() == 8
        assert "#once" not in seen.page.url
        assert not seen.errors and seen.hosts == {"127.0.0.1"}
        seen.page.locator("#leave").click()
        seen.page.locator("#gate").wait_for()
        seen.page.reload()
        seen.page.locator("#token").fill("wrong-token-wrong-token")
        seen.page.locator("#signin button").click()
        seen.page.get_by_text("not the server's token").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_of_a_narrow_screen(browser: Any, tmp_path: Path, scheme: str) -> None:
    tell(tmp_path, name="a" * 200)
    with serving(tmp_path) as served:
        size = {"width": 360, "height": 700}
        seen = Opened(browser, served, viewport=size, color_scheme=scheme)
        wide = seen.page.evaluate("() => document.documentElement.scrollWidth")
        colour = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert wide <= 360
    assert (sum(map(int, colour[4:-1].split(","))) < 200) is (scheme == "dark")


def test_names_errors_and_log_lines_never_run(browser: Any, tmp_path: Path) -> None:
    """CASES 142: everything foreign is text, and what looks like a key is masked."""
    folder = tell(
        tmp_path,
        told_run("gpt-1", message=f"{BAD} token={KEY}"),
        name=BAD,
        policy=BAD,
        settings={"throughput.floor": BAD, "budget.total": KEY, BAD: BAD},
    )
    for name in ("worker.log", "agent.log"):
        log = folder / "vms" / BAD.replace("/", "_") / name
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{BAD} {KEY}\n")
    with serving(tmp_path) as served:
        seen = Opened(browser, served)
        assert seen.text("#name").startswith("<script>window.ran=1</script><img")
        assert "<img src=x" in seen.text("#reason") and "<img src=x" in seen.text("#log")
        assert "<img src=x" in seen.text("#events")
        assert seen.page.evaluate("() => window.ran === undefined")
        assert seen.page.locator("img").count() == 0
        content = seen.page.content()
    assert KEY not in content and "\x1b" not in content
    assert not seen.errors


def test_one_odd_record_does_not_blank_the_page(browser: Any, tmp_path: Path) -> None:
    """CASES 140: NaN and infinity, no nodes, a VM only just known, a run without events."""
    events = [
        RunStarted(START, "odd-1"),
        InstanceRequested(START, "odd-1-1", POOL, Capacity.SPOT, speed=float("nan")),
        MetricSeen(START + 1, "x", float("inf")),
        StepsDone(START + 2, 1, 0, float("nan")),
        WorkerFailed(START + 3, "nobody", 1),
    ]
    tell(tmp_path, events, run="odd-1", num_nodes=0, ceiling=0.0, steps=None)
    tell(tmp_path, [], run="empty-1", started_ms=0)
    with serving(tmp_path) as served:
        seen = Opened(browser, served)
        assert "requested" in seen.text("#vms") and "–" in seen.text("#vms")
        seen.page.select_option("#runs", "empty-1")
        seen.page.locator("#state", has_text="not begun").wait_for()
        for word in ("NaN", "Infinity", "undefined", "null"):
            assert word not in seen.text("main")
    assert not seen.errors


def test_a_thousand_vms_over_ninety_days_are_shown_in_pages(browser: Any, tmp_path: Path) -> None:
    """CASES 141: the first view stays under 1 MB; the time has a bar in benchmarks/api.py."""
    write_run(tmp_path / "big", big_run(), card=big_card())
    with serving(tmp_path) as served:
        seen = Opened(browser, served)
        assert seen.page.locator("#vms tbody tr").count() == 100
        assert "100 of" in seen.text("#vm-count")
        assert seen.sent_bytes < BIG_LIMIT_BYTES
        seen.page.locator("#more-vms").click()
        seen.page.locator("#vms tbody tr").nth(350).wait_for()
    assert not seen.errors
