"""The GCP notice watcher against a server with Google's wait-for-change protocol."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from surefoot.providers.gcp.notice import HOST_VARIABLE, GcpNoticeWatcher
from surefoot.providers.notice import Notice


class Google(ThreadingHTTPServer):
    """One VM's metadata: the value of instance/preempted, its etag, and who hangs on it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.value, self.etag = "FALSE", 1
        self.faults: list[int] = []
        self.asked = 0
        self.hangs = True
        self.flavor = "Google"
        self.changed = threading.Condition()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def preempt(self) -> None:
        with self.changed:
            self.value, self.etag = "TRUE", self.etag + 1
            self.changed.notify_all()


class _Request(BaseHTTPRequestHandler):
    server: Google

    def do_GET(self) -> None:
        server, url = self.server, urlsplit(self.path)
        server.asked += 1
        if server.faults:
            return self.send_error(server.faults.pop(0))
        if self.headers.get("Metadata-Flavor") != "Google":
            return self.send_error(403)
        if url.path != "/computeMetadata/v1/instance/preempted":
            return self.send_error(404)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        with server.changed:
            if query.get("wait_for_change") == "true" and server.hangs:
                server.changed.wait_for(
                    lambda: str(server.etag) != query.get("last_etag"),
                    timeout=float(query["timeout_sec"]),
                )
            value, etag = server.value, server.etag
        self.send_response(200)
        self.send_header("Metadata-Flavor", server.flavor)
        self.send_header("ETag", str(etag))
        self.end_headers()
        self.wfile.write(value.encode())
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def google() -> Iterator[Google]:
    server = Google()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Watch:
    """A watcher in a thread, and when it called back with what."""

    def __init__(self, watcher: GcpNoticeWatcher, google: Google) -> None:
        self.seen: list[tuple[float, Notice]] = []
        self._google, self._stop = google, threading.Event()
        self._thread = threading.Thread(target=watcher.watch, args=(self._note, self._stop))
        self._thread.start()

    def _note(self, notice: Notice) -> None:
        self.seen.append((time.monotonic(), notice))

    def close(self) -> None:
        self._stop.set()
        with self._google.changed:  # let go of whoever hangs
            self._google.etag += 1
            self._google.changed.notify_all()
        self._thread.join()


def test_false_is_no_notice(google: Google) -> None:
    watcher = GcpNoticeWatcher(google.host)
    assert watcher.poll() is None and watcher.blind_since is None


def test_true_leaves_thirty_seconds_from_the_first_reading(google: Google) -> None:
    google.preempt()
    watcher = GcpNoticeWatcher(google.host)
    first = watcher.poll()
    time.sleep(0.1)
    again = watcher.poll()
    assert first is not None and again is not None
    assert first.left_ms == 30_000 and first.source == "gcp"
    assert 29_000 < again.left_ms <= 29_900 and again.event == first.event


def test_the_word_arrives_at_once_and_only_once_by_wait_for_change(google: Google) -> None:
    watch = Watch(GcpNoticeWatcher(google.host, poll_s=30), google)
    try:
        time.sleep(0.3)
        assert google.asked == 2  # one look, one that hangs
        given_s = time.monotonic()
        google.preempt()
        time.sleep(0.5)
        assert len(watch.seen) == 1
        assert watch.seen[0][0] - given_s < 0.4
    finally:
        watch.close()


def test_a_server_that_does_not_hang_is_polled_and_not_hammered(google: Google) -> None:
    google.hangs = False
    watch = Watch(GcpNoticeWatcher(google.host, poll_s=0.1), google)
    try:
        time.sleep(0.5)
        assert google.asked < 20
        google.preempt()
        time.sleep(0.3)
        assert len(watch.seen) == 1
    finally:
        watch.close()


def test_errors_blind_it_until_the_next_good_answer(google: Google) -> None:
    watcher = GcpNoticeWatcher(google.host)
    google.faults = [503, 503, 503]
    assert watcher.poll() is None and watcher.blind_since is not None
    google.preempt()
    assert watcher.poll() is not None and watcher.blind_since is None


@pytest.mark.parametrize(("flavor", "value"), [("Acme", "TRUE"), ("Google", "maybe")])
def test_what_google_would_not_say_is_blindness(google: Google, flavor: str, value: str) -> None:
    google.flavor, google.value = flavor, value
    watcher = GcpNoticeWatcher(google.host)
    assert watcher.poll() is None and watcher.blind_since is not None


def test_finds_the_server_as_google_libraries_do(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, google.host)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    google.preempt()
    assert GcpNoticeWatcher().poll() is not None
