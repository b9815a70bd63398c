"""The HTTP API over a real server: who may ask, what is answered, odd and large records."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from told_run import JOB, POOL, START, launched, told_run

pytest.importorskip("fastapi", reason="needs the extra `web`")

from web_world import TOKEN, Served, serving, strict, tell

from surefoot.controller.clock import RealClock
from surefoot.core.account import Account
from surefoot.core.event import (
    Event,
    GroupFormed,
    InstanceGone,
    InstanceLaunched,
    InstanceRequested,
    MetricSeen,
    OfferingsSeen,
    RunEnded,
    RunStarted,
    StepsDone,
    WorkerFailed,
)
from surefoot.core.fleet import Ending
from surefoot.core.market import Capacity, Offering, Pool
from surefoot.core.units import usd
from surefoot.errors import AuthError, ConfigError
from surefoot.report.token import make_token, read_token
from surefoot.testing import FakeClock
from surefoot.web.doors import LINK_MS, Doors
from surefoot.web.serve import Place

PATHS = (
    "/runs",
    "/runs/gpt-1",
    *(
        f"/runs/gpt-1/{part}"
        for part in ("vms", "events", "logs", "bill", "forecast", "plan", "checkpoints", "series")
    ),
)
CODES = "\x1b[31m"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("runs")
    tell(root)
    with serving(root) as found:
        yield found


# -- who may ask --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PATHS, "/metrics", "/runs/gpt-1/events/stream"])
@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer wrong"}, {"Cookie": "x=1"}])
def test_nothing_is_answered_without_the_token(
    served: Served, path: str, sent: dict[str, str]
) -> None:
    status, headers, body = served.ask("GET", f"/api/v1{path}", sent)
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    assert strict(body)["error"]["kind"] == "AuthError"


def test_a_one_time_link_opens_one_session_that_may_read_and_act_only_from_the_page(
    served: Served,
) -> None:
    word = {"Authorization": f"Once {served.doors.link()}"}
    status, headers, _ = served.ask("POST", "/session", word)
    assert status == 200
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=strict" in headers["set-cookie"]
    assert served.ask("POST", "/session", word)[0] == 401
    cookie = {"Cookie": headers["set-cookie"].split(";")[0]}
    assert served.ask("GET", "/api/v1/runs", cookie)[0] == 200
    stop = "/api/v1/runs/gpt-1/stop"
    assert served.ask("POST", stop, cookie)[0] == 401  # what a foreign page could send
    assert served.ask("POST", stop, {**cookie, "X-Surefoot": "1"})[0] == 200
    assert served.ask("DELETE", "/session", cookie)[0] == 200
    assert served.ask("GET", "/api/v1/runs", cookie)[0] == 401


def test_links_grow_old() -> None:
    clock = FakeClock(START)
    doors = Doors.of(TOKEN, clock)
    word = doors.link()
    clock.advance_to(clock.now_ms() + LINK_MS + 1)
    assert doors.redeem(word) is None
    assert TOKEN not in repr(doors)


def test_the_token_file_is_private_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "api.token"
    with pytest.raises(AuthError):
        read_token(file)
    token = make_token(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert make_token(file) == read_token(file) == token
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read"):
        read_token(file)
    file.chmod(0o600)
    file.write_text("short\n")
    with pytest.raises(AuthError, match="there is no token"):
        make_token(file)


def test_an_open_address_needs_tls(tmp_path: Path) -> None:
    """CASES 142: bound to localhost unless set."""
    assert Place().host == "127.0.0.1"
    with pytest.raises(ConfigError, match="in the clear"):
        Place("0.0.0.0").check()
    with pytest.raises(ConfigError, match="both"):
        Place(cert=Path(__file__)).check()
    Place("0.0.0.0", cert=Path(__file__), key=Path(__file__)).check()
    Place("::1").check()


def test_every_answer_forbids_foreign_scripts_and_frames(served: Served) -> None:
    for path in ("/", "/page.js", "/api/v1/runs", "/nowhere"):
        _, headers, _ = served.ask("GET", path)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


# -- what is answered ----------------------------------------------------------------------------


def test_events_can_be_read_page_by_page_without_gap_or_repeat(served: Served) -> None:
    seen: list[int] = []
    after = 0
    while True:
        page = served.get(f"/runs/gpt-1/events?after={after}&limit=7")
        if not page["events"]:
            break
        seen += [row["seq"] for row in page["events"]]
        after = page["next_after"]
    assert seen == list(range(1, len(told_run()) + 1))
    with_body = served.get("/runs/gpt-1/events?limit=5&body=true")["events"]
    assert with_body[0]["body"]["run"] == "gpt-1"
    loud = served.get("/runs/gpt-1/events?tail=5&loud=true")["events"]
    assert [row["text"] for row in loud][-1] == "run done"
    assert all(row["text"] for row in loud)


def test_the_stream_sends_every_event_and_ends_with_the_run(served: Served) -> None:
    status, headers, body = served.ask("GET", "/api/v1/runs/gpt-1/events/stream?after=90")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    numbers = [int(n) for n in re.findall(r"^id: (\d+)$", body.decode(), flags=re.MULTILINE)]
    assert numbers == list(range(91, len(told_run()) + 1))
    assert body.decode().endswith("event: end\ndata: {}\n\n")
    again = {"Authorization": f"Bearer {TOKEN}", "Last-Event-ID": str(numbers[-2])}
    _, _, rest = served.ask("GET", "/api/v1/runs/gpt-1/events/stream", again)
    assert f"id: {numbers[-1]}\n" in rest.decode() and f"id: {numbers[-2]}\n" not in rest.decode()


def test_the_bill_is_the_accounts_to_the_cent_and_vms_add_up_to_it(served: Served) -> None:
    """CASES 137, 138: paid prices over held time, summed over all VMs ever used."""
    account = Account(JOB)
    for event in told_run():
        account.add(event)
    bill = served.get("/runs/gpt-1/bill")
    assert bill["total_micro_usd"] == account.bill.total
    assert bill["on_demand_usd_same_work"] == usd(account.on_demand_same_work() or 0)
    vms = served.get("/runs/gpt-1/vms")["vms"]
    assert round(sum(vm["cost_usd"] for vm in vms), 2) == round(bill["total_usd"], 2)
    pools = sum(p["spot_micro_usd"] + p["on_demand_micro_usd"] for p in bill["pools"])
    assert pools == bill["total_micro_usd"]
    assert not bill["is_estimate"]


def test_unknown_prices_stay_unknown_and_no_cost_is_negative(tmp_path: Path) -> None:
    """CASES 138: a VM with unknown price, one whose end lies before its start."""
    other = Pool("local", "east", "east-b", "p3.2xlarge")
    spot, t = Capacity.SPOT, START
    events: list[Event] = [
        RunStarted(t, "odd-1"),
        OfferingsSeen(t, (Offering(POOL, spot, 970_000),)),
        InstanceRequested(t, "odd-1-1", other, spot),
        InstanceLaunched(t + 1_000, "odd-1-1", "i-1"),
        *launched("odd-1-2", t, spot),
        InstanceGone(t - 50_000, "odd-1-2", Ending.RELEASED),
        StepsDone(t + 600_000, 3, 1_000),
    ]
    tell(tmp_path, events, run="odd-1")
    with serving(tmp_path) as served:
        found = {vm["vm"]: vm for vm in served.get("/runs/odd-1/vms")["vms"]}
        bill = served.get("/runs/odd-1/bill")
    assert found["1"]["cost_usd"] is None and found["1"]["unknown_price_s"] > 0
    assert found["2"]["cost_usd"] == 0 and found["2"]["clock_error"]
    assert bill["total_micro_usd"] == 0 and bill["unknown_price_s"] > 500 and bill["is_estimate"]


def test_a_curve_after_a_roll_back_has_one_value_a_step(tmp_path: Path) -> None:
    """CASES 139: 1..212, resumed at 200 to 250, again from 240."""
    t = START
    events: list[Event] = [RunStarted(t, "roll-1"), *launched("roll-1-1", t, Capacity.SPOT)]
    at_ms = t + 10_000

    def train(first: int, last: int, loss: float, generation: int, lost: int) -> None:
        nonlocal at_ms
        events.append(GroupFormed(at_ms, generation, ("roll-1-1",), first - 1, lost))
        for step in range(first, last + 1):
            at_ms += 1_000
            events.append(StepsDone(at_ms, step, 1_000, loss))

    train(1, 212, 3.0, 1, 0)
    train(201, 250, 2.0, 2, 12)
    train(241, 260, 1.0, 3, 10)
    tell(tmp_path, events, run="roll-1")
    with serving(tmp_path) as served:
        course = served.get("/runs/roll-1/series?points=3000")
        figures = served.get("/runs/roll-1")["figures"]
    loss = dict(map(tuple, course["loss"]))
    assert sorted(loss) == list(range(1, 261)) == [step for step, _ in course["loss"]]
    assert (loss[200], loss[201], loss[240], loss[241]) == (3.0, 2.0, 2.0, 1.0)
    former = [tuple(pair) for pair in course["former_loss"]]
    assert former == [(s, 3.0) for s in range(201, 213)] + [(s, 2.0) for s in range(241, 251)]
    assert figures["lost_steps"] == 22


def test_odd_records_leave_the_rest_readable_and_json_strict(tmp_path: Path) -> None:
    """CASES 140: NaN, infinity, null and absent fields, a VM only just known, no nodes."""
    nan, endless, t = float("nan"), float("inf"), START
    events: list[Event] = [
        RunStarted(t, "odd-1"),
        InstanceRequested(t + 1, "odd-1-1", POOL, Capacity.SPOT, speed=nan),
        MetricSeen(t + 2, "val_loss", endless, 1),
        StepsDone(t + 3, 1, 0, nan),
        WorkerFailed(t + 4, "nobody", 1, ""),
    ]
    folder = tell(tmp_path, events, run="odd-1", num_nodes=0, ceiling=0.0)
    with sqlite3.connect(folder / "journal.db") as link:
        for seq, kind, body in (
            (6, "Unheard", "{}"),
            (7, "StepsDone", '{"at_ms": null}'),
            (8, "StepsDone", "no json"),
        ):
            row = ("odd-1", seq, t + seq, kind, body)
            link.execute("insert into events values (?, ?, ?, ?, ?)", row)
    tell(tmp_path, [], run="empty-1")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text('{"run": 7, "pools": [null]}')
    hurt = tell(tmp_path, [], run="hurt-1")
    (hurt / "journal.db").write_bytes(b"this is no database" * 100)
    with serving(tmp_path) as served:
        listed = {row["run"]: row for row in served.get("/runs")["runs"]}
        for path in PATHS:
            served.get(path.replace("gpt-1", "odd-1"))
            served.get(path.replace("gpt-1", "empty-1"))
        odd = served.get("/runs/odd-1")
        rows = served.get("/runs/odd-1/events?body=true&after=5")["events"]
        text = served.ask("GET", "/api/v1/metrics")[2].decode()
    assert set(listed) == {"odd-1", "empty-1", "hurt-1"}
    assert listed["empty-1"]["state"] == "not begun"
    assert "cannot be read" in listed["hurt-1"]["reason"]
    assert odd["unreadable_events"] == 3 and odd["step"] == 1
    assert [row["seq"] for row in rows] == [6, 7, 8]
    assert "nan" not in text.lower().replace("not begun", "") and "inf" not in text.lower()


def test_names_errors_and_log_lines_are_text_with_secrets_masked(tmp_path: Path) -> None:
    """CASES 142: script and image tags, quotes, terminal codes, a value that looks like a key."""
    bad = f"<script>alert(1)</script><img src=x onerror=alert(2)>\"'{CODES}"
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    events = [*told_run("gpt-1", message=f"{bad} api_key={key}")]
    folder = tell(tmp_path, events, name=bad, settings={"envs.X": key, bad: "v"})
    log = folder / "vms" / "i-t-s1" / "worker.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{bad}\npassword = hunter22222\nlast")
    with serving(tmp_path) as served:
        told = [served.ask("GET", f"/api/v1{path}") for path in PATHS]
        told.append(served.ask("GET", "/api/v1/runs/gpt-1/events?body=true"))
        told.append(served.ask("GET", "/api/v1/runs/gpt-1/logs/s1"))
        told.append(served.ask("GET", "/api/v1/metrics"))
        lines = served.get("/runs/gpt-1/logs/s1")
        assert served.ask("GET", "/api/v1/runs/gpt-1/logs/..%2F..%2Frun.json")[0] == 404
    for status, headers, body in told:
        assert status == 200
        assert headers["content-type"].split(";")[0] in ("application/json", "text/plain")
        assert key.encode() not in body and b"hunter2" not in body and b"\\u001b" not in body
    assert lines["lines"] == [bad.removesuffix(CODES), "password = [hidden]"]
    assert lines["next_offset"] < lines["size_bytes"]  # a line that is not whole yet waits


def test_logs_are_read_in_pages_of_whole_lines(tmp_path: Path) -> None:
    folder = tell(tmp_path)
    log = folder / "vms" / "i-t-s1" / "worker.log"
    log.parent.mkdir(parents=True)
    text = [f"line {n} ü" for n in range(2_000)]
    log.write_text("\n".join(text) + "\n" + "x" * 300_000 + "\nend\n", encoding="utf-8")
    with serving(tmp_path) as served:
        assert [row["vm"] for row in served.get("/runs/gpt-1/logs")["logs"]] == ["s1"]
        seen, offset = [], 0
        while True:
            page = served.get(f"/runs/gpt-1/logs/i-t-s1?offset={offset}&limit=300")
            if not page["lines"]:
                break
            assert page["next_offset"] > offset == page["offset"]
            seen, offset = seen + page["lines"], page["next_offset"]
        tail = served.get("/runs/gpt-1/logs/s1?tail=1")
    assert seen[:2_000] == text and seen[-1] == "end" and offset == log.stat().st_size
    assert tail["lines"] == ["end"] and tail["next_offset"] == log.stat().st_size


def test_a_run_stays_listed_when_its_controller_is_gone(tmp_path: Path) -> None:
    """CASES 143: last step, last checkpoint and the reason remain."""
    tell(tmp_path, told_run(upto_s=50))
    failed = [*told_run("bad-1", upto_s=50), RunEnded(START + 60_000, "failed", "disk is full")]
    tell(tmp_path, failed, run="bad-1")
    with serving(tmp_path) as served:
        rows = {row["run"]: row for row in served.get("/runs")["runs"]}
        status = served.get("/runs/gpt-1")
        code, _, body = served.ask("POST", "/api/v1/runs/gpt-1/stop")
    assert rows["gpt-1"]["state"] == "left" and "no controller" in rows["gpt-1"]["reason"]
    assert (rows["bad-1"]["state"], rows["bad-1"]["reason"]) == ("failed", "disk is full")
    assert status["step"] == 30 and status["steps_safe"] == 19 and status["last_checkpoint_ms"]
    assert status["led_by"] is None
    assert code == 200 and strict(body)["did"] == "nothing leads it"


def test_the_metrics_are_what_prometheus_reads(served: Served) -> None:
    status, headers, body = served.ask("GET", "/api/v1/metrics")
    assert status == 200 and "version=0.0.4" in headers["content-type"]
    line = re.compile(r'[a-z_]+\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\} -?[0-9.e+-]+')
    samples = [text for text in body.decode().splitlines() if not text.startswith("#")]
    assert samples and all(line.fullmatch(text) for text in samples)
    assert 'surefoot_run_state{run="gpt-1",state="done"} 1' in samples
    assert 'surefoot_preemptions_total{run="gpt-1",notice="yes"} 1' in samples


def test_a_run_that_is_written_on_shows_what_is_new(tmp_path: Path) -> None:
    from surefoot.controller.store import Store

    facts = told_run()
    folder = tell(tmp_path, facts[:20])
    with serving(tmp_path) as served:
        before = served.get("/runs/gpt-1")["step"]
        store = Store(folder / "journal.db")
        journal = store.acquire("gpt-1", "test:1", now_ms=RealClock().now_ms())
        journal.extend(facts[20:])
        journal.release()
        store.close()
        until_ms = RealClock().now_ms() + 20_000
        while served.get("/runs/gpt-1")["state"] != "done":
            assert RealClock().now_ms() < until_ms
        assert served.get("/runs/gpt-1")["step"] > before


def test_the_document_names_every_route(served: Served) -> None:
    document = json.loads(served.ask("GET", "/api/v1/openapi.json", {})[2])
    assert {f"/api/v1{path.replace('gpt-1', '{run}')}" for path in PATHS} <= set(document["paths"])
    assert document["components"]["securitySchemes"]
    assert replace(Place(), port=1).url(1) == "http://127.0.0.1:1"
