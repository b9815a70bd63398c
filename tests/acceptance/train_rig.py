"""A small hub and VMs of real processes on loopback, for the acceptance tests of training."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.core.wire import Beat, Generation, Hello, Message, StoreUp, decode, encode

SECRET = "rig-secret"

WORKER = Path(__file__).with_name("train_worker.py")


@dataclass
class Heard:
    at_s: float
    token: str
    message: Message


class Hub:
    """Speaks wire.py to agents; decides nothing: the test says what to send."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.gone: dict[str, float] = {}
        self.lines: dict[str, socket.socket] = {}
        self.members: Generation | None = None
        self.changed = threading.Condition()
        self.closed = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.closed = True
        self.listener.close()
        for line in list(self.lines.values()):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def send(self, token: str, message: Message) -> None:
        with contextlib.suppress(OSError, KeyError):
            self.lines[token].sendall(encode(message))

    def form(self, number: int, vms: list[Vm], old: Sequence[Vm] = (), **more: Any) -> float:
        """Send a generation to its members and the former ones; returns when, monotonic s."""
        order = Generation(
            number, tuple(v.token for v in vms), tuple(v.address for v in vms), **more
        )
        self.members = order
        now_s = time.monotonic()
        for vm in {v.token: v for v in [*vms, *old]}.values():
            self.send(vm.token, order)
        return now_s

    def wait(
        self, kind: type, *, timeout_s: float = 30, since: int = 0, **match: Any
    ) -> tuple[float, Any]:
        """Return (when, message) of the first message of a kind whose fields are as given."""
        token = match.pop("token", None)

        def found() -> Heard | None:
            for item in self.heard[since:]:
                message = item.message
                mine = isinstance(message, kind) and token in (None, item.token)
                if mine and all(getattr(message, k) == v for k, v in match.items()):
                    return item
            return None

        item = self.until(found, f"{kind.__name__} {match}", timeout_s)
        return item.at_s, item.message

    def wait_step(self, step: int, timeout_s: float = 40) -> None:
        from surefoot.core.wire import Stepped

        def found() -> bool:
            return any(
                isinstance(h.message, Stepped) and h.message.step >= step for h in self.heard
            )

        self.until(found, f"step {step}", timeout_s)

    def until(self, found: Callable[[], Any], what: str, timeout_s: float = 30) -> Any:
        limit_s = time.monotonic() + timeout_s
        with self.changed:
            while True:
                item = found()
                if item:
                    return item
                left_s = limit_s - time.monotonic()
                if left_s <= 0:
                    recent = [h.message for h in self.heard if not isinstance(h.message, Beat)]
                    raise AssertionError(f"no {what} in {timeout_s} s; last: {recent[-12:]}")
                self.changed.wait(min(left_s, 0.5))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self.listener.accept()
                if self.closed:  # a thread in accept() holds a closed listener for one more
                    line.close()
                    return
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        token = ""
        with contextlib.suppress(OSError), line.makefile("rb") as lines:
            for raw in lines:
                message = decode(raw)
                if isinstance(message, Hello):
                    assert message.secret == SECRET
                    token = message.token
                    self.lines[token] = line
                if message is not None:
                    self._note(token, message)
        with self.changed:
            self.gone[token] = time.monotonic()
            self.changed.notify_all()

    def _note(self, token: str, message: Message) -> None:
        if isinstance(message, StoreUp) and self.members is not None:
            for member in self.members.tokens:
                if member != token:
                    self.send(member, message)
        with self.changed:
            self.heard.append(Heard(time.monotonic(), token, message))
            self.changed.notify_all()


class Vm:
    """An agent and its worker on a loopback address of their own."""

    def __init__(self, hub: Hub, number: int, folder: Path, **env: str) -> None:
        self.token, self.address = f"vm{number}", f"127.0.1.{10 + number}"
        self.folder = folder / self.token
        self.folder.mkdir()
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "surefoot.train.agent"],
            env={
                **os.environ,
                "SUREFOOT_HUB": f"127.0.0.1:{hub.port}",
                "SUREFOOT_TOKEN": self.token,
                "SUREFOOT_SECRET": SECRET,
                "SUREFOOT_RUN": "rig",
                "SUREFOOT_ADDRESS": self.address,
                "SUREFOOT_COMMAND": f"{sys.executable} {WORKER}",
                "SUREFOOT_CHECKPOINT": str(folder / "checkpoints"),
                "SUREFOOT_VM_DIR": str(self.folder),
                "SUREFOOT_LEASE_S": "60",
                "SUREFOOT_GRACE_S": "8",
                "RIG_LOG": str(folder / f"{self.token}.jsonl"),
                "OMP_NUM_THREADS": "1",
                **env,
            },
            start_new_session=True,
        )

    def worker_pids(self) -> list[int]:
        text = (self.folder / "agent.log").read_text()
        return [int(w.split("pid ")[1]) for w in text.splitlines() if "worker started" in w]

    def signal(self, number: int) -> float:
        """Signal all of the VM's processes; returns when."""
        now_s = time.monotonic()
        for group in (*self.worker_pids(), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
        return now_s

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def read_log(folder: Path, vm: Vm) -> list[dict[str, Any]]:
    path = folder / f"{vm.token}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
