"""Which form a file has, told by its content: ours, the clouds', or a table of lifetimes."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.core.market import Pool
from surefoot.core.trace import PoolTrace, Semantics, Signal, Step, Trace
from surefoot.errors import TraceError
from surefoot.traces.columnar import read_parquet
from surefoot.traces.facts import trace_of
from surefoot.traces.lifetimes import COLUMNS, read_lifetimes
from surefoot.traces.market import read_market
from surefoot.traces.prices import (
    load_json,
    read_aws_prices,
    read_catalogue,
    read_gcp_history,
    read_spot_advisor,
)
from surefoot.traces.rows import TraceWarning
from surefoot.traces.series import read_csv, read_json

PROVIDERS = ("aws", "gcp", "azure", "lambda", "oci", "ibm")
"""Clouds that a folder of SkyPilot's catalogue is named after."""


def read_any(
    paths: Sequence[Path], *, pool: Pool | None = None, provider: str | None = None
) -> Trace:
    """Read a file of any known form, or several pages of one AWS price history.

    `pool`: whose a GCP capacity history is. `provider`: whose a SkyPilot catalogue is, where its
    folder is not named after it. Raises TraceError naming the file and what is wrong with it.
    """
    path = paths[0]
    for one in paths:
        if not one.is_file():
            raise TraceError(f"{one}: there is no such trace file", hint="check the path")
    form = form_of(path)
    if len(paths) > 1:
        others = {form_of(one) for one in paths} - {"AWS price history"}
        if others:
            raise TraceError(
                f"only pages of one AWS price history are read together, not: {', '.join(others)}",
                hint="import the files one by one",
            )
    match form:
        case "AWS price history":
            return _priced(path.stem, read_aws_prices(paths))
        case "Spot Advisor":
            return _banded(path)
        case "GCP capacity history":
            return _capacity(path, pool)
        case "SkyPilot catalogue":
            return _catalogue(path, provider)
        case "lifetimes":
            return _lifetimes(path)
        case _:
            return OURS[form](path)


OURS: Mapping[str, Callable[[Path], Trace]] = {
    "market file": read_market,
    "counts (JSON)": read_json,
    "counts (CSV)": read_csv,
    "our Parquet": read_parquet,
}


def form_of(path: Path) -> str:
    """Return the name of the file's form. Raises TraceError for an unknown ending.

    Where the content speaks for no other form it is a series of counts, whose reader says what
    is missing.
    """
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return "market file"
        case ".parquet":
            return "our Parquet"
        case ".json":
            return _json_form(path)
        case ".csv":
            return _csv_form(path)
    raise TraceError(
        f"{path.name}: unknown kind of trace file",
        hint="known: .yaml, .yml, .json, .csv, .parquet and a run's folder",
    )


def _json_form(path: Path) -> str:
    try:
        body: Any = load_json(path)
    except TraceError:
        return "counts (JSON)"
    if isinstance(body, list):
        first = body[0] if body else None
        is_price = isinstance(first, dict) and "SpotPrice" in first
        return "AWS price history" if is_price else "counts (JSON)"
    if not isinstance(body, dict):
        return "counts (JSON)"
    for keys, form in (
        (("SpotPriceHistory",), "AWS price history"),
        (("spot_advisor",), "Spot Advisor"),
        (("preemptionHistory", "priceHistory"), "GCP capacity history"),
    ):
        if any(key in body for key in keys):
            return form
    return "counts (JSON)"


def _csv_form(path: Path) -> str:
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            columns = set(next(csv.reader(handle), ()))
    except UnicodeDecodeError:
        raise TraceError(f"{path.name}: row 1: not text in UTF-8") from None
    if {"InstanceType", "SpotPrice", "Region"} <= columns:
        return "SkyPilot catalogue"
    return "lifetimes" if set(COLUMNS) <= columns else "counts (CSV)"


def _priced(name: str, spot: Mapping[Pool, tuple[Step, ...]]) -> Trace:
    if not spot:
        raise TraceError(f"{name}: there is no price of a Linux VM in it")
    instants = [step.at_ms for steps in spot.values() for step in steps]
    pools = {pool: PoolTrace(pool, (), steps, ()) for pool, steps in sorted(spot.items())}
    return Trace(name, Semantics.SUPPLY, min(instants), max(instants) + 1, pools)


def _banded(path: Path) -> Trace:
    """Return the bands as hints. They hold for a region: its name stands for the zone, too."""
    pools = {}
    for (region, kind), band in sorted(read_spot_advisor(path).items()):
        pool = Pool("aws", region, region, kind)
        told = (Signal(0, "interruption_band", float(band)),)
        pools[pool] = PoolTrace(pool, (), (), (), signals=told)
    return _still(path, pools)


def _capacity(path: Path, pool: Pool | None) -> Trace:
    if pool is None:
        raise TraceError(
            f"{path.name}: a GCP capacity history does not say whose it is",
            hint="name it: --pool gcp/us-central1/us-central1-a/a2-highgpu-1g",
        )
    prices, signals = read_gcp_history(path, pool)
    instants = [step.at_ms for step in prices] + [one.at_ms for one in signals]
    if not instants:
        raise TraceError(f"{path.name}: priceHistory and preemptionHistory are empty")
    record = PoolTrace(pool, (), prices, (), signals=tuple(signals))
    return Trace(path.stem, Semantics.SUPPLY, min(instants), max(instants) + 1, {pool: record})


def _catalogue(path: Path, provider: str | None) -> Trace:
    folder = path.resolve().parent.name.lower()
    who = provider or (folder if folder in PROVIDERS else None)
    if who is None:
        raise TraceError(
            f"{path.name}: a SkyPilot catalogue does not say whose prices it lists",
            hint="name the cloud: --provider aws",
        )
    pools = {}
    for pool, (dear, spot) in sorted(read_catalogue(path, who).items()):
        steps = [() if price is None else (Step(0, price),) for price in (spot, dear)]
        pools[pool] = PoolTrace(pool, (), steps[0], steps[1])
    return _still(path, pools)


def _still(path: Path, pools: Mapping[Pool, PoolTrace]) -> Trace:
    """Return a record of one instant: what it says holds from the start on."""
    if not pools:
        raise TraceError(f"{path.name}: there is no row in it")
    return Trace(path.stem, Semantics.SUPPLY, 0, 1, pools)


def _lifetimes(path: Path) -> Trace:
    history, dropped = read_lifetimes(path)
    if dropped:
        rows = "; ".join(f"row {one.row}: {one.why}" for one in dropped[:5])
        more = f" and {len(dropped) - 5} more" if len(dropped) > 5 else ""
        warnings.warn(
            f"{path.name}: {len(dropped)} rows were set aside: {rows}{more}", TraceWarning, 3
        )
    return trace_of(history, path.stem)
