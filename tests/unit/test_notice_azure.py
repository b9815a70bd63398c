"""The Azure notice watcher against a server with the Scheduled Events protocol."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from surefoot.providers.azure.notice import AzureNoticeWatcher
from surefoot.providers.notice import Notice


class Azure(ThreadingHTTPServer):
    """One VM's view: its name, the feed that it shares with others, and what was acknowledged."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.name = "trainer_3"
        self.events: list[object] = []
        self.started: list[str] = []
        self.faults: dict[str, list[int]] = {"feed": [], "name": []}
        self.body: bytes | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, kind: str, not_before: str, *, event: str = "e1", of: str = "") -> None:
        self.events.append(
            {
                "EventId": event,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [of or self.name],
                "EventStatus": "Scheduled",
                "NotBefore": not_before,
            }
        )


class _Request(BaseHTTPRequestHandler):
    server: Azure

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if self.headers.get("Metadata") != "true" or "api-version" not in parse_qs(url.query):
            return self.send_error(400)
        if url.path == "/metadata/scheduledevents":
            feed = {"DocumentIncarnation": 1, "Events": self.server.events}
            return self.reply("feed", self.server.body or json.dumps(feed).encode())
        if url.path == "/metadata/instance/compute/name":
            return self.reply("name", self.server.name.encode())
        return self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.started += [request["EventId"] for request in body["StartRequests"]]
        self.reply("feed", b"{}")

    def reply(self, what: str, body: bytes) -> None:
        if self.server.faults[what]:
            return self.send_error(self.server.faults[what].pop(0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def azure() -> Iterator[Azure]:
    server = Azure()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def watcher(azure: Azure) -> AzureNoticeWatcher:
    return AzureNoticeWatcher(azure.endpoint, poll_s=0.05)


def in_s(seconds: float) -> str:
    return formatdate(time.time() + seconds, usegmt=True)


def test_an_empty_feed_is_no_notice(watcher: AzureNoticeWatcher) -> None:
    assert watcher.poll() is None and watcher.blind_since is None


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
def test_an_eviction_in_eight_seconds_leaves_eight_seconds(
    azure: Azure, watcher: AzureNoticeWatcher, kind: str
) -> None:
    azure.add(kind, in_s(8))
    notice = watcher.poll()
    assert notice is not None and 6_500 <= notice.left_ms <= 8_000
    assert (notice.action, notice.source) == (kind.lower(), "azure")


@pytest.mark.parametrize("when", ["", "whenever", "Mon, 19 Sep 2016 18:29:47 GMT"])
def test_no_time_a_strange_one_and_a_past_one_mean_now(
    azure: Azure, watcher: AzureNoticeWatcher, when: str
) -> None:
    azure.add("Preempt", when)
    notice = watcher.poll()
    assert notice is not None and notice.left_ms == 0


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy", "Newfangled"])
def test_other_kinds_do_not_act(azure: Azure, watcher: AzureNoticeWatcher, kind: str) -> None:
    azure.add(kind, in_s(30))
    assert watcher.poll() is None and watcher.blind_since is None


def test_the_eviction_of_another_vm_does_not_act(azure: Azure, watcher: AzureNoticeWatcher) -> None:
    azure.add("Preempt", in_s(30), of="trainer_33")
    assert watcher.poll() is None and watcher.blind_since is None


def test_an_event_is_told_once_however_often_it_is_read(
    azure: Azure, watcher: AzureNoticeWatcher
) -> None:
    azure.add("Freeze", in_s(30), event="e0")
    for _ in range(5):
        azure.add("Preempt", in_s(30))
    seen: list[Notice] = []
    stop = threading.Event()
    thread = threading.Thread(target=watcher.watch, args=(seen.append, stop))
    thread.start()
    time.sleep(0.5)
    stop.set()
    thread.join()
    assert [notice.event for notice in seen] == ["e1"]


def test_the_earliest_of_several_counts(azure: Azure, watcher: AzureNoticeWatcher) -> None:
    azure.add("Terminate", in_s(600), event="late")
    azure.add("Preempt", in_s(20), event="soon")
    notice = watcher.poll()
    assert notice is not None and notice.event == "soon"


def test_nothing_is_acknowledged_unless_asked_to(azure: Azure, watcher: AzureNoticeWatcher) -> None:
    azure.add("Preempt", in_s(30))
    notice = watcher.poll()
    assert notice is not None and azure.started == []
    watcher.acknowledge(notice)
    assert azure.started == ["e1"]


@pytest.mark.parametrize("what", ["feed", "name"])
def test_errors_blind_it_until_the_next_good_answer(
    azure: Azure, watcher: AzureNoticeWatcher, what: str
) -> None:
    azure.add("Preempt", in_s(30))
    azure.faults[what] = [500, 500, 500]
    assert watcher.poll() is None and watcher.blind_since is not None
    assert watcher.poll() is not None and watcher.blind_since is None


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"Events": 3}', b"{}"])
def test_what_is_no_feed_is_blindness(
    azure: Azure, watcher: AzureNoticeWatcher, body: bytes
) -> None:
    azure.body = body
    assert watcher.poll() is None and watcher.blind_since is not None


def test_odd_entries_in_the_feed_do_not_hide_the_eviction(
    azure: Azure, watcher: AzureNoticeWatcher
) -> None:
    azure.events += [None, {"EventType": "Preempt"}, {"EventType": ["Preempt"]}]
    azure.events += [{"EventType": "Preempt", "Resources": odd} for odd in (None, 3, "trainer_3")]
    azure.add("Preempt", in_s(30))
    assert watcher.poll() is not None
