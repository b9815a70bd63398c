"""Figures of all runs in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable

from surefoot.core.fleet import InstanceState
from surefoot.core.units import usd
from surefoot.report.clean import clean
from surefoot.report.words import CAPACITY
from surefoot.web.watch import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("not begun", "under way", "left", "done", "stopped", "failed", "refused")

Sample = tuple[dict[str, str], float | None]

TOLD = (
    ("surefoot_run_state", "gauge", "1 for the state that the run is in."),
    ("surefoot_vms", "gauge", "VMs by pool, capacity and state."),
    ("surefoot_group_members", "gauge", "VMs that train now."),
    ("surefoot_steps", "gauge", "Step that training has reached."),
    ("surefoot_steps_safe", "gauge", "Newest step in a durable checkpoint."),
    ("surefoot_lost_steps_total", "counter", "Steps computed and thrown away."),
    ("surefoot_preemptions_total", "counter", "Preemptions by whether there was a notice."),
    ("surefoot_checkpoints_total", "counter", "Durable checkpoints."),
    ("surefoot_spent_usd", "gauge", "Spent so far, US dollars."),
    ("surefoot_on_demand_same_time_usd", "gauge", "On-demand fleet of the size asked for, USD."),
    ("surefoot_goodput_ratio", "gauge", "Share of wall time that became kept training."),
    ("surefoot_step_seconds", "gauge", "Time of one step; 0 while nothing trains."),
    ("surefoot_hazard_per_hour", "gauge", "Forecast pool events that hit the group, per hour."),
    ("surefoot_interval_seconds", "gauge", "Checkpoint interval in force."),
    ("surefoot_last_event_timestamp_seconds", "gauge", "When the newest event happened."),
    ("surefoot_unreadable_events", "gauge", "Events that this version cannot read."),
)


def text_of(watches: Iterable[Watch]) -> str:
    """Return the metrics page; figures that are unknown are left out."""
    rows: dict[str, list[Sample]] = {name: [] for name, _, _ in TOLD}
    for watch in watches:
        with watch.lock:
            for name, labels, value in _samples(watch):
                rows[name].append(({"run": clean(watch.card.run), **labels}, value))
    lines = []
    for name, kind, told in TOLD:
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
        lines += [
            f"{name}{_labels(labels)} {_number(value)}"
            for labels, value in rows[name]
            if value is not None and math.isfinite(value)
        ]
    return "\n".join(lines) + "\n"


def _samples(watch: Watch) -> Iterable[tuple[str, dict[str, str], float | None]]:
    story = watch.story
    progress, counts, account = story.state.progress, story.account.counts, story.account
    state, choice = watch.state, story.decision.interval if story.decision else None
    for each in STATES:
        yield "surefoot_run_state", {"state": each}, float(each == state)
    for vm_labels, count in _vms(watch):
        yield "surefoot_vms", vm_labels, count
    yield "surefoot_group_members", {}, progress.members
    yield "surefoot_steps", {}, progress.steps_done
    yield "surefoot_steps_safe", {}, progress.steps_safe
    yield "surefoot_lost_steps_total", {}, counts.lost_steps
    yield "surefoot_preemptions_total", {"notice": "yes"}, counts.notice
    yield "surefoot_preemptions_total", {"notice": "no"}, counts.silent
    yield "surefoot_checkpoints_total", {}, counts.checkpoints
    yield "surefoot_spent_usd", {}, usd(account.bill.total)
    reference = account.on_demand_same_time()
    yield (
        "surefoot_on_demand_same_time_usd",
        {},
        None if reference is None else usd(reference),
    )
    yield "surefoot_goodput_ratio", {}, account.goodput.share
    yield "surefoot_step_seconds", {}, progress.step_ms / 1000 if progress.members else 0.0
    yield "surefoot_hazard_per_hour", {}, choice.hazard_per_h if choice else None
    yield "surefoot_interval_seconds", {}, choice.interval_ms / 1000 if choice else None
    yield (
        "surefoot_last_event_timestamp_seconds",
        {},
        story.state.now_ms / 1000 if watch.seq else None,
    )
    yield "surefoot_unreadable_events", {}, watch.unreadable


def _vms(watch: Watch) -> list[tuple[dict[str, str], float]]:
    counts: dict[tuple[str, str, InstanceState], int] = {}
    for vm in watch.story.state.fleet:
        key = (clean(vm.pool), CAPACITY[vm.capacity], vm.state)
        counts[key] = counts.get(key, 0) + 1
    return [
        ({"pool": pool, "capacity": capacity, "state": state.value}, float(count))
        for (pool, capacity, state), count in sorted(
            counts.items(), key=lambda item: (*item[0][:2], item[0][2].value)
        )
    ]


def _labels(labels: dict[str, str]) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{key}="{quoted(text)}"' for key, text in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
