"""How AWS tells a spot instance that it will be taken: IMDSv2, spot/instance-action."""

from __future__ import annotations

import json
import os

from surefoot.errors import RetryLaterError
from surefoot.providers.notice import (
    Answer,
    MetadataClient,
    Notice,
    PollingWatcher,
    left_ms,
)

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""The variable that the AWS SDKs read too."""

DEFAULT_ENDPOINT = "http://169.254.169.254"
TOKEN_PATH = "/latest/api/token"
ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_TTL_S = 21_600


class AwsNoticeWatcher(PollingWatcher):
    """Polls for the interruption notice; terminate, stop, hibernate, any word: we leave.

    401 renews the session token, 404 is no notice, 5xx and timeouts are retried.
    """

    def __init__(self, endpoint: str | None = None, poll_s: float = 1.0) -> None:
        super().__init__(poll_s=poll_s)
        chosen = endpoint or os.environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT
        self._client = MetadataClient(chosen)
        self._token: str | None = None

    def rebalance_recommended(self) -> bool:
        """Return whether AWS says that the instance is at elevated risk; no deadline goes with it.

        Raises RetryLaterError when the service does not answer.
        """
        return self._get(REBALANCE_PATH).status == 200

    def _look(self) -> Notice | None:
        answer = self._get(ACTION_PATH)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise RetryLaterError(f"{ACTION_PATH}: HTTP {answer.status}")
        return _notice_of(answer.text)

    def _get(self, path: str) -> Answer:
        answer = self._client.ask("GET", path, headers=self._headers())
        if answer.status == 401:
            self._token = None
            answer = self._client.ask("GET", path, headers=self._headers())
        return answer

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            self._token = self._new_token()
        return {"X-aws-ec2-metadata-token": self._token} if self._token else {}

    def _new_token(self) -> str:
        """Return a session token; "" where the service is too old to have any (IMDSv1)."""
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        answer = self._client.ask("PUT", TOKEN_PATH, headers=ttl)
        if answer.status == 200:
            return answer.text
        if answer.status in (404, 405):
            return ""
        raise RetryLaterError(f"{TOKEN_PATH}: HTTP {answer.status}")


def _notice_of(text: str) -> Notice:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise RetryLaterError(f"{ACTION_PATH}: not JSON: {text[:80]!r}") from error
    if not isinstance(body, dict):
        raise RetryLaterError(f"{ACTION_PATH}: not an object: {text[:80]!r}")
    deadline = str(body.get("time") or "")
    action = str(body.get("action") or "unknown")
    return Notice(left_ms(deadline), action, "aws", event=f"{action}@{deadline}")
