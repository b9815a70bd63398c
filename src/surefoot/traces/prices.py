"""Prices and hints in the clouds' own forms: AWS price history and Spot Advisor, GCP, SkyPilot."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.core.market import Pool
from surefoot.core.trace import History, Signal, Step
from surefoot.core.units import micro_usd
from surefoot.errors import TraceError
from surefoot.traces.rows import Row, Stamps, number, steps_of

Prices = dict[Pool, tuple[Step, ...]]


def load_json(path: Path) -> Any:
    """Return a JSON file's body. Raises TraceError when it cannot be parsed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, FileNotFoundError) as error:
        raise TraceError(f"{path.name}: not readable as JSON: {error}") from None


def read_aws_prices(paths: Sequence[Path]) -> Prices:
    """Read pages of `aws ec2 describe-spot-price-history` (Linux rows) into sorted price steps.

    Rows may come in any order (AWS lists the newest first) and overlap between pages. Raises
    TraceError naming file and row for a price or stamp that cannot be read.
    """
    rows: dict[Pool, list[Row]] = defaultdict(list)
    count = 0
    for path in paths:
        body = load_json(path)
        stamps = Stamps(path.name)
        listed = body.get("SpotPriceHistory") if isinstance(body, dict) else body
        if not isinstance(listed, list):
            raise TraceError(f"{path.name}: no list under 'SpotPriceHistory'")
        for index, one in enumerate(listed):
            if not isinstance(one, dict):
                raise TraceError(f"{path.name}: row {index}: not an object")
            if not str(one.get("ProductDescription", "Linux/UNIX")).startswith("Linux"):
                continue
            zone, kind, text, stamp = (
                _cell(path, one, index, key)
                for key in ("AvailabilityZone", "InstanceType", "SpotPrice", "Timestamp")
            )
            price = _price(path, text, index, "SpotPrice")
            at_ms = stamps.read(stamp, row=index)
            rows[Pool("aws", zone.rstrip("abcdefgh"), zone, kind)].append((at_ms, price, count))
            count += 1
    names = ", ".join(p.name for p in paths)
    return {pool: steps_of(_forward(one), where=names) for pool, one in rows.items()}


def _forward(rows: list[Row]) -> list[Row]:
    """Return the rows oldest first: AWS lists the newest first, which needs no warning."""
    return [(at, value, i) for i, (at, value, _) in enumerate(sorted(rows))]


def read_spot_advisor(path: Path) -> dict[tuple[str, str], int]:
    """Read AWS Spot Advisor data: the interruption band (0..4) by (region, instance type)."""
    body = load_json(path)
    regions = body.get("spot_advisor") if isinstance(body, dict) else None
    if not isinstance(regions, dict):
        raise TraceError(f"{path.name}: no key 'spot_advisor'")
    bands: dict[tuple[str, str], int] = {}
    for region, systems in regions.items():
        linux = systems.get("Linux", {}) if isinstance(systems, dict) else None
        if not isinstance(linux, dict):
            raise TraceError(f"{path.name}: {region}: expected instance types under 'Linux'")
        for kind, one in linux.items():
            band = one.get("r") if isinstance(one, dict) else one
            if type(band) is not int or not 0 <= band <= 4:
                raise TraceError(f"{path.name}: {region} {kind}: r: a band is 0..4, got {band!r}")
            bands[region, kind] = band
    return bands


