"""A recorded trace as the facts an observer would have learned, one by one, in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd, PoolTrace, Semantics, Step, Trace


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """Something learned of a pool: `kind` is born, lost, censored, tried or priced.

    `asked` and `granted` are of a try; a price is in `granted` (micro-dollars per VM-hour).
    """

    at_ms: int
    pool: Pool
    order: int
    kind: str
    key: str = ""
    asked: int = 0
    granted: int = 0


def grow(history: History, facts: Iterable[Fact]) -> None:
    """Add facts to a history."""
    for fact in facts:
        match fact.kind:
            case "born":
                history.born(fact.pool, fact.key, at_ms=fact.at_ms)
            case "lost":
                history.ended(fact.pool, fact.key, at_ms=fact.at_ms, end=LifeEnd.PREEMPTED)
            case "censored":
                history.ended(fact.pool, fact.key, at_ms=fact.at_ms, end=LifeEnd.CENSORED)
            case "tried":
                history.tried(fact.pool, at_ms=fact.at_ms, asked=fact.asked, granted=fact.granted)
            case "priced":
                history.priced(fact.pool, at_ms=fact.at_ms, micro_usd_h=fact.granted)
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
        out += _pool_facts(record, trace, reassert_ms)
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
        for life in record.lives.values():
            out.append(Fact(life.born_ms, pool, 0, "born", life.key))
            if life.end_ms is not None:
                kind = "lost" if life.end is LifeEnd.PREEMPTED else "censored"
                out.append(Fact(life.end_ms, pool, 1, kind, life.key))
        for one in record.launches:
            out.append(Fact(one.at_ms, pool, 2, "tried", "", one.asked, one.granted))
        for price in record.prices:
            out.append(Fact(price.at_ms, pool, 3, "priced", "", 0, price.value or 0))
    return sorted(out)


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
                add(at_ms, "tried", "", target, step.value)
        elif target:
            rise = step.value - before
            if rise > 0:
                add(step.at_ms, "tried", "", rise, rise)
            if step.value < target:
                add(step.at_ms, "tried", "", target - step.value, 0)
    for price in record.spot:
        if price.value is not None:
            add(price.at_ms, "priced", "", 0, price.value)
    return facts


def _spans(record: PoolTrace, end_ms: int) -> Sequence[tuple[Step, int]]:
    ends = [s.at_ms for s in record.supply[1:]] + [end_ms]
    return list(zip(record.supply, ends, strict=True))
