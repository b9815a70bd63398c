"""What can be asked of the API, and of which run; each route is one answer of answers.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from surefoot.controller.leader import ask_to_stop, here
from surefoot.report.clean import clean
from surefoot.web import answers, logs, metrics, schema
from surefoot.web.watch import Runs, Watch

LOOK_S = 0.5
KEEP_ALIVE_S = 15.0
BIGGEST = 2**53 - 1

REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.Refusal} for code in (401, 404, 422)
}
SENT_EVENT = {
    "type": "object",
    "description": "One server-sent event; `data` is an event's row as JSON.",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "required": ["data"],
}
router = APIRouter(prefix="/api/v1", responses=REFUSALS, tags=["runs"])

RunName = Annotated[str, Path(max_length=200, description="A run's name, as in the list.")]
Number = Annotated[int, Query(ge=0, le=BIGGEST)]


@contextmanager
def _run(request: Request, name: str) -> Iterator[Watch]:
    """Hold a run, read up to now. Answers 404 for one that is not there."""
    runs: Runs = request.app.state.runs
    try:
        watch = runs.get(name)
    except KeyError:
        raise HTTPException(404, f"there is no run {clean(name)!r} here") from None
    with watch.lock:
        yield watch


@router.get("/runs")
def list_runs(request: Request) -> schema.RunList:
    """List all runs of the folder, ended ones and those without a controller too."""
    runs: Runs = request.app.state.runs
    rows = []
    for watch in runs.all():
        with watch.lock:
            rows.append(answers.run_row(watch))
    return schema.RunList(runs=rows)


@router.get("/runs/{run}")
def status(request: Request, run: RunName) -> schema.Status:
    """Say how a run stands."""
    with _run(request, run) as watch:
        return answers.status(watch)


State = Literal["requested", "starting", "ready", "noticed", "draining", "gone"]


@router.get("/runs/{run}/vms")
def vms(
    request: Request,
    run: RunName,
    state: State | None = None,
    offset: Number = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> schema.VmPage:
    """List a run's VMs with what each has cost, gone ones too, the newest first."""
    with _run(request, run) as watch:
        return answers.vm_page(watch, state=state, offset=offset, limit=limit)


@router.get("/runs/{run}/events")
def events(
    request: Request,
    run: RunName,
    after: Number = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    body: bool = False,
    tail: Annotated[int | None, Query(ge=1, le=1_000)] = None,
    loud: bool = False,
) -> schema.EventPage:
    """List events numbered above `after`, or the last `tail` ones.

    With `body` as they are stored (at most 200 at once); with `tail` and `loud` only those that
    are worth a line.
    """
    with _run(request, run) as watch:
        if tail is not None:
            return answers.newest_events(watch, tail, loud=loud)
        return answers.events_page(
            watch, after=after, limit=min(limit, 200) if body else limit, body=body
        )


@router.get(
    "/runs/{run}/events/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": SENT_EVENT}}}},
)
async def stream(
    request: Request,
    run: RunName,
    after: Number = 0,
    last_event_id: Annotated[str | None, Header(description="Goes before `after`.")] = None,
) -> StreamingResponse:
    """Send events as they come (server-sent events: id, data), then `event: end`."""
    begin = int(last_event_id) if last_event_id and _is_number(last_event_id) else after

    def look(seq: int) -> tuple[schema.EventPage, bool]:
        with _run(request, run) as watch:
            page = answers.events_page(watch, after=seq, limit=200, body=False)
            over = watch.story.state.outcome is not None and page.next_after >= watch.seq
            return page, over

    first = await run_in_threadpool(look, begin)

    async def told() -> AsyncIterator[str]:
        (page, over), quiet_s = first, 0.0
        while True:
            for row in page.events:
                yield f"id: {row.seq}\ndata: {json.dumps(row.model_dump(exclude={'body'}))}\n\n"
            if over:
                yield "event: end\ndata: {}\n\n"
                return
            quiet_s = 0.0 if page.events else quiet_s + LOOK_S
            if quiet_s >= KEEP_ALIVE_S:
                quiet_s = 0.0
                yield ": nothing new\n\n"
            await anyio.sleep(0 if len(page.events) == 200 else LOOK_S)
            page, over = await run_in_threadpool(look, page.next_after)

    return StreamingResponse(told(), media_type="text/event-stream")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


