"""What the API says of one run, from its story: values of schema.py, safe to show."""

from __future__ import annotations

import json
from typing import Any, assert_never

from surefoot.core.event import CheckpointCommitted
from surefoot.core.fleet import Instance
from surefoot.core.plan import Action, Checkpoint, Drain, Launch, Resize, Terminate
from surefoot.core.units import usd
from surefoot.report.clean import clean
from surefoot.report.foretold import foretold
from surefoot.report.standing import standing
from surefoot.report.strict import plain
from surefoot.report.words import CAPACITY, place, short
from surefoot.web import schema
from surefoot.web.thin import thin
from surefoot.web.watch import Line, Watch

MOST_PRICES = 12
MOST_MARKS = 500
LONG_LIST = 50


def run_row(watch: Watch) -> schema.RunRow:
    """Return a run's line in the list."""
    story, state = watch.story, watch.state
    return schema.RunRow(
        run=clean(watch.card.run),
        name=clean(watch.card.name),
        state=state,
        policy=clean(watch.card.policy),
        step=story.state.progress.steps_done,
        total_steps=_whole(watch.card.steps),
        steps_safe=story.state.progress.steps_safe,
        vms=len(story.state.fleet),
        bill_usd=usd(story.account.bill.total),
        began_ms=story.began_ms,
        last_event_ms=story.state.now_ms or None,
        reason=_reason(watch, state),
    )


def status(watch: Watch) -> schema.Status:
    """Return how a run stands."""
    story, card, leader = watch.story, watch.card, watch.leader
    state = watch.state_by(leader)
    told = watch.once(
        "standing", (card, state), lambda: masked(plain(standing(card, story, state)))
    )
    body = dict(told)
    progress = story.state.progress
    training = progress.members > 0 and progress.step_ms > 0
    left = None if card.steps is None else max(0, card.steps - progress.steps_done)
    eta = story.state.now_ms + left * progress.step_ms if training and left is not None else None
    body |= {
        "reason": _reason(watch, state),
        "policy": clean(card.policy),
        "num_nodes": _whole(card.num_nodes) or 0,
        "total_steps": _whole(card.steps),
        "steps_per_s": 1_000 / progress.step_ms if training else None,
        "loss": plain(story.loss),
        "eta_ms": eta if story.state.outcome is None else None,
        "began_ms": story.began_ms,
        "last_checkpoint_ms": progress.last_save_ms or None,
        "led_by": f"process {leader.pid} on {clean(leader.host)}" if leader else None,
        "unreadable_events": watch.unreadable,
        "settings": {clean(k): clean(f"{v}") for k, v in dict(card.settings).items()},
    }
    return schema.Status(**body)


def _reason(watch: Watch, state: str) -> str:
    """Say why a run ended, or why it does not go on."""
    ending = watch.story.ending
    if watch.trouble:
        return f"its journal cannot be read: {watch.trouble}"
    if ending is not None:
        return clean(ending.message, limit=2_000, lines=True)
    if state == "left":
        return "no controller leads it any more: `surefoot run` with its job file goes on with it"
    return clean(watch.story.trouble)


def vm_page(watch: Watch, *, state: str | None, offset: int, limit: int) -> schema.VmPage:
    """Return VMs, held ones before gone ones, the newest first."""
    found = [vm for vm in watch.vms.values() if state is None or vm.state.value == state]
    found.sort(key=lambda vm: (vm.ending is not None, -vm.requested_ms, vm.token))
    return schema.VmPage(
        vms=[_vm(watch, vm) for vm in found[offset : offset + limit]], total=len(found)
    )


def _vm(watch: Watch, vm: Instance) -> schema.Vm:
    cost, unknown_ms = 0, 0
    if vm.launched_ms is not None:
        cost, unknown_ms = watch.story.account.cost_of(
            vm.pool, vm.capacity, vm.launched_ms, vm.gone_ms
        )
    known = cost > 0 or unknown_ms == 0
    turned = vm.gone_ms is not None and vm.gone_ms < (vm.launched_ms or 0)
    return schema.Vm(
        vm=short(vm.token),
        token=clean(vm.token),
        instance_id=clean(vm.instance_id),
        pool=clean(vm.pool),
        capacity=CAPACITY[vm.capacity],
        state=vm.state.value,
        ending=vm.ending.value if vm.ending else None,
        speed=plain(vm.speed),
        requested_ms=vm.requested_ms,
        launched_ms=vm.launched_ms,
        ready_ms=vm.ready_ms,
        noticed_ms=vm.noticed_ms,
        deadline_ms=vm.notice_deadline_ms,
        gone_ms=vm.gone_ms,
        cost_usd=usd(cost) if known else None,
        unknown_price_s=unknown_ms / 1000,
        clock_error=turned,
    )


