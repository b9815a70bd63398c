"""A script that knows nothing of Surefoot: how it is asked to save, and what it shows of itself.

A request to save reaches it as a file, as a signal, or as an HTTP POST. That it has saved is seen
by a file that it removes or touches, by a checkpoint that appears, or by the HTTP reply. Steps are
read from a file or from its output. The page docs/howto/plain-script.md is the contract.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from surefoot.core.wire import Message, Saved, Stepped
from surefoot.errors import ConfigError
from surefoot.providers.local.processes import PROC, value_of

SIGNALS = {"SIGUSR1": signal.SIGUSR1, "SIGUSR2": signal.SIGUSR2}
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "busybox"})

_SAME_DEADLINE_S = 1.5
"""Two requests whose deadlines are this close come from one notice."""

_SETTLED_S = 0.5
"""A checkpoint that has not changed for this long counts as written."""

_LOOK_S = 0.2
_READ_BYTES = 1 << 20
_HTTP_LIMIT_S = 900.0

_log = logging.getLogger("surefoot.agent")


@dataclass(frozen=True, slots=True)
class ScriptTerms:
    """How to speak with a script. `save`: "" (file, and SIGUSR1 to whom catches it), file,
    SIGUSR1, SIGUSR2, http://HOST:PORT/PATH, or none. `saved`: a pattern of the checkpoint's path.
    `step`: a file with a number in it, or /a regular expression/ over lines of output, whose
    group `step` (or the first) is the number of steps done and whose group `loss` is a loss.
    """

    save: str = ""
    saved: str = ""
    step: str = ""

    def __post_init__(self) -> None:
        plain = ("", "file", "none", *SIGNALS)
        if self.save not in plain and not self.save.startswith("http://"):
            raise ConfigError(
                f"script.save: must be file, {', '.join(SIGNALS)}, none or http://..., not"
                f" {self.save!r}"
            )
        if "://" in self.saved.removeprefix("file://"):
            raise ConfigError(
                f"script.saved: {self.saved!r}: only files are looked at",
                hint="let the script touch $SUREFOOT_SAVED_FILE once it has saved",
            )
        if self.pattern is not None and self.pattern.groups < 1:
            raise ConfigError(f"script.step: {self.step!r} needs a group around the number")

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """The regular expression, where `step` is one. Raises ConfigError for a wrong one."""
        if len(self.step) < 2 or not (self.step[0] == self.step[-1] == "/"):
            return None
        try:
            return re.compile(self.step[1:-1], re.MULTILINE)
        except re.error as error:
            raise ConfigError(f"script.step: {self.step!r}: {error}") from error

    @staticmethod
    def read(text: str) -> ScriptTerms:
        """Read SUREFOOT_SCRIPT, a JSON object. Raises ConfigError."""
        try:
            return ScriptTerms(**json.loads(text or "{}"))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"SUREFOOT_SCRIPT: {error}") from error


@dataclass(slots=True)
class _Wish:
    """A request that is not fulfilled yet."""

    reason: str
    asked_s: float
    deadline_s: float | None


class Script:
    """The talk with one script, over all its starts in this VM."""

    def __init__(self, terms: ScriptTerms, folder: Path, workdir: Path, log: Path) -> None:
        self._terms, self._workdir, self._log = terms, workdir, log
        self._request = folder / "save.request"
        self._answer = folder / "saved"
        self._steps = folder / "step"
        self._place = _under(workdir, terms.step) if terms.step and not terms.pattern else None
        self._replies: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._wish: _Wish | None = None
        self._deadlines: list[float] = []
        self._known: dict[str, tuple[int, int]] = {}
        self._fresh: tuple[str, tuple[int, int], float] | None = None
        self._answered_ns = self._stepped_ns = 0
        self._offset = 0
        self._looked_s = 0.0
        self._step_s: float | None = None
        self._step_ms = 0
        self.step = 0
        """Steps done, as far as the script shows it."""
        self.stepped = False
        """Whether the present start of the script has shown a step."""
        self.unanswered = 0
        """Requests in a row that nothing came of."""
        self.saved_s = -1.0
        """When the newest checkpoint was seen to be whole (monotonic)."""

    @property
    def tells_steps(self) -> bool:
        """Whether the script is known to show its steps."""
        return bool(self._terms.step) or self._stepped_ns > 0

    @property
    def asked(self) -> bool:
        """Whether a request waits to be fulfilled."""
        return self._wish is not None

    def environment(self) -> dict[str, str]:
        """Return what the script is told."""
        return {
            "SUREFOOT_SAVE_FILE": str(self._request),
            "SUREFOOT_SAVED_FILE": str(self._answer),
            "SUREFOOT_STEP_FILE": str(self._steps),
        }

    def begin(self) -> None:
        """The script is about to start (again): what it showed before is known."""
        for path in (self._request, self._answer, self._steps):
            path.unlink(missing_ok=True)
        self._wish, self._fresh, self.stepped = None, None, False
        self._step_s, self._answered_ns, self._stepped_ns = None, 0, 0
        self._known = self._seen()
        with contextlib.suppress(OSError):
            self._offset = self._log.stat().st_size

    # -- asking ----------------------------------------------------------------------------------

    def ask(
        self, reason: str, left_ms: int | None, pids: Collection[int], *, rank: int | None = None
    ) -> bool:
        """Ask for a save; returns whether there is a way to. `rank`: whom signals go to."""
        now_s = time.monotonic()
        deadline_s = None if left_ms is None else now_s + left_ms / 1000
        if self._is_known(deadline_s):
            return True
        save, ways = self._terms.save, 0
        if save in ("", "file"):
            self._write_request(reason, left_ms)
            ways += 1
        if save in ("", *SIGNALS):
            ways += self._signal(SIGNALS[save or "SIGUSR1"], pids, rank)
        if save.startswith("http://"):
            body = {"reason": reason, "left_ms": left_ms}
            threading.Thread(target=self._post, args=(save, body), daemon=True).start()
            ways += 1
        if not ways:
            if save in SIGNALS:
                _log.warning("nobody catches %s: no save can be asked for", save)
            return False
        self._wish = _Wish(reason, now_s, deadline_s)
        return True

    def give_up(self) -> None:
        """Nothing came of the request: forget it."""
        if self._wish is not None:
            _log.warning("the script did not save when asked (%s)", self._wish.reason)
            self._wish = None
            self.unanswered += 1
            self._request.unlink(missing_ok=True)

    def _is_known(self, deadline_s: float | None) -> bool:
        """Whether the same has been asked already; notes the deadline if not."""
        if deadline_s is None:
            return self._wish is not None
        if any(abs(deadline_s - known) <= _SAME_DEADLINE_S for known in self._deadlines):
            return True
        self._deadlines = [*self._deadlines[-8:], deadline_s]
        if self._wish is None:
            return False
        self._wish.deadline_s = deadline_s  # the save under way is the one
        return True

    def _write_request(self, reason: str, left_ms: int | None) -> None:
        new = self._request.with_suffix(".new")
        new.write_text(json.dumps({"reason": reason, "left_ms": left_ms}) + "\n")
        new.replace(self._request)

    def _signal(self, number: signal.Signals, pids: Collection[int], rank: int | None) -> int:
        """Signal the trainers that catch it, never anyone whom it would kill."""
        catching = {pid for pid in pids if catches(pid, number) and _is_rank(pid, rank)}
        tops = [pid for pid in catching if _parent(pid) not in catching]
        for pid in tops:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(tops)

    def _post(self, url: str, body: Mapping[str, Any]) -> None:
        """Ask over HTTP (own thread): the reply comes once the save is durable."""
        parts = urlsplit(url)
        link = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=_HTTP_LIMIT_S
        )
        status, answer = 0, {}
        try:
            link.request("POST", parts.path or "/", json.dumps(body))
            reply = link.getresponse()
            status = reply.status
            answer = json.loads(reply.read(_READ_BYTES) or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            _log.warning("%s: %s", url, error)
        finally:
            link.close()
        self._replies.put((status, answer if isinstance(answer, dict) else {}))

    # -- looking ---------------------------------------------------------------------------------

    def look(self, now_s: float) -> list[Message]:
        """Return what the script has shown since the last look: steps, durable checkpoints."""
        if now_s - self._looked_s < _LOOK_S:
            return []
        self._looked_s = now_s
        return [*self._look_steps(now_s), *self._look_saved(now_s)]

    def _look_steps(self, now_s: float) -> list[Message]:
        step, loss = self._from_output() if self._terms.pattern else (None, None)
        for path in (self._steps, self._place):
            step = self._from_file(path) if path is not None and step is None else step
        if step is None or (self.stepped and step <= self.step):
            return []
        if self._step_s is not None and step > self.step:
            self._step_ms = round(1000 * (now_s - self._step_s) / (step - self.step))
        self._step_s, self.step, self.stepped = now_s, step, True
        return [Stepped(step, self._step_ms, loss)]

    def _from_file(self, path: Path) -> int | None:
        try:
            stat = path.stat()
            if stat.st_mtime_ns == self._stepped_ns:
                return None
            numbers = re.findall(r"\d+", path.read_text())
        except (OSError, UnicodeDecodeError):
            return None
        if not numbers:
            return None
        self._stepped_ns = stat.st_mtime_ns
        return int(numbers[-1])

    def _from_output(self) -> tuple[int | None, float | None]:
        pattern = self._terms.pattern
        assert pattern is not None
        try:
            with self._log.open("rb") as out:
                out.seek(self._offset)
                data = out.read(_READ_BYTES)
        except OSError:
            return None, None
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        found = list(pattern.finditer(data[:whole].decode(errors="replace")))
        if not found:
            return None, None
        groups = found[-1].groupdict()
        number, loss = groups.get("step") or found[-1].group(1), groups.get("loss")
        try:
            return int(number.replace(",", "")), None if loss is None else float(loss)
        except (ValueError, AttributeError):
            return None, None

    def _look_saved(self, now_s: float) -> list[Message]:
        name = self._by_reply()
        name = self._by_files() if name is None else name
        name = self._by_pattern(now_s) if name is None else name
        if name is None:
            return []
        wish, self._wish = self._wish, None
        self.saved_s = now_s
        step = _last_number(name)
        step = self.step if step is None else step
        if wish is None:
            return [Saved(step)]
        self.unanswered = 0
        self._request.unlink(missing_ok=True)
        margin = None if wish.deadline_s is None else round(1000 * (wish.deadline_s - now_s))
        took_ms = round(1000 * (now_s - wish.asked_s))
        emergency = wish.deadline_s is not None
        return [Saved(step, persist_ms=took_ms, emergency=emergency, margin_ms=margin)]

    def _by_reply(self) -> str | None:
        """Return the step that a reply names (or the present one) once it says: saved."""
        name = None
        while not self._replies.empty():
            status, answer = self._replies.get()
            if 200 <= status < 300:
                name = str(answer.get("step", self.step))
            else:
                self.give_up()
        return name

    def _by_files(self) -> str | None:
        """Return the text of the answer file, or "" where the request was taken away."""
        try:
            changed_ns, text = self._answer.stat().st_mtime_ns, self._answer.read_text()
        except (OSError, UnicodeDecodeError):
            changed_ns, text = 0, ""
        if changed_ns > self._answered_ns:
            self._answered_ns = changed_ns
            return text
        asked = self._wish is not None and self._terms.save in ("", "file")
        return "" if asked and not self._request.exists() else None

    def _by_pattern(self, now_s: float) -> str | None:
        """Return the newest checkpoint's name once it has not changed for a moment."""
        if not self._terms.saved:
            return None
        seen = self._seen()
        new = {path: mark for path, mark in seen.items() if self._known.get(path) != mark}
        if not new:
            self._fresh = None
            return None
        path, mark = max(new.items(), key=lambda item: item[1])
        if self._fresh is None or self._fresh[:2] != (path, mark):
            self._fresh = (path, mark, now_s)
            return None
        if now_s - self._fresh[2] < _SETTLED_S:
            return None
        self._known, self._fresh = seen, None
        return Path(path).name

    def _seen(self) -> dict[str, tuple[int, int]]:
        """Return the checkpoints that there are: path -> (changed ns, size or entries)."""
        if not self._terms.saved:
            return {}
        pattern = _under(self._workdir, self._terms.saved.removeprefix("file://"))
        found = {}
        for path in Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))):
            with contextlib.suppress(OSError):
                found[str(path)] = _mark_of(path)
        return found


