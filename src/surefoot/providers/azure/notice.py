"""How Azure tells a spot VM that it will be evicted: Scheduled Events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from surefoot.errors import RetryLaterError
from surefoot.providers.notice import MetadataClient, Notice, PollingWatcher, now_ms

DEFAULT_ENDPOINT = "http://169.254.169.254"
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
FATAL = frozenset({"Preempt", "Terminate"})
"""The kinds that take the VM away. Freeze, Reboot and Redeploy leave it, or bring it back."""


class AzureNoticeWatcher(PollingWatcher):
    """Polls the event feed for evictions of this very VM; an empty NotBefore means now.

    The feed is shared by VMs that belong together, so events are matched by the VM's name.
    """

    def __init__(self, endpoint: str | None = None, poll_s: float = 1.0) -> None:
        super().__init__(poll_s=poll_s)
        # The first question of a VM's life switches the feed on and may take long to answer.
        self._client = MetadataClient(endpoint or DEFAULT_ENDPOINT, timeout_s=5.0)
        self._name = ""

    def acknowledge(self, notice: Notice) -> None:
        """Tell Azure to go ahead, ahead of the deadline: only when nothing is left to save.

        Raises RetryLaterError when the service does not take it.
        """
        body = json.dumps({"StartRequests": [{"EventId": notice.event}]}).encode()
        answer = self._client.ask("POST", EVENTS_PATH, headers=HEADERS, body=body)
        if answer.status != 200:
            raise RetryLaterError(f"scheduled events: HTTP {answer.status} to an acknowledgement")

    def _look(self) -> Notice | None:
        notices = [
            Notice(_left_ms(event), _kind_of(event).lower(), "azure", str(event.get("EventId")))
            for event in self._feed()
            if _kind_of(event) in FATAL and self._is_mine(event)
        ]
        return min(notices, key=lambda notice: notice.left_ms, default=None)

    def _feed(self) -> Iterator[dict[str, Any]]:
        answer = self._client.ask("GET", EVENTS_PATH, headers=HEADERS)
        try:
            events = json.loads(answer.text)["Events"] if answer.status == 200 else None
        except (ValueError, TypeError, KeyError):
            events = None
        if not isinstance(events, list):
            raise RetryLaterError(f"scheduled events: HTTP {answer.status}, or not a feed")
        yield from (event for event in events if isinstance(event, dict))

    def _is_mine(self, event: dict[str, Any]) -> bool:
        if not self._name:
            answer = self._client.ask("GET", NAME_PATH, headers=HEADERS)
            if answer.status != 200 or not answer.text:
                raise RetryLaterError(f"the VM's own name: HTTP {answer.status}")
            self._name = answer.text
        names = event.get("Resources")
        return isinstance(names, list) and self._name in names


def _kind_of(event: dict[str, Any]) -> str:
    return str(event.get("EventType"))


def _left_ms(event: dict[str, Any]) -> int:
    """Return the ms until NotBefore (an HTTP date); 0 when past, empty or not understood."""
    try:
        at = parsedate_to_datetime(str(event.get("NotBefore") or ""))
    except ValueError:
        return 0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0, round(at.timestamp() * 1000) - now_ms())
