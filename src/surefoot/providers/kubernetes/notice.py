"""How Kubernetes tells a pod that it will end: SIGTERM, then the grace period of the pod."""

from __future__ import annotations

import os

from surefoot.providers.signals import SignalNoticeWatcher

GRACE_VARIABLE = "SUREFOOT_POD_GRACE_S"
"""Set it to the pod's terminationGracePeriodSeconds: a pod cannot read that by itself."""

DEFAULT_GRACE_S = 30.0
"""What Kubernetes gives a pod that does not ask for more."""


class KubernetesNoticeWatcher(SignalNoticeWatcher):
    """SIGTERM to the agent, which must be the container's process 1 or be sent it by that."""

    def __init__(self, grace_s: float | None = None) -> None:
        given = os.environ.get(GRACE_VARIABLE, "")
        chosen = grace_s if grace_s is not None else float(given or DEFAULT_GRACE_S)
        super().__init__(grace_ms=round(chosen * 1000), source="kubernetes")
