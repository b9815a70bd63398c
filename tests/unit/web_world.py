"""A real server over a folder of runs, on loopback, for the tests of the API and the page."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from told_run import POOL, told_run

from surefoot.controller.clock import RealClock
from surefoot.core.event import Event
from surefoot.report.card import Card
from surefoot.testing.records import write_run
from surefoot.web.app import build
from surefoot.web.doors import Doors
from surefoot.web.serve import Place, listen, server_of
from surefoot.web.watch import open_runs

TOKEN = "a-token-for-tests-only-123"


def card(run: str = "gpt-1", *, name: str = "gpt", started_ms: int = 1) -> Card:
    """Return the card of `told_run`."""
    pools = (str(POOL),)
    return Card(run, name, 2, "hybrid", pools, steps=100, ceiling=3.0, started_ms=started_ms)


def tell(root: Path, events: list[Event] | None = None, **terms: Any) -> Path:
    """Write a run's folder below `root`; without events those of `told_run`."""
    shown = replace(card(), **terms)
    facts = told_run(shown.run) if events is None else events
    folder = root / shown.run.replace("/", "_")[:60]
    write_run(folder, facts, card=shown)
    return folder


@dataclass
class Served:
    """A server that answers at `port`; `once` opens one session."""

    port: int
    doors: Doors

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return (status, headers, body) of one request, with the token unless told otherwise."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
        try:
            link.request(method, path, headers=sent)
            answer = link.getresponse()
            return (
                answer.status,
                {k.lower(): v for k, v in answer.getheaders()},
                answer.read(),
            )
        finally:
            link.close()

    def get(self, path: str) -> Any:
        """Return the JSON of an answer that must be 200, read strictly."""
        status, _, body = self.ask("GET", f"/api/v1{path}")
        assert status == 200, body
        return strict(body)


def strict(body: bytes) -> Any:
    """Parse JSON; NaN and Infinity are errors."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body, parse_constant=refuse)


@contextmanager
def serving(root: Path) -> Iterator[Served]:
    """Serve the runs below `root` until the block ends."""
    clock = RealClock()
    doors, runs = Doors.of(TOKEN, clock), open_runs(root)
    place = Place(port=0)
    sock = listen(place)
    server = server_of(build(runs, doors), place)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield Served(int(sock.getsockname()[1]), doors)
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        runs.close()