def events_page(watch: Watch, *, after: int, limit: int, body: bool) -> schema.EventPage:
    """Return events numbered above `after`."""
    newest = watch.seq
    if body:
        rows = [_with_body(watch, *row) for row in watch.bodies(after, limit)]
    else:
        first = watch.lines[0].seq if watch.lines else 0
        skip = max(0, after + 1 - first)
        rows = []
        for index in range(skip, len(watch.lines)):
            line = watch.lines[index]
            if line.seq > after:
                rows.append(_event(line))
            if len(rows) == limit:
                break
    last = rows[-1].seq if rows else max(after, 0)
    return schema.EventPage(events=rows, next_after=last, newest=newest)


def newest_events(watch: Watch, count: int, *, loud: bool) -> schema.EventPage:
    """Return the last events in order; with `loud` only those worth a line."""
    rows: list[schema.EventRow] = []
    for line in reversed(watch.lines):
        if line.text or not loud:
            rows.append(_event(line))
        if len(rows) == count:
            break
    return schema.EventPage(events=rows[::-1], next_after=watch.seq, newest=watch.seq)


def _event(line: Line) -> schema.EventRow:
    return schema.EventRow(
        seq=line.seq, at_ms=line.at_ms, kind=line.kind, tone=line.tone, text=line.text
    )


def _with_body(watch: Watch, seq: int, kind: str, text: str) -> schema.EventRow:
    try:
        found = plain(json.loads(text))
    except ValueError:
        found = None
    body = masked(found) if isinstance(found, dict) else {}
    at_ms = body.get("at_ms")
    line = _line(watch, seq)
    return schema.EventRow(
        seq=seq,
        at_ms=at_ms if isinstance(at_ms, int) else 0,
        kind=clean(kind),
        tone=line.tone if line else "quiet",
        text=line.text if line else "",
        body=body,
    )


def _line(watch: Watch, seq: int) -> Line | None:
    """Return the kept line of an event; numbers have gaps only where a row cannot be read."""
    if not watch.lines:
        return None
    index = min(len(watch.lines) - 1, max(0, seq - watch.lines[0].seq))
    while index >= 0 and watch.lines[index].seq > seq:
        index -= 1
    return watch.lines[index] if index >= 0 and watch.lines[index].seq == seq else None


def masked(value: Any) -> Any:
    """Return JSON values with every text cleaned: no terminal codes, no secrets."""
    if isinstance(value, str):
        return clean(value, limit=4_000, lines=True)
    if isinstance(value, dict):
        return {clean(key): masked(item) for key, item in value.items()}
    return [masked(item) for item in value] if isinstance(value, list) else value


def bill(watch: Watch) -> schema.BillBody:
    """Return what was spent, by pool, beside what on-demand would have cost."""
    account = watch.story.account
    total, by_pool = account.bill, account.bill_by_pool()
    time, work = account.on_demand_same_time(), account.on_demand_same_work()
    held = any(vm.launched_ms is not None for vm in watch.story.state.fleet)
    return schema.BillBody(
        total_micro_usd=total.total,
        total_usd=usd(total.total),
        spot_usd=usd(total.spot),
        on_demand_usd=usd(total.on_demand),
        unknown_price_s=total.unknown_ms / 1000,
        is_estimate=held or total.unknown_ms > 0,
        on_demand_usd_same_time=None if time is None else usd(time),
        on_demand_usd_same_work=None if work is None else usd(work),
        saving_same_work=1 - total.total / work if work else None,
        budget=clean(dict(watch.card.settings).get("budget.total", "unknown")),
        pools=[
            schema.PoolBill(
                pool=clean(pool),
                spot_micro_usd=part.spot,
                on_demand_micro_usd=part.on_demand,
                unknown_price_s=part.unknown_ms / 1000,
            )
            for pool, part in sorted(by_pool.items())
        ],
    )


def forecast(watch: Watch) -> schema.ForecastBody:
    """Return the forecast in force, and expected against seen losses since the start."""
    decision = watch.story.decision
    choice = decision.interval if decision else None
    return schema.ForecastBody(
        forecaster=clean(decision.forecaster) if decision else None,
        hazard_per_h=plain(choice.hazard_per_h) if choice else None,
        notice_share=plain(choice.notice_share) if choice else None,
        interval_s=choice.interval_ms / 1000 if choice else None,
        interval_reason=clean(choice.reason) if choice else "",
        pool_events=plain(foretold(watch.story).as_dict()),
    )


