"""The AWS notice watcher against the local metadata service (and botocore beside it)."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from surefoot.providers.aws.notice import ENDPOINT_VARIABLE, AwsNoticeWatcher
from surefoot.providers.local.metadata import Identity, MetadataServer
from surefoot.providers.notice import Notice, now_ms

VM = Identity("i-0123", "m5.large", "us-east-1", "us-east-1a")


def loopback() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    server = MetadataServer(loopback())
    server.add(VM)
    yield server
    server.close()


@pytest.fixture
def watcher(server: MetadataServer) -> AwsNoticeWatcher:
    return AwsNoticeWatcher(server.endpoint(VM.instance_id), poll_s=0.05)


def test_no_notice_is_404_and_not_blindness(watcher: AwsNoticeWatcher) -> None:
    assert watcher.poll() is None
    assert watcher.blind_since is None


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate", "defenestrate"])
def test_every_action_is_a_notice_with_the_time_left(
    server: MetadataServer, watcher: AwsNoticeWatcher, action: str
) -> None:
    server.announce(VM.instance_id, gone_ms=now_ms() + 120_000, action=action)
    notice = watcher.poll()
    assert notice is not None
    assert (notice.action, notice.source) == (action, "aws")
    assert 117_000 <= notice.left_ms <= 120_000


def test_a_time_in_the_past_means_now(server: MetadataServer, watcher: AwsNoticeWatcher) -> None:
    server.announce(VM.instance_id, gone_ms=now_ms() - 30_000)
    notice = watcher.poll()
    assert notice is not None and notice.left_ms == 0


def test_an_expired_token_is_renewed_within_the_same_look() -> None:
    server = MetadataServer(loopback(), token_life_ms=200)
    server.add(VM)
    try:
        watcher = AwsNoticeWatcher(server.endpoint(VM.instance_id))
        assert watcher.poll() is None
        time.sleep(0.3)
        server.announce(VM.instance_id, gone_ms=now_ms() + 60_000)
        assert watcher.poll() is not None
        assert watcher.blind_since is None
    finally:
        server.close()


def test_server_errors_are_retried_and_the_notice_is_still_seen(
    server: MetadataServer, watcher: AwsNoticeWatcher
) -> None:
    assert watcher.poll() is None
    server.announce(VM.instance_id, gone_ms=now_ms() + 60_000)
    server.fail(VM.instance_id, 500, 503)
    assert watcher.poll() is not None


@pytest.mark.parametrize("status", [500, 503, 401, 403, 429])
def test_blindness_lasts_from_the_first_failed_look_until_a_good_one(
    server: MetadataServer, watcher: AwsNoticeWatcher, status: int
) -> None:
    before = now_ms()
    server.fail(VM.instance_id, *[status] * 6)
    assert watcher.poll() is None
    since = watcher.blind_since
    assert since is not None and before <= since <= now_ms()
    server.announce(VM.instance_id, gone_ms=now_ms() + 60_000)
    seen = [watcher.poll() for _ in range(7)]
    assert any(seen) and watcher.blind_since is None


def test_a_service_that_never_answers_leaves_it_blind_and_not_stuck() -> None:
    with loopback() as deaf:
        host, port = deaf.getsockname()
        watcher = AwsNoticeWatcher(f"http://{host}:{port}")
        started = time.monotonic()
        assert watcher.poll() is None
        assert time.monotonic() - started < 8
        assert watcher.blind_since is not None


class _Odd(http.server.BaseHTTPRequestHandler):
    """A service of the old kind (no tokens), or one that talks nonsense."""

    body = b""

    def do_PUT(self) -> None:
        self.send_error(404)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Odd)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("body", [b"<html>log in first</html>", b"[]", b""])
def test_nonsense_is_blindness_and_no_notice(odd: str, body: bytes) -> None:
    _Odd.body = body
    watcher = AwsNoticeWatcher(odd)
    assert watcher.poll() is None
    assert watcher.blind_since is not None


@pytest.mark.parametrize(
    "body", [b'{"action": "terminate"}', b'{"time": "soon"}', b'{"action": null, "time": ""}']
)
def test_a_notice_without_a_usable_time_means_now_also_without_tokens(
    odd: str, body: bytes
) -> None:
    _Odd.body = body
    notice = AwsNoticeWatcher(odd).poll()
    assert notice is not None and notice.left_ms == 0


def test_watch_calls_back_once_for_an_announcement_and_again_for_another(
    server: MetadataServer, watcher: AwsNoticeWatcher
) -> None:
    seen: list[Notice] = []
    stop = threading.Event()
    thread = threading.Thread(target=watcher.watch, args=(seen.append, stop))
    thread.start()
    try:
        server.announce(VM.instance_id, gone_ms=now_ms() + 60_000)
        time.sleep(0.4)
        assert len(seen) == 1
        server.announce(VM.instance_id, gone_ms=now_ms() + 10_000)
        time.sleep(0.3)
        assert [n.left_ms <= 10_000 for n in seen] == [False, True]
    finally:
        stop.set()
        thread.join()


def test_reads_the_endpoint_that_aws_sdks_read_and_ignores_proxies(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT_VARIABLE, server.endpoint(VM.instance_id))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.announce(VM.instance_id, gone_ms=now_ms() + 60_000)
    assert AwsNoticeWatcher().poll() is not None


def test_reads_the_rebalance_recommendation(
    server: MetadataServer, watcher: AwsNoticeWatcher
) -> None:
    assert not watcher.rebalance_recommended()
    server.recommend_rebalance(VM.instance_id)
    assert watcher.rebalance_recommended()


def test_imports_neither_numpy_nor_torch_nor_a_cloud_sdk() -> None:
    code = (
        "import sys, surefoot.providers.aws.notice;"
        "print([m for m in ('numpy','torch','boto3','yaml','pydantic') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_botocore_reads_the_local_service(server: MetadataServer) -> None:
    utils = pytest.importorskip("botocore.utils")
    region = utils.InstanceMetadataRegionFetcher(
        timeout=2, num_attempts=1, base_url=server.endpoint(VM.instance_id) + "/"
    )
    assert region.retrieve_region() == "us-east-1"


def test_botocore_is_refused_without_a_token(server: MetadataServer) -> None:
    utils = pytest.importorskip("botocore.utils")

    class Tokenless(utils.InstanceMetadataRegionFetcher):  # type: ignore[misc, name-defined]
        def _fetch_metadata_token(self) -> None:
            return None

    base = server.endpoint(VM.instance_id) + "/"
    assert Tokenless(timeout=2, num_attempts=1, base_url=base).retrieve_region() is None
