"""Records in the clouds' own forms are told by their content; public ones are downloaded whole."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.core.market import Pool
from surefoot.core.trace import History, LifeEnd
from surefoot.errors import ConfigError, NoSpaceError, RetryLaterError, TraceError
from surefoot.traces import form_of, read_any, read_trace, write_trace
from surefoot.traces.catalog import PUBLIC
from surefoot.traces.facts import facts_from, history_of, trace_of
from surefoot.traces.fetch import download
from surefoot.traces.rows import TraceWarning

POOL = Pool("gcp", "us-central1", "us-central1-a", "a2-highgpu-1g")
V100 = Pool("aws", "us-east-1", "us-east-1a", "p3.2xlarge")
HOUR = 3_600_000
SPAN = {"startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T10:00:00Z"}


def price(hour: int, usd: str) -> dict[str, str]:
    return {
        "AvailabilityZone": "us-east-1a",
        "InstanceType": "p3.2xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": usd,
        "Timestamp": f"2026-01-01T{hour:02}:00:00Z",
    }


FORMS = {
    "prices.json": ("AWS price history", {"SpotPriceHistory": [price(1, "0.4"), price(0, "0.3")]}),
    "page.json": ("AWS price history", [price(1, "0.4"), price(0, "0.3")]),
    "advisor.json": (
        "Spot Advisor",
        {"spot_advisor": {"us-east-1": {"Linux": {"p3.2xlarge": {"s": 70, "r": 3}}}}},
    ),
    "gcp.json": (
        "GCP capacity history",
        {
            "priceHistory": [{"interval": SPAN, "listPrice": {"units": "1", "nanos": 5e8}}],
            "preemptionHistory": [{"interval": SPAN, "preemptionRate": 0.2}],
        },
    ),
    "zone.json": ("counts (JSON)", {"metadata": {"gap_seconds": 600}, "data": [1, 0, 1]}),
    "vms.csv": (
        "SkyPilot catalogue",
        "InstanceType,Price,SpotPrice,Region,AvailabilityZone\n"
        "p3.2xlarge,3.06,0.92,us-east-1,us-east-1a\n",
    ),
    "lives.csv": ("lifetimes", "start_s,end_s,event\n0,100,1\n0,,0\n5,4,1\n"),
    "counts.csv": ("counts (CSV)", "t_s,count\n0,1\n60,0\n"),
}


def written(folder: Path, name: str, body: object) -> Path:
    path = folder / name
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


@pytest.mark.filterwarnings("ignore::surefoot.traces.rows.TraceWarning")
@pytest.mark.parametrize("name", sorted(FORMS))
def test_every_form_is_told_by_its_content_and_kept_by_our_own(tmp_path: Path, name: str) -> None:
    form, body = FORMS[name]
    path = written(tmp_path, name, body)
    assert form_of(path) == form
    trace = read_any([path], pool=POOL, provider="aws")
    assert trace.pools
    write_trace(trace, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet") == trace


def test_what_the_clouds_tell_reaches_the_history_that_forecasts_read(tmp_path: Path) -> None:
    read = {n: read_any([written(tmp_path, n, FORMS[n][1])], pool=POOL, provider="aws")
            for n in ("prices.json", "advisor.json", "gcp.json", "vms.csv")}  # fmt: skip
    known = {name: history_of(trace) for name, trace in read.items()}
    assert [s.value for s in known["prices.json"].of(V100).prices] == [300_000, 400_000]
    band = Pool("aws", "us-east-1", "us-east-1", "p3.2xlarge")
    assert [(s.kind, s.value) for s in known["advisor.json"].of(band).signals] == [
        ("interruption_band", 3.0)
    ]
    assert known["gcp.json"].of(POOL).signals[0].value == pytest.approx(0.02)
    assert known["gcp.json"].of(POOL).prices[0].value == 1_500_000
    assert read["vms.csv"].pools[V100].on_demand[0].value == 3_060_000


def test_case_7_pages_of_one_price_history_are_one_record(tmp_path: Path) -> None:
    """CASES 7: paging with an overlapping row; and only such pages go together."""
    rows = [price(h, f"0.{30 + h}") for h in range(20)]
    pages = [
        written(tmp_path, "1.json", {"SpotPriceHistory": rows[8:][::-1]}),
        written(tmp_path, "2.json", {"SpotPriceHistory": rows[:10][::-1]}),
    ]
    whole = read_any([written(tmp_path, "all.json", {"SpotPriceHistory": rows})])
    assert read_any(pages).pools == whole.pools
    with pytest.raises(TraceError, match="read together"):
        read_any([pages[0], written(tmp_path, "zone.json", FORMS["zone.json"][1])])


def test_what_a_file_does_not_say_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="whose") as error:
        read_any([written(tmp_path, "gcp.json", FORMS["gcp.json"][1])])
    assert "--pool" in error.value.hint
    with pytest.raises(TraceError, match="whose") as error:
        read_any([written(tmp_path, "vms.csv", FORMS["vms.csv"][1])])
    assert "--provider" in error.value.hint
    (tmp_path / "aws").mkdir()
    assert V100 in read_any([written(tmp_path / "aws", "vms.csv", FORMS["vms.csv"][1])]).pools


def test_case_3_lifetimes_that_make_no_sense_are_named_at_import(tmp_path: Path) -> None:
    """CASES 3: the count of rows set aside, each with row and reason, is told."""
    path = written(tmp_path, "lives.csv", FORMS["lives.csv"][1])
    with pytest.warns(TraceWarning, match="1 rows were set aside: row 4: ends 1 s before"):
        trace = read_any([path])
    (record,) = trace.pools.values()
    assert sorted(x.end.value for x in record.lives) == ["censored", "preempted"]


@pytest.mark.parametrize(
    "body",
    [
        {"SpotPriceHistory": {}},
        {"SpotPriceHistory": []},
        {"SpotPriceHistory": [5]},
        {"spot_advisor": []},
        {"spot_advisor": {"us-east-1": 5}},
        {"spot_advisor": {"us-east-1": {"Linux": {"x": {"r": True}}}}},
        {"spot_advisor": {}},
        {"preemptionHistory": 5},
        {"preemptionHistory": [{"interval": SPAN}]},
        {"preemptionHistory": [{"preemptionRate": 0.1}]},
        {"preemptionHistory": [{"interval": SPAN, "preemptionRate": "nan"}]},
        {"preemptionHistory": [], "priceHistory": []},
        {"priceHistory": [{"interval": SPAN, "listPrice": {"units": "-1"}}]},
        [],
        5,
        {},
    ],
)
def test_a_broken_record_is_one_error_that_names_the_file(tmp_path: Path, body: object) -> None:
    with pytest.raises(TraceError, match=r"x(\.json)?:"):
        read_any([written(tmp_path, "x.json", body)], pool=POOL)


def test_a_history_of_lives_tries_prices_and_hints_survives_the_columns(tmp_path: Path) -> None:
    history = History()
    history.born(V100, "a", at_ms=1_000)
    history.tried(V100, at_ms=1_000, asked=2, granted=1)
    history.priced(V100, at_ms=2_000, micro_usd_h=5)
    history.born(V100, "b", at_ms=500, first_seen_ms=HOUR)
    history.ended(V100, "a", at_ms=2 * HOUR, end=LifeEnd.PREEMPTED)
    history.signalled(V100, at_ms=3 * HOUR, kind="rebalance", value=0.1)
    trace = trace_of(history, "mine")
    write_trace(trace, tmp_path / "m.parquet")
    again = history_of(read_trace(tmp_path / "m.parquet"))
    assert facts_from(again) == facts_from(history)
    assert again.of(V100).lives == history.of(V100).lives
    assert [s.value for s in trace.pools[V100].supply] == [1, 2, 1]


BODY = json.dumps(FORMS["advisor.json"][1]).encode() * 200


class Answers(BaseHTTPRequestHandler):
    """Serves BODY at /whole and what goes wrong at other paths."""

    def do_GET(self) -> None:
        what = self.path.strip("/")
        if what in ("404", "503"):
            self.send_error(int(what))
            return
        if what == "moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[: len(BODY) // 2] if what == "half" else BODY)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_a_fetch_leaves_the_whole_file_and_says_what_it_is(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, right = tmp_path / "a.json", hashlib.sha256(BODY).hexdigest()
    words = ["traces", "fetch", "spot-advisor", "--url", f"{server}/moved", "--out", str(out)]
    assert main([*words, "--sha256", right, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["bytes"], told["sha256"], told["file"]) == (len(BODY), right, str(out))
    assert told["licence"]
    assert out.read_bytes() == BODY
    assert main(words) == 0
    assert "licence:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "options", "kind", "says"),
    [
        ("404", {}, TraceError, "404"),
        ("503", {}, RetryLaterError, "503"),
        ("half", {}, RetryLaterError, "broke off"),
        ("whole", {"sha256": "0" * 64}, TraceError, "SHA-256"),
        ("whole", {"size": len(BODY) + 1}, TraceError, "expected"),
        ("whole", {"size": 10}, TraceError, "longer"),
    ],
)
def test_what_does_not_come_whole_and_right_leaves_the_old_file(
    server: str, tmp_path: Path, path: str, options: dict[str, str], kind: type, says: str
) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(kind, match=says):
        download(f"{server}/{path}", target, **options)  # type: ignore[arg-type]
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


SMALL_DISK = """
import resource, sys
from pathlib import Path
from surefoot.errors import SurefootError
from surefoot.traces.fetch import download
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    download(sys.argv[1], Path(sys.argv[2]))
except SurefootError as error:
    print(type(error).__name__)
"""
"""No file may grow past 1,000 bytes: the write fails as on a full disk."""


def test_a_full_disk_a_closed_port_and_no_address_are_clear_errors(
    server: str, tmp_path: Path
) -> None:
    with pytest.raises(NoSpaceError, match="cannot be written"):
        download(f"{server}/whole", tmp_path / "absent" / "a.json")
    words = [sys.executable, "-c", SMALL_DISK, f"{server}/whole", str(tmp_path / "a.json")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.strip() == "NoSpaceError", ended.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RetryLaterError, match="no answer"):
        download("http://127.0.0.1:9/x", tmp_path / "a.json", timeout_s=5)
    for address in ("file:///etc/hostname", "nowhere", "ftp://x/y"):
        with pytest.raises(ConfigError, match="web address"):
            download(address, tmp_path / "a.json")


def test_every_public_source_names_its_licence_and_how_to_get_it() -> None:
    names = [one.name for one in PUBLIC]
    assert len(set(names)) == len(names)
    for one in PUBLIC:
        assert one.licence and one.what and (one.url.startswith("https://") or one.command)
