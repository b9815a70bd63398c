"""Trace files of every kind: what they give, and how each mistake in them is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surefoot.core.market import Pool
from surefoot.core.trace import Reclaim, Semantics, Step
from surefoot.errors import TraceError
from surefoot.traces import read_trace, write_trace
from surefoot.traces.rows import TraceWarning

MARKET = """\
name: small
duration: 3m
pools:
  - pool: local/r1/a/small
    supply: {0s: 8, 1m30s: 0, 2m: 12}
    spot: {0s: 0.30, 1m: 0.35}
    on_demand: 1.00
    boot: 2s
    notice: 10s
    reclaims:
      - {at: 40s}
      - {at: 60s, count: 2, notice: 0s}
"""
POOL = Pool("local", "r1", "a", "small")


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_reads_the_market_file_that_people_write(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "m.yaml", MARKET))
    record = trace.pools[POOL]
    assert (trace.name, trace.semantics, trace.end_ms) == ("small", Semantics.SUPPLY, 180_000)
    assert record.supply == (Step(0, 8), Step(90_000, 0), Step(120_000, 12))
    assert record.spot == (Step(0, 300_000), Step(60_000, 350_000))
    assert record.on_demand == (Step(0, 1_000_000),)
    assert (record.boot_ms, record.notice_ms) == (2_000, 10_000)
    assert record.reclaims == (Reclaim(40_000, 1, None), Reclaim(60_000, 2, 0))


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("boot: 2s", "boots: 2s", 8, "did you mean 'boot'"),
        ("boot: 2s", "boot: 2", 8, "needs a unit"),
        ("on_demand: 1.00", "on_demand: '1,00'", 7, "comma"),
        ("on_demand: 1.00", "on_demand: .nan", 7, "at least 0"),
        ("on_demand: 1.00", "on_demand: -1", 7, "at least 0"),
        ("    on_demand: 1.00\n", "", 4, "'on_demand' is missing"),
        ("1m30s: 0, 2m: 12", "2m: 0, 90s: 12", 5, "times must rise"),
        ("0s: 8, 1m30s: 0", "5s: 8, 1m30s: 0", 5, "first time must be 0s"),
        ("2m: 12", "5m: 12", 5, "before the end"),
        ("0s: 8", "0s: 1.5", 5, "whole"),
        ("local/r1/a/small", "local/r1/small", 4, "provider/region/zone/type"),
        ("count: 2", "count: 0", 12, "at least 1"),
        ("duration: 3m", "duration: 0s", 2, "longer than 0"),
        ("name: small", "name: [", 3, "not valid YAML"),
        ("    boot: 2s", "    boot: 2s\n    boot: 3s", 9, "given twice"),
    ],
)
def test_every_mistake_in_a_market_file_names_file_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    path = written(tmp_path, "m.yaml", MARKET.replace(old, new, 1))
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert f"m.yaml:{line}:" in str(error.value)
    assert says in f"{error.value} {error.value.hint}"


def test_reads_the_public_json_form_with_gaps(tmp_path: Path) -> None:
    body = {"metadata": {"gap_seconds": 600}, "data": [1, 1, None, 0, 1]}
    trace = read_trace(written(tmp_path, "us-west-2b.json", json.dumps(body)))
    (record,) = trace.pools.values()
    assert record.supply == (
        Step(0, 1),
        Step(1_200_000, None),
        Step(1_800_000, 0),
        Step(2_400_000, 1),
    )
    assert trace.end_ms == 3_000_000


def test_an_inverted_json_series_is_turned_round(tmp_path: Path) -> None:
    body = {
        "metadata": {"gap_seconds": 60, "inverted": True, "semantics": "vm", "pool": str(POOL)},
        "data": [0, 1],
    }
    trace = read_trace(written(tmp_path, "x.json", json.dumps(body)))
    assert trace.semantics is Semantics.VM
    assert [s.value for s in trace.pools[POOL].supply] == [1, 0]


def test_a_csv_gives_the_same_trace_in_any_order_and_with_a_repeated_row(tmp_path: Path) -> None:
    rows = [f"{t},{POOL},{c},0.3" for t, c in [(0, 4), (60, 4), (120, 0), (180, 3), (240, 3)]]
    head = "t_s,pool,count,spot_usd_h\n"
    straight = read_trace(written(tmp_path, "a.csv", head + "\n".join(rows)))
    shuffled = [rows[3], rows[0], rows[4], rows[3], rows[2], rows[1]]
    path = written(tmp_path, "b.csv", head + "\n".join(shuffled))
    with pytest.warns(TraceWarning, match="sorted"):
        mixed = read_trace(path)
    assert mixed.pools == straight.pools
    assert mixed.end_ms == straight.end_ms == 300_000


def test_one_instant_with_two_values_is_refused_with_both_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "t_s,count\n0,1\n60,1\n60,0\n")
    with pytest.raises(TraceError, match="rows 3 and 4"):
        read_trace(path)


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "1.5", "two", "0,42"])
def test_a_count_that_is_no_count_is_refused_with_its_row(tmp_path: Path, cell: str) -> None:
    path = written(tmp_path, "a.csv", f't_s,count\n0,1\n60,"{cell}"\n')
    with pytest.raises(TraceError, match="row 3"):
        read_trace(path)


def test_missing_ticks_on_a_grid_become_an_unknown_stretch(tmp_path: Path) -> None:
    ticks = [0, 60, 120, 180, 240, 300, 360, 1200, 1260]
    path = written(tmp_path, "a.csv", "t_s,count\n" + "\n".join(f"{t},1" for t in ticks))
    (record,) = read_trace(path).pools.values()
    assert record.supply == (Step(0, 1), Step(420_000, None), Step(1_200_000, 1))


def test_stamps_with_and_without_a_zone_in_one_file_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "time,count\n2026-01-01T00:00:00Z,1\n2026-01-01T00:10:00,0\n")
    with pytest.raises(TraceError, match="with and without a time zone"):
        read_trace(path)


def test_stamps_across_a_clock_change_keep_their_offsets(tmp_path: Path) -> None:
    text = "time,count\n2026-03-29T01:30:00+01:00,1\n2026-03-29T03:30:00+02:00,0\n"
    (record,) = read_trace(written(tmp_path, "a.csv", text)).pools.values()
    assert record.supply[1].at_ms - record.supply[0].at_ms == 3_600_000


def test_zoneless_stamps_are_read_as_utc_with_a_warning(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "time,count\n2026-01-01T00:00:00,1\n")
    with pytest.warns(TraceWarning, match="UTC"):
        trace = read_trace(path)
    assert trace.start_ms == 1_767_225_600_000


def test_parquet_gives_back_an_equal_trace(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "m.yaml", MARKET))
    write_trace(trace, tmp_path / "m.parquet")
    assert read_trace(tmp_path / "m.parquet") == trace


def test_an_unknown_or_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"x\.txt"):
        read_trace(written(tmp_path, "x.txt", ""))
    with pytest.raises(TraceError, match="no such trace"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(TraceError, match="empty"):
        read_trace(written(tmp_path, "e.yaml", ""))
    with pytest.raises(TraceError, match="not valid JSON"):
        read_trace(written(tmp_path, "e.json", "{"))
    with pytest.raises(TraceError, match="Parquet"):
        read_trace(written(tmp_path, "e.parquet", "junk"))
