"""The notice watchers by name, as an agent is told which one to run (SUREFOOT_NOTICE)."""

from __future__ import annotations

from collections.abc import Callable

from surefoot.errors import ConfigError
from surefoot.providers.notice import NoticeWatcher


def _aws() -> NoticeWatcher:
    from surefoot.providers.aws.notice import AwsNoticeWatcher

    return AwsNoticeWatcher()


def _gcp() -> NoticeWatcher:
    from surefoot.providers.gcp.notice import GcpNoticeWatcher

    return GcpNoticeWatcher()


def _azure() -> NoticeWatcher:
    from surefoot.providers.azure.notice import AzureNoticeWatcher

    return AzureNoticeWatcher()


def _kubernetes() -> NoticeWatcher:
    from surefoot.providers.kubernetes.notice import KubernetesNoticeWatcher

    return KubernetesNoticeWatcher()


WATCHERS: dict[str, Callable[[], NoticeWatcher]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
    "kubernetes": _kubernetes,
}


def make_watcher(name: str) -> NoticeWatcher | None:
    """Return a new watcher, None for "none" or "". Raises ConfigError for an unknown name."""
    if name in ("", "none"):
        return None
    if name not in WATCHERS:
        known = ", ".join((*WATCHERS, "none"))
        raise ConfigError(f"there is no notice watcher {name!r}", hint=f"choose one of: {known}")
    return WATCHERS[name]()
