"""Asking a server (`surefoot dashboard`) instead of reading a run's folder: `--url`."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Pause
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from surefoot.cli import frame, live
from surefoot.errors import AuthError, ConfigError, SurefootError
from surefoot.report.clean import clean
from surefoot.report.numbers import clock, number, rows_of
from surefoot.report.token import default_file, read_token
from surefoot.report.words import Tone

TIMEOUT_S = 30
SILENCE_S = 60
"""A stream says something every 15 s; one that is silent for longer is broken."""
LOOK_S = 0.5
PAGE = 200

Url = Annotated[
    str | None, typer.Option("--url", help="Ask this server; OUT is then the name of a run.")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="The server's token, mode 0600.")
]


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address and the token that it wants. Never follows a redirection."""

    scheme: str
    host: str
    port: int
    prefix: str
    token: str

    @contextmanager
    def ask(
        self, path: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield an answer of 200. Raises AuthError, ConfigError or SurefootError for others."""
        link = self._link(timeout_s)
        try:
            link.request(
                method,
                f"{self.prefix}/api/v1{path}",
                headers={"Authorization": f"Bearer {self.token}", "Accept": "*/*"},
            )
            answer = link.getresponse()
            if answer.status != 200:
                raise _refused(answer.status, answer.read(1 << 20))
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise SurefootError(
                f"{self.scheme}://{self.host}:{self.port}: {error or type(error).__name__}",
                hint="is `surefoot dashboard` running there? a tunnel: ssh -L 8787:127.0.0.1:8787",
            ) from error
        finally:
            link.close()

    def get(self, path: str, *, method: str = "GET", **query: Any) -> Any:
        """Return the JSON of an answer. Raises as `ask`."""
        told = {key: _word(value) for key, value in query.items() if value is not None}
        with self.ask(path + (f"?{urlencode(told)}" if told else ""), method=method) as answer:
            try:
                return json.loads(answer.read())
            except ValueError as error:
                raise SurefootError(f"{self.host} answered no JSON") from error

    def _link(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.scheme == "http":
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        context = ssl.create_default_context()  # SSL_CERT_FILE names a certificate of one's own
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)


def open_server(url: str, token_file: Path | None) -> Server:
    """Return the server at an address. Raises ConfigError for one that would leak the token."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"--url: {error}") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(
            f"--url: {clean(url)!r} is no address", hint="--url http://127.0.0.1:8787"
        )
    if parts.username or parts.password:
        raise ConfigError("--url: no user or password belongs here", hint="use --token-file")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigError(
            f"--url: the token would travel to {host} in the clear",
            hint="use https, or a tunnel: ssh -L 8787:127.0.0.1:8787 HOST",
        )
    port = port or (443 if parts.scheme == "https" else 80)
    token = read_token(token_file or default_file())
    return Server(parts.scheme, host, port, parts.path.rstrip("/"), token)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(status: int, body: bytes) -> SurefootError:
    try:
        told = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        told = f"the server answered {status}"
    if status == 401:
        return AuthError(told, hint="name the server's token by --token-file")
    if status in (404, 409, 422):
        return ConfigError(told, hint="see what is there: surefoot status --url URL")
    return SurefootError(told)


def path_of(server: Server, run: Path | None) -> str:
    """Return the path of a run, by its name; without a name the newest there is."""
    if run is not None:
        return f"/runs/{quote(str(run), safe='')}"
    known = server.get("/runs").get("runs") or []
    if not known:
        raise ConfigError("there is no run on this server")
    return f"/runs/{quote(str(known[0]['run']), safe='')}"


def status(url: str, token_file: Path | None, run: Path | None, *, as_json: bool) -> None:
    """Say how a run on a server stands."""
    server = open_server(url, token_file)
    body = server.get(path_of(server, run))
    if as_json:
        frame.print_json(body)
        return
    console = frame.out()
    console.print(Text(f"{clean(body['name'])} ({clean(body['run'])}): {body['state']}", "bold"))
    total = f" of {number(body['total_steps'])}" if body["total_steps"] else ""
    held = sum(v for row in body["vms"] for v in row.values() if isinstance(v, int))
    parts = [f"step {number(body['step'])}{total}", f"{body['members']} of {held} VMs train"]
    if body["eta_ms"] and body["last_event_ms"]:
        parts.append(f"about {clock((body['eta_ms'] - body['last_event_ms']) / 1000)} to go")
    console.print(Text(" · ".join(parts)))
    if body["reason"]:
        console.print(Text(clean(body["reason"], limit=2_000), "yellow"))
    table = Table.grid(padding=(0, 2))
    for label, value in rows_of(body["figures"]):
        table.add_row(Text(label, "dim"), Text(value))
    console.print(table)
    for entry in body["events"]:
        console.print(Text(f"  {clean(entry['text'])}"))


