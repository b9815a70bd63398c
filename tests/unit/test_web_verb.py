"""`surefoot dashboard` as a process: TLS, a token that shows nowhere, and stopping a live run."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from told_run import told_run

pytest.importorskip("fastapi", reason="needs the extra `web`")

from web_world import tell

from surefoot.cli import main as cli

SUREFOOT = [sys.executable, "-c", "from surefoot.cli.main import run; run()"]
LEADER = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from told_run import START
from surefoot.controller.clock import RealClock
from surefoot.controller.recover import this_process
from surefoot.controller.store import Store
from surefoot.core.event import RunEnded
store = Store(sys.argv[2])
journal = store.acquire("gpt-1", this_process(), now_ms=RealClock().now_ms(), lease_ms=60_000)
def stop(*_):
    journal.append(RunEnded(START + 90_000, "stopped", "stopped by SIGTERM"),
                   now_ms=RealClock().now_ms())
    journal.release()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("leads", flush=True)
time.sleep(100)
"""


@contextmanager
def dashboard(root: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run the verb over `root`; yield the process and where it says that it is."""
    command = [*SUREFOOT, "dashboard", str(root), "--port", "0", "--json", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("{"), line + process.stdout.read()
        yield process, json.loads(line)
    finally:
        process.terminate()
        process.wait(30)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key."""
    x509 = pytest.importorskip("cryptography.x509", reason="makes the certificate")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now()
    made: Any = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert, keys = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    none = serialization.NoEncryption()
    keys.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
    return cert, keys


def test_it_serves_over_tls_and_its_token_shows_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(tmp_path)
    cert, key = certificate(tmp_path)
    file = tmp_path / "state" / "api.token"
    more = ["--token-file", str(file), "--tls-cert", str(cert), "--tls-key", str(key)]
    with dashboard(tmp_path, *more) as (process, place):
        token = file.read_text().strip()
        assert place["url"].startswith("https://127.0.0.1:")
        assert file.stat().st_mode & 0o777 == 0o600
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert token not in json.dumps(place) and token.encode() not in arguments
        asked = ["status", "--url", place["url"], "--token-file", str(file), "--json"]
        assert cli.main(asked) == 1  # nobody vouches for this certificate
        assert "certificate" in capsys.readouterr().out
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert cli.main(asked) == 0
        assert json.loads(capsys.readouterr().out)["run"] == "gpt-1"
        context = ssl.create_default_context(cafile=str(cert))
        word = place["open"].partition("#once=")[2]
        ask = urllib.request.Request(
            f"{place['url']}/session", method="POST", headers={"Authorization": f"Once {word}"}
        )
        with urllib.request.urlopen(ask, context=context, timeout=30) as answer:
            assert "Secure" in answer.headers["set-cookie"]
    assert process.stdout is not None
    said = process.stdout.read()
    assert token not in said and word not in said and "Traceback" not in said


def test_a_run_that_is_led_here_is_stopped_through_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tell(tmp_path, told_run(upto_s=80))
    here = str(Path(__file__).parent)
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, here, str(folder / "journal.db")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert leader.stdout is not None and leader.stdout.readline() == "leads\n"
        file = tmp_path / "api.token"
        with dashboard(folder, "--token-file", str(file)) as (_, place):
            asked = ["--url", place["url"], "--token-file", str(file), "--json"]
            assert cli.main(["status", "gpt-1", *asked]) == 0
            status = json.loads(capsys.readouterr().out)
            assert status["state"] == "under way"
            assert status["led_by"].startswith(f"process {leader.pid} on ")
            assert cli.main(["stop", "gpt-1", *asked]) == 0
            body = json.loads(capsys.readouterr().out)
        assert (body["did"], body["state"]) == ("stopped", "stopped")
        assert leader.wait(30) == 0
    finally:
        if leader.poll() is None:
            leader.kill()
            leader.wait(10)


def test_what_cannot_be_served_is_said_before_anything_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for arguments, told in (
        ([str(tmp_path / "nowhere")], "no such folder"),
        ([str(tmp_path), "--host", "0.0.0.0"], "in the clear"),
        ([str(tmp_path), "--tls-cert", "none.pem"], "no such file"),
    ):
        assert cli.main(["dashboard", *arguments]) == 2
        assert told in capsys.readouterr().err
    assert os.environ["XDG_STATE_HOME"]
