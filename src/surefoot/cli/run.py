"""`surefoot run`: lead one job to its end on this machine, and tell what happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import OperationalError

from surefoot.cli import clouds, frame, live, outdir
from surefoot.cli.hidden import read_secrets
from surefoot.cli.terms import differences, refuse_while_led, settings_of
from surefoot.config import JobFile, load_job
from surefoot.controller.clock import Clock, RealClock
from surefoot.controller.hub import Hub
from surefoot.controller.loop import Controller
from surefoot.controller.passes import Passes, life_for
from surefoot.controller.settings import Settings
from surefoot.controller.store import Store
from surefoot.core.event import Event
from surefoot.core.forecast import get_forecaster
from surefoot.core.job import Job
from surefoot.core.policy import get_policy
from surefoot.core.units import usd
from surefoot.core.wire import Secrets
from surefoot.errors import ConfigError, SurefootError
from surefoot.report import Story, write_report
from surefoot.report.clean import clean
from surefoot.report.numbers import dollars, rows_of
from surefoot.train.hidden import NAMES
from surefoot.train.launch import check_command, engine_of

HUB_FILE = "hub.json"
WAIT_S = 0.25
ASKED_FUTURES = 12

RESTARTED: dict[str, Any] = {
    "batch_ms": 3_000,
    "form_limit_ms": 300_000,
    "leave_margin_ms": 6_000,
    "by_checkpoint": True,
}
"""The controller's ways where each change of the group starts the command anew: joiners come in
together, a start may take minutes, and a VM leaves early enough for a save before it."""


def run(
    job: Annotated[Path, typer.Argument(help="The job file (YAML).")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before spending money.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Train a job on spot VMs to its end.

    Ctrl-C stops it cleanly with a last checkpoint; the same command resumes."""
    clock = RealClock()
    job_file = load_job(job, now_ms=clock.now_ms())
    refuse_while_led(job_file)
    hidden = read_secrets(job_file, os.environ)
    ground = clouds.ground_of(job_file)
    settings = _settings(job_file, ground)
    if ground.spends and not yes:
        _ask(job_file, ground.open(), as_json=as_json, now_ms=clock.now_ms())
    found = outdir.claim(job_file, now_ms=clock.now_ms())
    terms = job_file.terms(ground.pools, start_ms=found.card.started_ms)
    card = _card(found.card, terms, job_file)
    changed = _differences(found, card)
    outdir.write_card(job_file.out, card)
    story = Story(terms).add_all(found.events)
    view = live.choose_view(story, as_json=as_json)
    for line in changed:
        view.tell(line)
    with contextlib.ExitStack() as stack:
        provider = ground.open()
        stack.callback(ground.close, card.run)
        hub, boot, passes = _hub(job_file, ground, clock, hidden)
        stack.callback(hub.close)
        store = Store(outdir.journal_of(job_file.out))
        stack.callback(store.close)
        controller = Controller(
            terms,
            provider,
            agents=hub,
            store=store,
            clock=clock,
            policy=get_policy(terms.policy),
            forecaster=get_forecaster(terms.forecaster),
            run=card.run,
            boot=boot,
            passes=passes,
            settings=settings,
            on_event=(_teller(story, view),),
        )
        stack.callback(controller.close)
        try:
            signal_number = _lead(controller, hub, story, view, clock)
        except KeyboardInterrupt:
            _say_left(job_file, len(story.state.fleet))
            raise typer.Exit(frame.INTERRUPTED) from None
        except OperationalError as error:
            raise _no_journal(store, error) from error
    raise typer.Exit(_conclude(job_file, story, signal_number, as_json=as_json))


def _no_journal(store: Store, error: OperationalError) -> SurefootError:
    """Return what to tell when the journal cannot be written any more: nothing is led blindly."""
    why = (str(error.orig).strip().splitlines() or [""])[0]
    return SurefootError(
        clean(f"the journal at {store.place} cannot be written: {why}"),
        hint="VMs train on until their lease runs out; the same command goes on with the run",
    )


