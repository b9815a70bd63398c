"""Notices that come as signals, and watchers by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from surefoot.errors import ConfigError
from surefoot.providers.aws.notice import AwsNoticeWatcher
from surefoot.providers.kubernetes.notice import GRACE_VARIABLE, KubernetesNoticeWatcher
from surefoot.providers.notice import Notice
from surefoot.providers.signals import SignalNoticeWatcher
from surefoot.providers.watchers import WATCHERS, make_watcher


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_signal_leaves_the_grace_and_repeats_do_not_prolong_it() -> None:
    watcher = SignalNoticeWatcher(grace_ms=5_000)
    assert watcher.poll() is None and watcher.blind_since is None
    os.kill(os.getpid(), signal.SIGTERM)
    first = watcher.poll()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    again = watcher.poll()
    assert first is not None and again is not None
    assert first.action == "SIGTERM" and 4_800 <= first.left_ms <= 5_000
    assert again.left_ms <= 4_900


def test_a_grace_that_is_over_means_now() -> None:
    watcher = SignalNoticeWatcher(grace_ms=10)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.05)
    notice = watcher.poll()
    assert notice is not None and notice.left_ms == 0


def test_watch_calls_back_once_for_any_of_its_signals() -> None:
    watcher = SignalNoticeWatcher(
        grace_ms=60_000, signals=(signal.SIGTERM, signal.SIGUSR1), source="slurm"
    )
    seen: list[Notice] = []
    stop = threading.Event()
    thread = threading.Thread(target=watcher.watch, args=(seen.append, stop))
    thread.start()
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.4)
    stop.set()
    thread.join()
    assert [(n.action, n.source) for n in seen] == [("SIGUSR1", "slurm")]


def test_a_pod_has_thirty_seconds_or_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in ((None, 30_000), ("12.5", 12_500)):
        monkeypatch.delenv(GRACE_VARIABLE, raising=False)
        if given:
            monkeypatch.setenv(GRACE_VARIABLE, given)
        watcher = KubernetesNoticeWatcher()
        os.kill(os.getpid(), signal.SIGTERM)
        notice = watcher.poll()
        assert notice is not None and notice.source == "kubernetes"
        assert expected - 500 <= notice.left_ms <= expected


def test_watchers_are_found_by_name() -> None:
    assert isinstance(make_watcher("aws"), AwsNoticeWatcher)
    assert all(make_watcher(name) is not None for name in WATCHERS)
    assert make_watcher("none") is None and make_watcher("") is None


def test_an_unknown_watcher_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="asw") as error:
        make_watcher("asw")
    assert "aws" in error.value.hint
