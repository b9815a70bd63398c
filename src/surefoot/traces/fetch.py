"""Downloads a public record: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from surefoot.errors import ConfigError, NoSpaceError, RetryLaterError, TraceError

CHUNK = 1 << 20
TIMEOUT_S = 60.0
"""Longest silence of the server."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that came whole: where it lies, its bytes and their SHA-256."""

    path: Path
    size: int
    sha256: str


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Fetched:
    """Download `url` to `target`, which appears only once it is whole and as expected.

    A file that was there before stays until then. Raises ConfigError for what is no web address,
    RetryLaterError when the server cannot be reached, answers 5xx or breaks off, TraceError when
    it has no such file or the bytes are others than expected, NoSpaceError when the disk is full.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"not a web address: {url!r}", hint="it begins with https://")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        done = _stream(url, part, size, timeout_s)
        _check(url, done, sha256, size)
        part.replace(target)
    except urllib.error.HTTPError as error:
        kind = RetryLaterError if error.code >= 500 or error.code == 429 else TraceError
        raise kind(
            f"{url}: the server says {error.code} {error.reason}",
            hint="try again later"
            if kind is RetryLaterError
            else "the record may have moved: see `surefoot traces list`, or name it with --url",
        ) from None
    except http.client.IncompleteRead as error:
        raise _broken(url, len(error.partial)) from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as e:
        why = getattr(e, "reason", None) or e
        raise RetryLaterError(
            f"{url}: no answer: {why}", hint="check the network, then fetch again"
        ) from None
    except OSError as error:
        raise NoSpaceError(
            f"{target}: cannot be written: {error.strerror or error}",
            hint="make room, or name another place with --out",
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return Fetched(target, done.size, done.sha256)


def _stream(url: str, part: Path, size: int | None, timeout_s: float) -> Fetched:
    request = urllib.request.Request(url, headers={"User-Agent": "surefoot"})
    digest, total = hashlib.sha256(), 0
    with urllib.request.urlopen(request, timeout=timeout_s) as answer, part.open("wb") as out:
        told = answer.headers.get("Content-Length")
        while block := answer.read(CHUNK):
            total += len(block)
            if size is not None and total > size:
                raise TraceError(f"{url}: longer than the {size} bytes that were expected")
            digest.update(block)
            out.write(block)
        if told is not None and total != int(told):
            raise _broken(url, total, int(told))
        out.flush()
        os.fsync(out.fileno())
    return Fetched(part, total, digest.hexdigest())


def _check(url: str, done: Fetched, sha256: str | None, size: int | None) -> None:
    if size is not None and done.size != size:
        raise TraceError(f"{url}: {done.size} bytes came, {size} were expected")
    if sha256 is not None and done.sha256 != sha256.lower():
        raise TraceError(
            f"{url}: its SHA-256 is {done.sha256}, expected was {sha256.lower()}",
            hint="it changed, or was changed on its way: nothing was kept",
        )


def _broken(url: str, came: int, told: int | None = None) -> RetryLaterError:
    of = f" of {told}" if told is not None else ""
    return RetryLaterError(
        f"{url}: the download broke off after {came}{of} bytes; nothing was kept",
        hint="fetch it again",
    )
