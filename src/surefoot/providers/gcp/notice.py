"""How Google Cloud tells a spot VM that it will be taken: the metadata server's `preempted`."""

from __future__ import annotations

import os
import threading
import time

from surefoot.errors import RetryLaterError
from surefoot.providers.notice import Answer, MetadataClient, Notice, PollingWatcher

HOST_VARIABLE = "GCE_METADATA_HOST"
"""The variable that Google's own libraries read: host[:port], without a scheme."""

DEFAULT_HOST = "metadata.google.internal"
PATH = "/computeMetadata/v1/instance/preempted"
NOTICE_MS = 30_000
"""What a spot VM is given between the word and the end; no deadline comes with the word."""

HANG_S = 5
"""How long one wait-for-change request hangs: bounds how late a stop is heeded."""


class GcpNoticeWatcher(PollingWatcher):
    """Hangs on a wait-for-change request, so that the word arrives within a moment of being given.

    The 30 seconds are counted from when the word was first read here: less may be left.
    """

    def __init__(self, endpoint: str | None = None, poll_s: float = 1.0) -> None:
        super().__init__(poll_s=poll_s)
        self._client = MetadataClient(endpoint or os.environ.get(HOST_VARIABLE) or DEFAULT_HOST)
        self._etag = ""
        self._taken_at_s: float | None = None

    def _look(self) -> Notice | None:
        answer = self._ask(PATH, timeout_s=None)
        self._etag = answer.headers.get("etag", "")
        match answer.text.upper():
            case "TRUE":
                return self._notice()
            case "FALSE":
                return None
            case odd:
                raise RetryLaterError(f"{PATH}: neither TRUE nor FALSE: {odd[:80]!r}")

    def _pause(self, stop_event: threading.Event) -> None:
        """Wait until the value changes; fall back to plain polling where that does not work."""
        before, begun_s = self._etag, time.monotonic()
        query = f"?wait_for_change=true&timeout_sec={HANG_S}&last_etag={before}"
        try:
            if not before:
                raise RetryLaterError(f"{PATH}: nothing to wait for")
            answer = self._ask(PATH + query, timeout_s=HANG_S + 5)
        except RetryLaterError:
            stop_event.wait(self.poll_s)
            return
        hung = time.monotonic() - begun_s >= self.poll_s
        if answer.headers.get("etag", "") == before and not hung:
            stop_event.wait(self.poll_s)  # a server that does not hang must not be hammered

    def _ask(self, path: str, *, timeout_s: float | None) -> Answer:
        flavor = {"Metadata-Flavor": "Google"}
        answer = self._client.ask("GET", path, headers=flavor, timeout_s=timeout_s)
        if answer.status != 200 or answer.headers.get("metadata-flavor") != "Google":
            raise RetryLaterError(f"{PATH}: HTTP {answer.status}, or not Google's server")
        return answer

    def _notice(self) -> Notice:
        now_s = time.monotonic()
        if self._taken_at_s is None:
            self._taken_at_s = now_s
        left = NOTICE_MS - round((now_s - self._taken_at_s) * 1000)
        return Notice(max(0, left), "preempted", "gcp", event="preempted")