def _mark_of(path: Path) -> tuple[int, int]:
    stat = path.stat()
    if not path.is_dir():
        return stat.st_mtime_ns, stat.st_size
    inside = [entry.stat() for entry in path.iterdir()]
    newest = max([stat.st_mtime_ns, *(entry.st_mtime_ns for entry in inside)])
    return newest, sum(entry.st_size for entry in inside) + len(inside)


def _under(folder: Path, text: str) -> Path:
    return Path(os.path.abspath(folder / Path(text).expanduser()))  # noqa: PTH100


def _last_number(text: str) -> int | None:
    numbers = re.findall(r"\d+", text)
    return int(numbers[-1]) if numbers else None


# -- processes -----------------------------------------------------------------------------------


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    mask = _status(pid).get("SigCgt", "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def roots(pids: Collection[int]) -> list[int]:
    """Return the uppermost of these processes that are no shells: whom to tell to end.

    A shell that waits for a command acts on a signal only after it, and hands nothing on.
    """
    shells = {pid for pid in pids if _status(pid).get("Name") in SHELLS}
    inside = set(pids) - shells

    def above(pid: int) -> bool:
        seen = set()
        parent = _parent(pid)
        while parent in pids and parent not in seen:
            if parent in inside:
                return True
            seen.add(parent)
            parent = _parent(parent)
        return False

    return [pid for pid in inside if not above(pid)] or list(shells)


def _is_rank(pid: int, rank: int | None) -> bool:
    return rank is None or value_of(pid, "RANK") == str(rank)


def _parent(pid: int) -> int:
    return int(_status(pid).get("PPid", "0"))


def _status(pid: int) -> dict[str, str]:
    wanted: dict[str, str] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            key, _, value = line.partition(":")
            wanted[key] = value.strip()
    return wanted