def _card(card: outdir.Card, job: Job, job_file: JobFile) -> outdir.Card:
    """Return the run's card with the terms that are in force from now on."""
    return replace(
        card,
        num_nodes=job.num_nodes,
        policy=job.policy,
        pools=tuple(str(pool) for pool in job.pools),
        steps=job.work.total_steps,
        floor=job.throughput.floor,
        ceiling=job.throughput.ceiling,
        settings=settings_of(job_file),
    )


def _differences(found: outdir.Found, card: outdir.Card) -> list[str]:
    """Tell which settings of an unfinished run change now that it is taken up again."""
    if not found.events:
        return []
    lines = [clean(f"going on with run {card.run} of {found.folder}")]
    if found.card.settings:
        lines += [f"{line} from now on" for line in differences(found.card.settings, card.settings)]
    return lines


def _ask(job_file: JobFile, provider: Any, *, as_json: bool, now_ms: int) -> None:
    """Show the priced plan and ask; leave with 130 on a no.

    Raises LimitError for terms that cannot be met, ConfigError where nobody can be asked.
    """
    from surefoot.cli import plan  # the simulator is needed only here

    question = clouds.foretold(job_file, provider, now_ms=now_ms)
    priced = plan.price(question, count=ASKED_FUTURES, workers=os.cpu_count() or 1)
    console = frame.err() if as_json else frame.wide()
    plan.show(priced, console)
    plan.refuse_hopeless(priced)
    if not sys.stdin.isatty():
        raise ConfigError(
            "this run spends money, and there is no terminal to ask on",
            hint="look at the plan, then add --yes",
        )
    if not typer.confirm("Start it?", err=as_json):
        raise typer.Exit(frame.INTERRUPTED)


def _hub(
    job_file: JobFile, ground: clouds.Ground, clock: Clock, hidden: dict[str, str]
) -> tuple[Hub, dict[str, str], Passes]:
    """Open the hub where agents of an earlier start look for it; return it, boot and passes.

    `hidden`, the job's secrets, goes to agents over the hub and is not in the boot.
    """
    file = job_file.out / HUB_FILE
    known = _read_hub(file)
    secret = known.get("secret") or secrets.token_urlsafe(24)
    listener = _listen(ground.listen, int(known.get("port", 0)))
    place = ground.address(listener)
    port = int(listener.getsockname()[1])
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump({"secret": secret, "port": port}, out)
    boot = {
        "SUREFOOT_HUB": place,
        "SUREFOOT_COMMAND": job_file.command,
        "SUREFOOT_SETUP": job_file.setup,
        "SUREFOOT_ENGINE": job_file.engine,
        "SUREFOOT_WORKERS": str(job_file.workers),
        "SUREFOOT_SCRIPT": json.dumps(dict(job_file.script)),
        "SUREFOOT_WORKDIR": ground.workdir,
        "SUREFOOT_CHECKPOINT": job_file.checkpoint,
        "SUREFOOT_KEEP": str(job_file.keep),
        "SUREFOOT_DRAIN_TO": job_file.drain_to,
        "SUREFOOT_DRAIN_EVERY_S": str(job_file.drain_every_ms / 1000),
        "SUREFOOT_NOTICE": ground.notice,
        "SUREFOOT_ENVS": json.dumps(dict(job_file.envs)),
        "SUREFOOT_LEASE_S": str(ground.lease_s),
    }
    if hidden:
        boot[NAMES] = ",".join(hidden)
    if job_file.job.work.total_steps is not None:
        boot["SUREFOOT_STEPS"] = str(job_file.job.work.total_steps)
    greeting = (Secrets(hidden),) if hidden else ()
    passes = Passes(secret, life_for(ground.lease_s))
    return Hub(listener, secret, clock, greeting=greeting, passes=passes), boot, passes