def read_gcp_history(path: Path, pool: Pool) -> tuple[tuple[Step, ...], list[Signal]]:
    """Read GCP capacity history of one machine type and zone: price steps and preemption rates.

    Expects lists `priceHistory` of {interval: {startTime}, listPrice: {units, nanos}} and
    `preemptionHistory` of {interval: {startTime, endTime}, preemptionRate}, the rate being the
    share of VMs preempted over the interval; it becomes losses per VM-hour.
    """
    body, stamps = load_json(path), Stamps(path.name)
    rows: list[Row] = []
    for index, one in enumerate(_listed(path, body, "priceHistory")):
        price, begin = _deep(path, one, index, "listPrice"), _span(path, one, index, "startTime")
        where = f"{path.name}: priceHistory"
        dollars, billionths = (
            number(str(price.get(key, 0)), where=where, row=index, column=f"listPrice.{key}")
            for key in ("units", "nanos")
        )
        if dollars < 0 or billionths < 0:
            raise TraceError(f"{where}: row {index}: listPrice: below 0")
        at_ms = stamps.read(begin, row=index)
        rows.append((at_ms, micro_usd(dollars + billionths / 1e9), index))
    signals = []
    for index, one in enumerate(_listed(path, body, "preemptionHistory")):
        begin_ms, end_ms = (
            stamps.read(_span(path, one, index, key), row=index) for key in ("startTime", "endTime")
        )
        where = f"{path.name}: preemptionHistory"
        rate = _cell(path, {k: str(v) for k, v in one.items()}, index, "preemptionRate")
        share = number(rate, where=where, row=index, column="rate")
        if end_ms <= begin_ms or not 0 <= share <= 1:
            raise TraceError(f"{where}: row {index}: needs a span of time and a rate in 0..1")
        per_h = share / ((end_ms - begin_ms) / 3_600_000)
        signals.append(Signal(end_ms, "preemption_rate", per_h))
    return steps_of(rows, where=path.name), sorted(signals, key=lambda s: s.at_ms)


def _listed(path: Path, body: Any, key: str) -> list[dict[str, Any]]:
    found = body.get(key, []) if isinstance(body, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise TraceError(f"{path.name}: {key}: expected a list of objects")
    return found


def _deep(path: Path, row: Mapping[str, Any], index: int, key: str) -> Mapping[str, Any]:
    if not isinstance(row.get(key), dict):
        raise TraceError(f"{path.name}: row {index}: {key} is missing")
    found: Mapping[str, Any] = row[key]
    return found


def _span(path: Path, row: Mapping[str, Any], index: int, key: str) -> str:
    return _cell(path, _deep(path, row, index, "interval"), index, key)


def read_catalogue(path: Path, provider: str) -> dict[Pool, tuple[int | None, int | None]]:
    """Read a SkyPilot `vms.csv`: (on-demand, spot) micro-dollars per VM-hour by pool."""
    out: dict[Pool, tuple[int | None, int | None]] = {}
    with path.open(newline="", encoding="utf-8-sig") as handle:
        reader = csv.DictReader(handle)
        for key in ("InstanceType", "Price", "SpotPrice", "Region"):
            if key not in (reader.fieldnames or ()):
                raise TraceError(f"{path.name}: row 1: no column {key!r}")
        for index, row in enumerate(reader, start=2):
            if not row["InstanceType"]:
                continue
            prices = [
                _price(path, row[key], index, key) if row[key] else None
                for key in ("Price", "SpotPrice")
            ]
            zone = row.get("AvailabilityZone") or row["Region"]
            pool = Pool(provider, row["Region"], zone, row["InstanceType"])
            out[pool] = (prices[0], prices[1])
    return out


def tell_bands(
    history: History, bands: Mapping[tuple[str, str], int], pools: Iterable[Pool]
) -> None:
    """Add the interruption band of each AWS pool to a history, as of its newest fact."""
    for pool in pools:
        band = bands.get((pool.region, pool.instance_type))
        if pool.provider == "aws" and band is not None:
            now_ms = history.now_ms
            history.signalled(pool, at_ms=now_ms, kind="interruption_band", value=float(band))


def _cell(path: Path, row: Mapping[str, Any], index: int, key: str) -> str:
    if not row.get(key):
        raise TraceError(f"{path.name}: row {index}: {key} is missing")
    return str(row[key])


def _price(path: Path, text: str, index: int, column: str) -> int:
    dollars = number(text, where=path.name, row=index, column=column)
    if dollars < 0:
        raise TraceError(f"{path.name}: row {index}: {column}: below 0: {text}")
    return micro_usd(dollars)
