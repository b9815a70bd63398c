"""Who may ask: a bearer token in a private file, and one-time links that open the page."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from surefoot.controller.clock import Clock

COOKIE = "surefoot_session"
LINK_MS = 10 * 60_000
"""A one-time link that nobody has followed for this long is void."""

SESSION_MS = 12 * 3_600_000
MOST_SESSIONS = 100


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


@dataclass(slots=True)
class Doors:
    """Checks tokens, by digest and in constant time; for any number of threads.

    Neither the token nor the sessions can be read back from here: only their digests are kept.
    """

    clock: Clock
    token_digest: bytes
    _links: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    _sessions: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, token: str, clock: Clock) -> Doors:
        """Return the doors that `token` opens. Raises ValueError for one that is too short."""
        if len(token) < 16:
            raise ValueError("a token has at least 16 characters")
        return cls(clock, _digest(token))

    def admits(self, bearer: str) -> bool:
        """Return whether this is the token."""
        return hmac.compare_digest(_digest(bearer), self.token_digest)

    def link(self) -> str:
        """Return a new word that opens one session, once, within `LINK_MS`."""
        word = secrets.token_urlsafe(24)
        self._keep(self._links, word, LINK_MS)
        return word

    def redeem(self, word: str) -> str | None:
        """Return a session for a one-time word; None when it is wrong, used or too old."""
        with self._lock:
            until_ms = self._links.pop(_digest(word), None)
        if until_ms is None or until_ms <= self.clock.monotonic_ms():
            return None
        return self.session()

    def session(self) -> str:
        """Return a new session's word, for a cookie."""
        word = secrets.token_urlsafe(32)
        self._keep(self._sessions, word, SESSION_MS)
        return word

    def knows(self, word: str) -> bool:
        """Return whether a session is open."""
        with self._lock:
            until_ms = self._sessions.get(_digest(word))
        return until_ms is not None and until_ms > self.clock.monotonic_ms()

    def leave(self, word: str) -> None:
        """Close a session."""
        with self._lock:
            self._sessions.pop(_digest(word), None)

    def _keep(self, table: OrderedDict[bytes, int], word: str, span_ms: int) -> None:
        with self._lock:
            table[_digest(word)] = self.clock.monotonic_ms() + span_ms
            while len(table) > MOST_SESSIONS:
                table.popitem(last=False)
