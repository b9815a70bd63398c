"""A recorded trace as the facts an observer would have learned, one by one, in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from surefoot.core.market import Pool
from surefoot.core.trace import (
    History,
    LaunchTry,
    Life,
    LifeEnd,
    PoolTrace,
    Semantics,
    Signal,
    Step,
    Trace,
)

WHOLE = "whole"
"""Key of a try that asked for all that its pool may hold."""


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """Something learned of a pool: `kind` is born, lost, censored, tried, priced or signalled.

    `asked` and `granted` are of a try; a price is in `granted` (micro-dollars per VM-hour). A
    signal's kind is in `key`, its worth in `value`. A VM adopted late was born `asked` ms before.
    """

    at_ms: int
    pool: Pool
    order: int
    kind: str
    key: str = ""
    asked: int = 0
    granted: int = 0
    value: float = 0.0


def grow(history: History, facts: Iterable[Fact]) -> None:
    """Add facts to a history."""
    for fact in facts:
        match fact.kind:
            case "born":
                seen = fact.at_ms if fact.asked else None
                born_ms = fact.at_ms - fact.asked
                history.born(fact.pool, fact.key, at_ms=born_ms, first_seen_ms=seen)
            case "lost":
                history.ended(fact.pool, fact.key, at_ms=fact.at_ms, end=LifeEnd.PREEMPTED)
            case "censored":
                history.ended(fact.pool, fact.key, at_ms=fact.at_ms, end=LifeEnd.CENSORED)
            case "tried":
                history.tried(
                    fact.pool,
                    at_ms=fact.at_ms,
                    asked=fact.asked,
                    granted=fact.granted,
                    whole=fact.key == WHOLE,
                )
            case "priced":
                history.priced(fact.pool, at_ms=fact.at_ms, micro_usd_h=fact.granted)
            case "signalled":
                history.signalled(fact.pool, at_ms=fact.at_ms, kind=fact.key, value=fact.value)
            case _:
                raise ValueError(f"unknown kind of fact: {fact.kind}")


def facts_of(trace: Trace, *, reassert_ms: int | None = None) -> list[Fact]:
    """Return the trace's facts in order of time.

    The VMs of a count are told apart as "the youngest is lost first". For PROBE and SUPPLY
    traces they are pseudo-lives: they say when capacity vanishes, an upper bound for when a held
    VM would be lost. With `reassert_ms`, an unchanged probe is told again that often.
    """
    out: list[Fact] = []
    for record in trace.pools.values():
        if record.lives or record.tries:
            out += _seen(record.pool, record.lives, record.tries)
        else:
            out += _pool_facts(record, trace, reassert_ms)
        out += _told(record.pool, record.spot, record.signals)
    return sorted(out)


def history_of(trace: Trace, until_ms: int | None = None) -> History:
    """Return what was known of the trace's market by an instant (by its end, if none is named)."""
    history = History()
    limit = trace.end_ms if until_ms is None else until_ms
    grow(history, (f for f in facts_of(trace) if f.at_ms <= limit))
    history.now_ms = max(history.now_ms, limit)
    return history


def facts_from(history: History) -> list[Fact]:
    """Return a history's facts in order of time, so that it can be lived through again."""
    out: list[Fact] = []
    for pool, record in history.pools.items():
        out += _seen(pool, record.lives.values(), record.launches)
        out += _told(pool, record.prices, record.signals)
    return sorted(out)


def trace_of(history: History, name: str) -> Trace:
    """Return a history as a record of held pools: who lived when, tries, prices and hints.

    The supply is the number of VMs held; it says what was used, not what could be had.
    """
    facts = facts_from(history)
    start_ms = min((f.at_ms - f.asked if f.kind == "born" else f.at_ms for f in facts), default=0)
    pools = {}
    for pool, record in history.pools.items():
        lives = tuple(record.lives.values())
        pools[pool] = PoolTrace(
            pool,
            _held(lives, start_ms),
            tuple(record.prices),
            (),
            lives=lives,
            tries=tuple(record.launches),
            signals=tuple(record.signals),
        )
    return Trace(name, Semantics.POOL, start_ms, max(history.now_ms, start_ms) + 1, pools)


def _held(lives: Iterable[Life], start_ms: int) -> tuple[Step, ...]:
    """Return how many VMs were held as steps, from `start_ms` on."""
    change: dict[int, int] = {start_ms: 0}
    for life in lives:
        change[life.born_ms] = change.get(life.born_ms, 0) + 1
        if life.end_ms is not None:
            change[life.end_ms] = change.get(life.end_ms, 0) - 1
    steps: list[Step] = []
    held = 0
    for at_ms in sorted(change):
        held += change[at_ms]
        if not steps or steps[-1].value != held:
            steps.append(Step(at_ms, held))
    return tuple(steps)


def _seen(pool: Pool, lives: Iterable[Life], tries: Iterable[LaunchTry]) -> list[Fact]:
    """Return the facts of what was seen VM by VM."""
    out = []
    for life in lives:
        seen_ms = life.born_ms if life.first_seen_ms is None else life.first_seen_ms
        out.append(Fact(seen_ms, pool, 0, "born", life.key, seen_ms - life.born_ms))
        if life.end_ms is not None:
            kind = "lost" if life.end is LifeEnd.PREEMPTED else "censored"
            out.append(Fact(max(life.end_ms, seen_ms), pool, 1, kind, life.key))
    return out + [
        Fact(t.at_ms, pool, 2, "tried", WHOLE if t.whole else "", t.asked, t.granted) for t in tries
    ]


def _told(pool: Pool, prices: Iterable[Step], signals: Iterable[Signal]) -> list[Fact]:
    """Return the facts that the provider told: prices and hints."""
    out = [
        Fact(price.at_ms, pool, 3, "priced", "", 0, price.value)
        for price in prices
        if price.value is not None
    ]
    return out + [Fact(x.at_ms, pool, 4, "signalled", x.kind, value=x.value) for x in signals]


def _pool_facts(record: PoolTrace, trace: Trace, reassert_ms: int | None) -> list[Fact]:
    pool, probes = record.pool, trace.semantics in (Semantics.PROBE, Semantics.SUPPLY)
    target = max((s.value or 0 for s in record.supply), default=0)
    facts: list[Fact] = []
    stack: list[str] = []
    born = 0

    def add(at_ms: int, kind: str, key: str = "", asked: int = 0, granted: int = 0) -> None:
        facts.append(Fact(at_ms, pool, len(facts), kind, key, asked, granted))

    for step, next_ms in _spans(record, trace.end_ms):
        if step.value is None:
            for key in stack:
                add(step.at_ms, "censored", key)
            stack = []
            continue
        before = len(stack)
        while len(stack) > step.value:
            add(step.at_ms, "lost", stack.pop())
        while len(stack) < step.value:
            born += 1
            stack.append(f"{pool}#{born}")
            add(step.at_ms, "born", stack[-1])
        if probes and target:
            again = reassert_ms or (next_ms - step.at_ms)
            for at_ms in range(step.at_ms, next_ms, max(again, 1)):
                add(at_ms, "tried", WHOLE, target, step.value)
        elif target:
            rise = step.value - before
            if rise > 0:
                add(step.at_ms, "tried", "", rise, rise)
            if step.value < target:
                add(step.at_ms, "tried", "", target - step.value, 0)
    return facts


def _spans(record: PoolTrace, end_ms: int) -> Sequence[tuple[Step, int]]:
    ends = [s.at_ms for s in record.supply[1:]] + [end_ms]
    return list(zip(record.supply, ends, strict=False))
