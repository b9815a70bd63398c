"""The API and the page with 1,000 VMs, 20,000 events and 90 days of prices: time, size, memory."""

from __future__ import annotations

import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import Bars, options, table
from surefoot.report.token import read_token
from surefoot.testing.records import big_card, big_run, write_run

VIEW = (
    "/api/v1/runs/big-1",
    "/api/v1/runs/big-1/series?points=240",
    "/api/v1/runs/big-1/bill",
    "/api/v1/runs/big-1/forecast",
    "/api/v1/runs/big-1/plan",
    "/api/v1/runs/big-1/vms?limit=100",
    "/api/v1/runs/big-1/events?tail=200&loud=true",
    "/api/v1/runs/big-1/checkpoints?limit=50",
    "/api/v1/runs/big-1/logs",
)
"""What the page asks for at its first view, after its files and the list of runs."""


@contextmanager
def serving(root: Path) -> Iterator[tuple[int, int, str, float]]:
    """Yield (process, port, token, seconds until it answers) of a server over a folder."""
    file = root / "token"
    start = "from surefoot.cli.main import run; run()"
    command = [sys.executable, "-c", start, "dashboard", str(root)]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--port", "0", "--json", "--token-file", str(file)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        place = json.loads(process.stdout.readline())
        port = int(place["url"].rpartition(":")[2])
        while get(port, "", "/healthz")[1] != 200:
            time.sleep(0.05)
        yield process.pid, port, read_token(file), time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(20)


def get(port: int, token: str, path: str) -> tuple[float, int, int]:
    """Return (seconds, status, bytes) of one request; status 0 while nothing listens."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    began = time.perf_counter()
    try:
        link.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        size = len(answer.read())
        return time.perf_counter() - began, answer.status, size
    except ConnectionRefusedError:
        return 0.0, 0, 0
    finally:
        link.close()


def first_view(port: int, token: str) -> tuple[float, int]:
    """Return (seconds, bytes) of all that the page's first view asks for, as a browser asks."""
    began = time.perf_counter()
    size = sum(get(port, token, path)[2] for path in ("/", "/page.css", "/chart.js", "/page.js"))
    size += get(port, token, "/api/v1/runs")[2]
    with ThreadPoolExecutor(6) as pool:
        size += sum(found[2] for found in pool.map(lambda p: get(port, token, p), VIEW))
    return time.perf_counter() - began, size


def in_browser(port: int, token: str) -> float | None:
    """Return seconds until a browser shows the run, from a loaded page; None without one."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        return None
    with sync_playwright() as play:
        try:
            browser = play.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
        except Error:
            return None
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("#token").fill(token)
        page.locator("#signin button").click()
        page.locator("body[data-looked]").wait_for()
        times = []
        for _ in range(3):
            began = time.perf_counter()
            page.reload()
            page.locator("body[data-looked]").wait_for()
            times.append(time.perf_counter() - began)
        browser.close()
    return statistics.median(times)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process ever held."""
    told = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", told)
    return int(found[1]) / 1024 if found else float("nan")


def main() -> int:
    """Measure and check the bars."""
    given = options(__doc__ or "").parse_args()
    rounds = 100 if given.quick else 300
    bars = Bars("api")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_run(root / "big", big_run(), card=big_card())
        with serving(root) as (pid, port, token, start_s):
            get(port, token, VIEW[0])  # the journals are read by then
            times = sorted(get(port, token, VIEW[0])[0] for _ in range(rounds))
            views = [first_view(port, token) for _ in range(5)]
            worst = {path: max(get(port, token, path)[0] for _ in range(5)) for path in VIEW}
            memory = peak_mb(pid)
            shown_s = in_browser(port, token)
    middle, high = statistics.median(times), times[int(len(times) * 0.99)]
    view_s, size = statistics.median(v[0] for v in views), max(v[1] for v in views)
    rows: dict[str, Any] = {"status_s": middle, "status_p99_s": high, "start_s": start_s}
    bars.rows = {**rows, "view_s": view_s, "view_bytes": size, "browser_s": shown_s}
    table(("path", "worst of 5, ms"), [(path, worst[path] * 1e3) for path in VIEW])
    print(f"start with cold journals {start_s:.2f} s; status p50 {middle * 1e3:.1f} ms")
    if shown_s is not None:
        print(f"shown in chromium: {shown_s:.2f} s")
        bars.at_most("first view in a browser, s", shown_s, 1.0)
    bars.at_most("status, median, ms", middle * 1e3, 50)
    bars.at_most("status, p99, ms", high * 1e3, 50)
    bars.at_most("first view over HTTP, s", view_s, 1.0)
    bars.at_most("first view, MB", size / 1e6, 1.0)
    bars.at_most("peak memory of the server, MB", memory, 300)
    return bars.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