def stop(url: str, token_file: Path | None, run: Path | None, *, wait: int, as_json: bool) -> None:
    """Ask a server to stop a run, and wait for its end."""
    server = open_server(url, token_file)
    path = path_of(server, run)
    body = server.get(f"{path}/stop", method="POST")
    if wait > 0 and body["did"].startswith("asked"):
        for _ in range(int(wait / LOOK_S)):
            now = server.get(path)
            if now["led_by"] is None:
                body = {"run": now["run"], "did": "stopped", "state": now["state"]}
                break
            Pause().wait(LOOK_S)
        else:
            raise SurefootError(f"{body['did']} {wait} s ago, and it still leads the run")
    if as_json:
        frame.print_json(body)
        return
    frame.out().print(
        Text(f"{clean(body['run'])}: {clean(body['did'])}; its state: {body['state']}")
    )


def events(
    url: str,
    token_file: Path | None,
    run: Path | None,
    *,
    follow: bool,
    every: bool,
    kinds: set[str],
    as_json: bool,
) -> None:
    """Tell what happened in a run on a server, and what happens."""
    server = open_server(url, token_file)
    path = path_of(server, run)
    console, began_ms = frame.out(), None
    for row in _rows(server, path, follow=follow, body=as_json):
        began_ms = row["at_ms"] if began_ms is None else began_ms
        if kinds and row["kind"] not in kinds:
            continue
        if as_json:
            told = {key: row[key] for key in ("seq", "at_ms", "kind", "body")}
            print(json.dumps(told, ensure_ascii=False), flush=True)
        elif row["text"] or every or kinds:
            _show_event(console, row, began_ms)


def _show_event(console: Console, row: dict[str, Any], began_ms: int) -> None:
    tone = Tone(row["tone"]) if row["tone"] in {t.value for t in Tone} else Tone.PLAIN
    at_s, text = (row["at_ms"] - began_ms) / 1000, clean(row["text"] or row["kind"])
    console.print(Text(f"{row['seq']:>6} {at_s:>10.1f} s  {text}", live.STYLES[tone]))


def _rows(server: Server, path: str, *, follow: bool, body: bool) -> Iterator[dict[str, Any]]:
    """Yield the events there are, and with `follow` those to come until the run ends."""
    after = 0
    while True:
        page = server.get(f"{path}/events", after=after, limit=PAGE, body=body)
        yield from page["events"]
        if not page["events"]:
            break
        after = page["next_after"]
    if not follow:
        return
    with server.ask(f"{path}/events/stream?after={after}", timeout_s=SILENCE_S) as stream:
        for line in stream:
            if line.startswith(b"event: end"):
                return
            if line.startswith(b"data: "):
                row = json.loads(line[6:])
                if body:
                    page = server.get(f"{path}/events", after=row["seq"] - 1, limit=1, body=True)
                    row = page["events"][0] if page["events"] else {**row, "body": {}}
                yield row


def logs(
    url: str,
    token_file: Path | None,
    run: Path | None,
    vm: str | None,
    *,
    follow: bool,
    kind: str,
    tail: int,
    as_json: bool,
) -> None:
    """Show the logs of a run's VMs that lie on the server."""
    server = open_server(url, token_file)
    path = path_of(server, run)
    seen: dict[str, int] = {}
    found: dict[str, list[str]] = {}
    for row in _wanted(server, path, vm, kind):
        page = server.get(_log(path, row), kind=kind, tail=max(1, min(tail, 5_000)))
        seen[row["instance_id"]] = page["next_offset"]
        found[row["vm"]] = page["lines"]
        if not as_json:
            _show_lines(row["vm"], page["lines"])
    if as_json:
        frame.print_json(found)
        return
    while follow and server.get(path)["led_by"] is not None:
        Pause().wait(LOOK_S)
        for row in _wanted(server, path, vm, kind):
            begin = seen.get(row["instance_id"], 0)
            if row["size_bytes"] > begin:
                page = server.get(_log(path, row), kind=kind, offset=begin)
                seen[row["instance_id"]] = page["next_offset"]
                _show_lines(row["vm"], page["lines"])


def _wanted(server: Server, path: str, vm: str | None, kind: str) -> list[dict[str, Any]]:
    """Return the log files of a kind. Raises ConfigError for a VM that is not there."""
    rows = [row for row in server.get(f"{path}/logs")["logs"] if row["kind"] == kind]
    fit = [row for row in rows if vm is None or vm in (row["vm"], row["instance_id"])]
    if vm is not None and not fit:
        there = ", ".join(f"{row['vm']} ({row['instance_id']})" for row in rows) or "none"
        raise ConfigError(f"there is no VM {clean(vm)!r}", hint=f"VMs with logs: {there}")
    return fit


def _log(path: str, row: dict[str, Any]) -> str:
    return f"{path}/logs/{quote(str(row['instance_id']), safe='')}"


def _show_lines(name: str, lines: list[str]) -> None:
    console = frame.out()
    for line in lines:
        text = clean(line, limit=4_000, lines=True)
        console.print(Text.assemble((f"{clean(name)} | ", "dim"), text))