def plan(watch: Watch) -> schema.PlanBody:
    """Return the newest decision in words."""
    decision = watch.story.decision
    if decision is None:
        return schema.PlanBody(
            at_ms=None, policy=None, reason="", revisit_at_ms=None, actions=[], targets=[]
        )
    return schema.PlanBody(
        at_ms=decision.at_ms,
        policy=clean(decision.policy),
        reason=clean(decision.plan.reason, limit=2_000),
        revisit_at_ms=decision.plan.revisit_at_ms,
        actions=[_action(a) for a in decision.plan.actions[:LONG_LIST]],
        targets=[
            schema.Target(pool=clean(pool), capacity=CAPACITY[capacity], vms=count)
            for (pool, capacity), count in decision.plan.target.items()
        ],
    )


def _action(action: Action) -> str:
    match action:
        case Launch():
            kind = CAPACITY[action.capacity]
            return f"launch {action.count} {kind} in {place(action.pool)}"
        case Drain():
            return f"let VM {short(action.token)} hand over and go"
        case Terminate():
            return f"end VM {short(action.token)}"
        case Checkpoint():
            return f"save now: {clean(action.reason)}"
        case Resize():
            return f"train with {len(action.members)} VMs"
        case _:
            assert_never(action)


def checkpoints(watch: Watch, *, offset: int, limit: int) -> schema.CheckpointPage:
    """Return saves, the newest first; void ones with their reason."""
    rows = []
    for save in watch.saves[::-1][offset : offset + limit]:
        good = save if isinstance(save, CheckpointCommitted) else None
        rows.append(
            schema.CheckpointRow(
                at_ms=save.at_ms,
                step=save.step,
                is_durable=good is not None,
                is_emergency=good.emergency if good else False,
                stall_ms=good.stall_ms if good else None,
                persist_ms=good.persist_ms if good else None,
                size_bytes=good.size_bytes if good else None,
                margin_ms=good.margin_ms if good else None,
                message="" if isinstance(save, CheckpointCommitted) else clean(save.message),
            )
        )
    return schema.CheckpointPage(checkpoints=rows, total=len(watch.saves))


def series(watch: Watch, count: int) -> schema.Series:
    """Return the courses that the charts show, each of at most about `count` points."""
    found: schema.Series = watch.once("series", count, lambda: _series(watch, count))
    return found


def _series(watch: Watch, count: int) -> schema.Series:
    story = watch.story
    told = foretold(story)
    seen = [(at_ms, float(index)) for index, at_ms in enumerate(told.seen, 1)]
    paid = sorted(watch.prices.items(), key=lambda item: (-_used(watch, item[0]), item[0][0]))
    return schema.Series(
        began_ms=story.began_ms,
        now_ms=story.state.now_ms,
        asked_vms=_whole(watch.card.num_nodes) or 0,
        spot=thin(story.spot.points, count),
        on_demand=thin(story.on_demand.points, count),
        training=thin(story.training.points, count),
        spent_usd=thin(story.spent.points, count),
        on_demand_usd=thin(story.reference.points, count),
        steps=thin(story.steps.points, count),
        steps_per_s=thin(watch.speed.points, count),
        goodput=thin(watch.goodput.points, count),
        interval_s=thin(story.interval_s.points, count),
        hazard_per_h=thin(story.hazard_per_h.points, count),
        losses_forecast=thin(told.expected, count),
        losses_seen=thin(seen, count),
        loss=thin(sorted(story.losses.items()), count),
        former_loss=thin(sorted(story.former_losses), count // 2),
        marks=[
            schema.MarkRow(at_ms=m.at_ms, kind=m.kind, pool=clean(m.pool))
            for m in story.marks[:: 1 + len(story.marks) // MOST_MARKS]
        ],
        prices=[
            schema.PriceCourse(
                pool=clean(pool), capacity=CAPACITY[capacity], points=thin(course.points, count)
            )
            for (pool, capacity), course in paid[:MOST_PRICES]
        ],
    )


def _used(watch: Watch, key: tuple[Any, Any]) -> int:
    """Return what was paid in a pool: its prices are shown before those of others."""
    part = watch.story.account.bill_by_pool().get(key[0])
    return part.total if part else 0


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
