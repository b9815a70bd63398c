"""Our human-written market file (YAML): pools with steps of supply and price, and reclaims."""

from __future__ import annotations

import math
from pathlib import Path

from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Reclaim, Semantics, Step, Trace
from surefoot.core.units import micro_usd
from surefoot.traces.nodes import Node, read_yaml
from surefoot.traces.times import duration_ms

FILE_KEYS = {"name": False, "duration": True, "pools": True}
POOL_KEYS = {
    "pool": True,
    "supply": True,
    "spot": True,
    "on_demand": True,
    "reclaims": False,
    "notice": False,
    "boot": False,
    "speed": False,
    "minimum_billing": False,
}
RECLAIM_KEYS = {"at": True, "count": False, "notice": False}


def read_market(path: Path) -> Trace:
    """Read a market file. Times count from the trace's start, money is USD per VM-hour.

    Raises TraceError naming file, line and key.
    """
    root = read_yaml(path)
    fields = root.fields(FILE_KEYS)
    end_ms = _duration(fields["duration"])
    if end_ms <= 0:
        fields["duration"].fail("must be longer than 0")
    pools: dict[Pool, PoolTrace] = {}
    for node in fields["pools"].items():
        record = _pool(node, end_ms)
        if record.pool in pools:
            node.fail(f"the pool {record.pool} is described twice")
        pools[record.pool] = record
    if not pools:
        fields["pools"].fail("at least one pool is needed")
    name = str(fields["name"].scalar()) if "name" in fields else path.stem
    return Trace(name, Semantics.SUPPLY, 0, end_ms, pools)


def _pool(node: Node, end_ms: int) -> PoolTrace:
    fields = node.fields(POOL_KEYS)
    boot = _optional_ms(fields.get("boot"), 60_000)
    reclaims = fields["reclaims"].items() if "reclaims" in fields else []
    return PoolTrace(
        pool=_name(fields["pool"]),
        supply=_steps(fields["supply"], end_ms, is_price=False),
        spot=_steps(fields["spot"], end_ms, is_price=True),
        on_demand=_steps(fields["on_demand"], end_ms, is_price=True),
        reclaims=tuple(sorted((_reclaim(r, end_ms) for r in reclaims), key=lambda r: r.at_ms)),
        notice_ms=_optional_ms(fields.get("notice"), 120_000),
        boot_ms=boot,
        speed=_speed(fields.get("speed")),
        minimum_billing_ms=_optional_ms(fields.get("minimum_billing"), 0),
    )


def _name(node: Node) -> Pool:
    try:
        return Pool.parse(str(node.scalar()))
    except ValueError as error:
        node.fail(str(error))


def _steps(node: Node, end_ms: int, *, is_price: bool) -> tuple[Step, ...]:
    """Read one value, or a mapping from time to value. Null is a gap (unknown)."""
    if not node.is_mapping:
        return (Step(0, _value(node, is_price=is_price)),)
    steps: list[Step] = []
    for key, value in node.pairs():
        at_ms = _at(key, end_ms)
        if steps and at_ms <= steps[-1].at_ms:
            key.fail("times must rise from line to line")
        steps.append(Step(at_ms, _value(value, is_price=is_price)))
    if not steps:
        node.fail("at least one time and value is needed")
    if steps[0].at_ms != 0:
        node.fail("the first time must be 0s", hint="say what holds at the start: 0s: ...")
    return tuple(steps)


def _at(node: Node, end_ms: int) -> int:
    at_ms = _duration(node)
    if at_ms >= end_ms:
        node.fail("is not before the end of the trace", hint="raise `duration` or drop this")
    return at_ms


def _value(node: Node, *, is_price: bool) -> int | None:
    value = node.scalar()
    if value is None:
        if is_price:
            node.fail("a price is needed")
        return None
    number = _number(node)
    if is_price:
        return micro_usd(number)
    if number != int(number):
        node.fail(f"a number of VMs is whole, got {value!r}")
    return int(number)


def _number(node: Node) -> float:
    """Return a finite number of at least 0. A comma as decimal mark is refused, not guessed."""
    value = node.scalar()
    if isinstance(value, str) and "," in value:
        node.fail(f"{value!r} has a comma", hint="write the decimal mark as a point: 0.42")
    try:
        number = float(value) if not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError):
        node.fail(f"expected a number, got {value!r}")
    if not math.isfinite(number) or number < 0:
        node.fail(f"expected a number of at least 0, got {value!r}")
    return number


def _reclaim(node: Node, end_ms: int) -> Reclaim:
    fields = node.fields(RECLAIM_KEYS)
    count = int(_number(fields["count"])) if "count" in fields else 1
    if count < 1:
        fields["count"].fail("at least 1 VM is reclaimed")
    notice = _duration(fields["notice"]) if "notice" in fields else None
    return Reclaim(_at(fields["at"], end_ms), count, notice)


def _speed(node: Node | None) -> float:
    if node is None:
        return 1.0
    speed = _number(node)
    if speed <= 0:
        node.fail("must be above 0")
    return speed


def _optional_ms(node: Node | None, default: int) -> int:
    return default if node is None else _duration(node)


def _duration(node: Node) -> int:
    try:
        return duration_ms(node.scalar())
    except ValueError as error:
        node.fail(str(error))
