"""`surefoot prune`: find VMs that no living controller leads any more, and end them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from surefoot.cli import clouds, frame, outdir
from surefoot.config import JobFile, load_job, say_ms
from surefoot.controller.clock import RealClock
from surefoot.controller.leader import leader_of
from surefoot.core.units import usd
from surefoot.errors import ConfigError, SurefootError
from surefoot.providers.base import Sweeper, Vm, VmState
from surefoot.report.clean import clean
from surefoot.report.numbers import dollars

OPENERS: Mapping[str, Callable[[JobFile], Any]] = {"aws": clouds.open_aws, "ssh": clouds.open_ssh}


@dataclass(frozen=True, slots=True)
class Left:
    """A VM that nobody leads. `known`: its run has a folder here, so that we can tell."""

    vm: Vm
    price_micro_usd_h: int | None
    known: bool
    cloud: _Local | _Cloud


@dataclass(frozen=True, slots=True)
class _Local:
    """The local VMs of one run's folder; they cost nothing."""

    folder: Path

    def left(self) -> Iterator[tuple[Vm, int | None]]:
        """Yield (VM, micro-dollars per hour)."""
        from surefoot.providers.local.sweep import left_in

        for vm in left_in(self.folder / "vms"):
            yield vm, 0

    def end(self, _ids: Sequence[str]) -> Mapping[str, SurefootError]:
        """End them all: a folder belongs to one run."""
        from surefoot.providers.local.sweep import sweep

        sweep(self.folder / "vms")
        return {}


@dataclass(frozen=True, slots=True)
class _Cloud:
    """The VMs with our tag where one job file's provider looks."""

    provider: Sweeper

    def left(self) -> Iterator[tuple[Vm, int | None]]:
        """Yield (VM, micro-dollars per hour or None where no price is known)."""
        self.provider.offerings()  # type: ignore[attr-defined]  # prices are asked for here
        for vm in self.provider.list_all():
            if vm.state in (VmState.PENDING, VmState.RUNNING):
                yield vm, self.provider.price_of(vm)

    def end(self, ids: Sequence[str]) -> Mapping[str, SurefootError]:
        """End these; return what stood in the way, by VM."""
        return self.provider.terminate_all(ids)


def prune(
    jobs: Annotated[
        list[Path] | None, typer.Argument(help="Job files; else those of the runs in this folder.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="End them without asking.")] = False,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Also VMs of runs that have no folder here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; asks nothing.")] = False,
) -> None:
    """List VMs with our tag that no living controller leads, and end them when told to."""
    found, troubles = _find(jobs or [])
    doomed = [left for left in found if left.known or unknown]
    if not as_json:
        _show(found, troubles)
    ended: list[str] = []
    if doomed and (yes or (not as_json and _agreed(len(doomed)))):
        ended = _end(doomed, troubles)
    if as_json:
        now_ms = RealClock().now_ms()
        frame.print_json(
            {"vms": [_body(left, now_ms) for left in found], "ended": ended, "trouble": troubles}
        )
    elif ended:
        frame.out().print(Text(f"ended {len(ended)} of {len(doomed)} VMs"))
    if len(ended) < len(doomed) and yes:
        for line in troubles:
            frame.err().print(Text(clean(line), "yellow"))
        raise typer.Exit(frame.FAILED)


def _find(jobs: Sequence[Path]) -> tuple[list[Left], list[str]]:
    """Return the VMs that nobody leads, and what could not be looked at."""
    named = [load_job(path, now_ms=RealClock().now_ms()) for path in jobs]
    cards = _cards([job.out for job in named])
    live = {card.run for folder, card in cards.items() if _is_led(folder, card)}
    known = {card.run for card in cards.values()}
    files, troubles = _job_files(cards, named)
    found: dict[str, Left] = {}
    for place in _places(cards, live, files, troubles):
        try:
            for vm, price in place.left():
                if vm.run not in live:
                    found[vm.instance_id] = Left(vm, price, vm.run in known, place)
        except SurefootError as error:
            troubles.append(str(error))
    return sorted(found.values(), key=lambda left: left.vm.launched_ms), troubles


def _cards(outs: Sequence[Path]) -> dict[Path, outdir.Card]:
    folders = {path.parent for path in Path().glob(f"*/{outdir.CARD}")} | set(outs)
    cards = {folder.absolute(): outdir.read_card(folder) for folder in sorted(folders)}
    return {folder: card for folder, card in cards.items() if card is not None}


def _is_led(folder: Path, card: outdir.Card) -> bool:
    leader = leader_of(outdir.journal_of(folder), card.run)
    return leader is not None and leader.is_alive


def _job_files(
    cards: Mapping[Path, outdir.Card], named: Sequence[JobFile]
) -> tuple[list[JobFile], list[str]]:
    """Return the job files to look with; without any named, those of the runs found here."""
    if named:
        return list(named), []
    files, troubles = [], []
    for path in sorted({card.job_file for card in cards.values() if card.job_file}):
        try:
            files.append(load_job(Path(path), now_ms=RealClock().now_ms()))
        except SurefootError as error:
            troubles.append(f"not looked at: {error}")
    return files, troubles


def _places(
    cards: Mapping[Path, outdir.Card],
    live: set[str],
    files: Sequence[JobFile],
    troubles: list[str],
) -> Iterator[_Local | _Cloud]:
    yield from (_Local(folder) for folder, card in cards.items() if card.run not in live)
    for file in files:
        for cloud in sorted(set(file.clouds) & set(OPENERS)):
            try:
                yield _Cloud(OPENERS[cloud](file))
            except SurefootError as error:
                troubles.append(f"{file.path}: {error}")


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        return False
    return typer.confirm(f"End {count} VMs?")


def _end(doomed: Sequence[Left], troubles: list[str]) -> list[str]:
    """End VMs place by place; return those that were ended."""
    ended: list[str] = []
    for place in dict.fromkeys(left.cloud for left in doomed):
        ids = [left.vm.instance_id for left in doomed if left.cloud is place]
        try:
            failed = place.end(ids)
        except ConfigError as error:  # a controller took the folder over meanwhile
            failed = dict.fromkeys(ids, error)
        troubles += [f"{each}: {error} {error.hint}".strip() for each, error in failed.items()]
        ended += [each for each in ids if each not in failed]
    return ended


def _body(left: Left, now_ms: int) -> dict[str, Any]:
    vm, price = left.vm, left.price_micro_usd_h
    return {
        "vm": vm.instance_id,
        "run": vm.run,
        "pool": str(vm.pool),
        "capacity": vm.capacity.value,
        "age_s": max(0, now_ms - vm.launched_ms) // 1000,
        "usd_h": None if price is None else usd(price),
        "run_known_here": left.known,
    }


def _show(found: Sequence[Left], troubles: Sequence[str]) -> None:
    console, now_ms = frame.wide(), RealClock().now_ms()
    for line in troubles:
        console.print(Text(clean(line), "yellow"))
    if not found:
        console.print(Text("no VM is left without a controller"))
        return
    table = Table("VM", "run", "pool", "age", "an hour", "")
    for left in found:
        vm, price = left.vm, left.price_micro_usd_h
        cost = "unknown" if price is None else dollars(usd(price))
        age = say_ms(max(0, now_ms - vm.launched_ms) // 1000 * 1000)
        where = "" if left.known else "no folder here: --unknown"
        table.add_row(vm.instance_id, clean(vm.run), str(vm.pool), age, cost, where)
    console.print(table)