def _read_hub(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _listen(listen: Any, port: int) -> socket.socket:
    """Listen on the port of before, or on any other if it is taken."""
    try:
        found: socket.socket = listen(port)
    except OSError:
        found = listen(0)
    return found


def _settings(job_file: JobFile, ground: clouds.Ground) -> Settings:
    """Return the controller's times; a command that is started anew needs more of it.

    Raises ConfigError for options of torchrun that Surefoot sets.
    """
    wrong = check_command(job_file.command)
    if wrong:
        raise ConfigError(
            f"{job_file.path}: run: {wrong} is for Surefoot to say: it changes with the fleet",
            hint="leave only --nproc-per-node and the script's own options",
        )
    if engine_of(job_file.engine, job_file.command, str(job_file.workdir)) == "live":
        return ground.settings
    return replace(ground.settings, **RESTARTED)


def _teller(story: Story, view: live.View) -> Any:
    def told(event: Event) -> None:
        story.add(event)
        view.happened(event)

    return told


def _lead(
    controller: Controller, hub: Hub, story: Story, view: live.View, clock: Clock
) -> int | None:
    """Take turns until the run is over; return the signal that stopped it, if one did."""
    with _signals(controller, story, view) as got, view:
        while True:
            wake_ms = controller.turn()
            now_ms = clock.now_ms()
            story.trouble = controller.view().trouble
            view.pulse(now_ms)
            if wake_ms is None:
                return got[0] if got else None
            hub.wait(min(max(0.0, (wake_ms - now_ms) / 1000), WAIT_S))


def _say_left(job_file: JobFile, held: int) -> None:
    """Say what leaving at once means: no last checkpoint, and what becomes of the VMs."""
    if job_file.local is None:
        fate = (
            f"{held} VMs still run and cost money: each ends itself {clouds.LEASE_S // 60} minutes"
            " after it last heard of a controller"
        )
    else:
        fate = f"{held} local VMs are ended with this command"
    frame.err().print(
        Text(
            f"left at once, without a last checkpoint; {fate}\n"
            f"go on (and clean up) with: surefoot run {_near(job_file.path)}"
        )
    )


@contextlib.contextmanager
def _signals(controller: Controller, story: Story, view: live.View) -> Iterator[list[int]]:
    """First SIGINT, SIGTERM or SIGHUP: stop cleanly. Second: leave at once."""
    got: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        got.append(number)
        if len(got) > 1:
            raise KeyboardInterrupt
        held, rate = len(story.state.fleet), controller.view().burn_micro_usd_h
        view.tell(
            f"stopping: {held} VMs run at {dollars(usd(rate))} an hour; a last checkpoint, then"
            " all of them end (Ctrl-C again leaves at once)"
        )
        controller.request_stop(message=f"stopped by {signal.Signals(number).name}")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield got
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _conclude(job_file: JobFile, story: Story, signal_number: int | None, *, as_json: bool) -> int:
    """Write the report, print the summary, return the exit code."""
    figures = write_report(job_file.out, story)
    outcome = story.state.outcome or "failed"
    codes = {"done": frame.DONE, "refused": frame.REFUSED, "stopped": frame.INTERRUPTED}
    code = codes.get(outcome, frame.FAILED)
    if outcome == "stopped" and signal_number is not None:
        code = 128 + signal_number
    why = clean(story.ending.message, limit=4_000, lines=True) if story.ending else ""
    body = {"outcome": outcome, "exit_code": code, "message": why, "out": str(job_file.out)}
    if as_json:
        frame.print_json({**body, "figures": figures})
        return code
    _print_summary(job_file, story, why, dict(figures))
    return code


def _print_summary(job_file: JobFile, story: Story, why: str, figures: dict[str, Any]) -> None:
    console = frame.out()
    title = f"{story.job.name}: {story.state.outcome or 'broken off'}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="cyan")
    table.add_column()
    for label, value in rows_of(figures):
        table.add_row(Text(label), Text(value))
    console.print(table)
    lost = {k.replace("_", " "): v for k, v in (figures.get("badput") or {}).items() if v}
    worst = sorted(lost.items(), key=lambda item: -item[1])
    console.print(
        Text("time not kept: " + (", ".join(f"{k} {100 * v:.1f} %" for k, v in worst) or "none"))
    )
    if why:
        console.print(Text(why, "yellow" if story.state.outcome == "stopped" else "bold red"))
    shown = _near(job_file.out)
    console.print(Text(f"report: {shown / outdir.REPORT}   figures: {shown / outdir.SUMMARY}"))
    if story.state.outcome == "stopped":
        console.print(Text(f"go on with: surefoot run {_near(job_file.path)}", "bold"))


def _near(path: Path) -> Path:
    """Return the path relative to here if it lies below."""
    with contextlib.suppress(ValueError):
        return path.absolute().relative_to(Path.cwd())
    return path
