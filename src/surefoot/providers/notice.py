"""What a VM is told before it is taken, and how a watcher asks its metadata service for it.

Standard library only: a training VM needs no cloud SDK, and this must import in milliseconds.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import urlsplit

from surefoot.errors import RetryLaterError

MAX_BODY_BYTES = 1 << 20
"""No metadata answer is larger; whatever sends more is not a metadata service."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The VM will be taken in `left_ms` (0: now), whatever `action` says in the cloud's words.

    `source` names the watcher. `event` is the same text for the same announcement read twice.
    """

    left_ms: int
    action: str
    source: str
    event: str = ""


class NoticeWatcher(Protocol):
    """Looks for notices inside a VM; one implementation a cloud."""

    blind_since: int | None
    """Epoch ms since which no look has been answered properly; None while all is well."""

    def poll(self) -> Notice | None:
        """Look once. Never raises: a look that fails sets `blind_since` and returns None."""

    def watch(self, callback: Callable[[Notice], None], stop_event: threading.Event) -> None:
        """Look until told to stop; call back once for every announcement."""


class PollingWatcher:
    """A watcher that looks every `poll_s` seconds; a cloud fills in `_look`."""

    def __init__(self, *, poll_s: float) -> None:
        self.poll_s = poll_s
        self.blind_since: int | None = None

    def poll(self) -> Notice | None:
        """Look once. Never raises: a look that fails sets `blind_since` and returns None."""
        try:
            notice = self._look()
        except RetryLaterError:
            self.blind_since = self.blind_since or now_ms()
            return None
        self.blind_since = None
        return notice

    def watch(self, callback: Callable[[Notice], None], stop_event: threading.Event) -> None:
        """Look until told to stop; call back once for every announcement."""
        told: set[str] = set()
        while not stop_event.is_set():
            notice = self.poll()
            if notice is not None and notice.event not in told:
                told.add(notice.event)
                callback(notice)
            self._pause(stop_event)

    def _pause(self, stop_event: threading.Event) -> None:
        """Wait until it is worth looking again; a cloud that can tell replaces this."""
        stop_event.wait(self.poll_s)

    def _look(self) -> Notice | None:
        """Return the notice in force, None when there is none; RetryLaterError: cannot tell."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode(errors="replace").strip()


class MetadataClient:
    """Plain HTTP to a link-local service: proxies and redirects are never followed.

    `endpoint` is http://host[:port][/prefix].
    """

    def __init__(self, endpoint: str, *, timeout_s: float = 1.0, tries: int = 3) -> None:
        parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._tries = tries

    def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Return the answer, whatever its status below 500; others are retried a few times.

        Raises RetryLaterError when the service cannot be reached, or fails each time.
        """
        wait_s, trouble = 0.05, ""
        for attempt in range(self._tries):
            if attempt:
                time.sleep(wait_s * 2**attempt)
            try:
                answer = self._once(method, path, headers or {}, body, timeout_s)
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{type(error).__name__}: {error}"
                continue
            if answer.status < 500 and answer.status != 429:
                return answer
            trouble = f"HTTP {answer.status}"
        raise RetryLaterError(f"metadata service {self._host}:{self._port}{path}: {trouble}")

    def _once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float | None,
    ) -> Answer:
        # http.client, unlike urllib.request, looks at no proxy variables and follows nothing.
        link = http.client.HTTPConnection(
            self._host, self._port, timeout=timeout_s or self._timeout_s
        )
        try:
            link.request(method, self._prefix + path, body=body, headers=dict(headers))
            reply = link.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, names, reply.read(MAX_BODY_BYTES))
        finally:
            link.close()


def now_ms() -> int:
    """Return the VM's wall clock, which is what clouds state deadlines in, as epoch ms."""
    return time.time_ns() // 1_000_000


def left_ms(deadline: str) -> int:
    """Return the ms from now to an ISO 8601 instant; 0 when past, empty or not understood.

    An instant without an offset is UTC. What cannot be read counts as "now": the VM is to be
    taken, and hoping for time that may not be there would lose work.
    """
    try:
        at = datetime.fromisoformat(deadline.strip())
    except ValueError:
        return 0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0, round(at.timestamp() * 1000) - now_ms())
