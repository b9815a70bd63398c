"""The settings that a run is led by, as text: kept with the run, compared with the job file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from surefoot.cli import outdir, stop
from surefoot.config import JobFile, say_ms
from surefoot.core.job import FloorKind
from surefoot.core.units import usd
from surefoot.errors import ConfigError
from surefoot.report.clean import clean


def settings_of(job_file: JobFile) -> dict[str, str]:
    """Return the job file's settings under their keys, as written for people.

    Commands and environment values, which may hold secrets, stand as a short digest.
    """
    job = job_file.job
    limits, speed, rule = job.limits, job.throughput, job.interval
    kind = speed.kind.value
    if speed.kind is FloorKind.AVERAGE:
        kind += f" over {say_ms(speed.window_ms)}"
    fixed, bounds = rule.fixed_ms, f"auto, {say_ms(rule.min_ms)} to {say_ms(rule.max_ms)}"
    deadline = job_file.deadline
    after = say_ms(deadline.after_ms) if deadline.after_ms is not None else "none"
    found = {
        "num_nodes": str(job.num_nodes),
        "resources": ", ".join(str(place) for place in job_file.places),
        "resources.capacity": ", ".join(sorted(c.value for c in job.capacities)),
        "resources.max_vms": _or_none(limits.max_vms),
        "resources.on_demand_base": str(job.on_demand_base),
        "resources.one_region": str(job.one_region).lower(),
        "throughput.floor": f"{speed.floor:g}",
        "throughput.ceiling": f"{speed.ceiling:g}",
        "throughput.kind": kind,
        "deadline": after if deadline.at_ms is None else f"instant {deadline.at_ms}",
        "budget.total": _dollars(limits.budget_micro_usd),
        "budget.max_price": _dollars(limits.max_price_micro_usd_h),
        "policy": job.policy,
        "forecaster": job.forecaster,
        "steps": _or_none(job.work.total_steps),
        "step_time": say_ms(job.work.step_ms),
        "checkpoint.path": job_file.checkpoint,
        "checkpoint.interval": bounds if fixed is None else say_ms(fixed),
        "checkpoint.keep": str(job_file.keep),
        "checkpoint.drain.to": job_file.drain_to,
        "checkpoint.drain.every": f"{job_file.drain_every_ms / 1000:g}s",
        "workdir": str(job_file.workdir),
        "run": _digest(job_file.command),
        "setup": _digest(job_file.setup),
    }
    if job_file.local is not None:
        local = job_file.local
        found |= {"local.trace": str(local.trace), "local.vms": local.vms}
        found["local.pace"] = _or_none(local.pace)
    found |= {f"secrets.{name}": f"{k} {at}" for name, (k, at) in job_file.secrets.items()}
    return found | {f"envs.{name}": _digest(value) for name, value in job_file.envs.items()}


def _or_none(value: object) -> str:
    return "none" if value is None else str(value)


def _dollars(value: int | None) -> str:
    return "none" if value is None else f"${usd(value):g}"


def _digest(text: str) -> str:
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}" if text else "none"


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line for each setting that is not the same, in the order of the newer ones."""
    keys = [*after, *(key for key in before if key not in after)]
    changed = [key for key in keys if before.get(key, "none") != after.get(key, "none")]
    return [_line(key, before.get(key, "none"), after.get(key, "none")) for key in changed]


def _line(key: str, before: str, after: str) -> str:
    if before.startswith("#") or after.startswith("#"):
        verb = "is set" if before == "none" else "is left out" if after == "none" else "has changed"
        return clean(f"{key} {verb}")
    return clean(f"{key} was {before} and is {after}")


def refuse_while_led(job_file: JobFile) -> None:
    """Raise ConfigError when a controller leads the job's run already.

    The message lists which settings of the file differ from those that it runs with: none of
    them takes effect before a restart.
    """
    folder: Path = job_file.out
    if not (folder / outdir.CARD).exists():
        return
    card = outdir.read_card(folder)
    leader = stop.leader_of(outdir.journal_of(folder), card.run) if card is not None else None
    if card is None or leader is None or not leader.is_alive:
        return
    changed = differences(card.settings, settings_of(job_file)) if card.settings else []
    told = "\n".join(f"  {line}: needs a restart" for line in changed)
    same = "its settings are those of the job file"
    raise ConfigError(
        f"{folder}: run {card.run} is led by process {leader.pid} on {leader.host};"
        + (f" it goes on with its own settings:\n{told}" if changed else f" {same}"),
        hint=f"surefoot stop {folder}, then surefoot run {job_file.path}: it goes on from its last"
        " step, with the new settings",
    )