@router.get("/runs/{run}/logs")
def log_list(request: Request, run: RunName) -> schema.LogList:
    """List the log files of a run's VMs that lie on this machine."""
    with _run(request, run) as watch:
        return logs.log_list(watch)


@router.get("/runs/{run}/logs/{vm}")
def log_page(
    request: Request,
    run: RunName,
    vm: Annotated[str, Path(max_length=200, description="Instance id or short name.")],
    kind: Literal["worker", "agent"] = "worker",
    offset: Number = 0,
    limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000,
    tail: Annotated[int | None, Query(ge=1, le=5_000)] = None,
) -> schema.LogPage:
    """Read a VM's log from a byte offset on, or its last `tail` lines; follow by `next_offset`."""
    with _run(request, run) as watch:
        path = logs.log_file(watch, vm, kind)
    if path is None:
        raise HTTPException(404, f"there is no {kind} log of VM {clean(vm)!r} here")
    return logs.page(path, offset=offset, limit=limit, tail=tail)


@router.get("/runs/{run}/bill")
def bill(request: Request, run: RunName) -> schema.BillBody:
    """Say what was spent, by pool, beside on-demand."""
    with _run(request, run) as watch:
        return answers.bill(watch)


@router.get("/runs/{run}/forecast")
def forecast(request: Request, run: RunName) -> schema.ForecastBody:
    """Say what is forecast, and what happened."""
    with _run(request, run) as watch:
        return answers.forecast(watch)


@router.get("/runs/{run}/plan")
def plan(request: Request, run: RunName) -> schema.PlanBody:
    """Say what was decided last, and why."""
    with _run(request, run) as watch:
        return answers.plan(watch)


@router.get("/runs/{run}/checkpoints")
def checkpoints(
    request: Request,
    run: RunName,
    offset: Number = 0,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> schema.CheckpointPage:
    """List saves, the newest first."""
    with _run(request, run) as watch:
        return answers.checkpoints(watch, offset=offset, limit=limit)


@router.get("/runs/{run}/series")
def series(
    request: Request, run: RunName, points: Annotated[int, Query(ge=10, le=3_000)] = 300
) -> schema.Series:
    """Give the courses over time that the charts show."""
    with _run(request, run) as watch:
        return answers.series(watch, points)


@router.post("/runs/{run}/stop", responses={409: {"model": schema.Refusal}})
def stop(request: Request, run: RunName) -> schema.StopBody:
    """Ask the run's controller to save, end all VMs and stop; returns before it has.

    Answers 409 for a run that is led from another machine.
    """
    with _run(request, run) as watch:
        leader, state = watch.leader, watch.state
        if leader is None:
            return schema.StopBody(run=clean(run), did="nothing leads it", state=state)
        if leader.host != here():
            told = f"it is led by process {leader.pid} on {clean(leader.host)}: stop it there"
            raise HTTPException(409, told)
        try:
            ask_to_stop(leader)
        except OSError as error:
            raise HTTPException(409, f"process {leader.pid} cannot be asked: {error}") from error
    return schema.StopBody(run=clean(run), did=f"asked process {leader.pid} to stop", state=state)


@router.get(
    "/metrics",
    tags=["server"],
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics_page(request: Request) -> PlainTextResponse:
    """Give figures of all runs as Prometheus reads them."""
    runs: Runs = request.app.state.runs
    return PlainTextResponse(metrics.text_of(runs.all()), media_type=metrics.CONTENT_TYPE)
