"""The values of a job's `secrets:`, read when a run starts and kept in memory only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from surefoot.config import JobFile
from surefoot.errors import ConfigError

SHORTEST = 6
"""A shorter text cannot be masked in logs: too much else would be masked with it."""

MOST_BYTES = 64 * 1024


def read_secrets(job_file: JobFile, env: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets by the name that the worker finds them under.

    Raises ConfigError for one that is missing, too short or too long; it never tells a value.
    """
    return {
        name: _checked(job_file, name, _read(job_file, name, kind, where, env))
        for name, (kind, where) in job_file.secrets.items()
    }


def _read(job_file: JobFile, name: str, kind: str, where: str, env: Mapping[str, str]) -> str:
    if kind == "env":
        if where not in env:
            raise ConfigError(
                f"{job_file.path}: secrets.{name}: the variable {where} is not set here",
                hint=f"export {where}, or name a file: {name}: {{file: PATH}}",
            )
        return env[where]
    try:
        return Path(where).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{job_file.path}: secrets.{name}: {where}: {why}") from None


def _checked(job_file: JobFile, name: str, value: str) -> str:
    where = f"{job_file.path}: secrets.{name}"
    if len(value) < SHORTEST or value.isspace():
        raise ConfigError(
            f"{where}: has fewer than {SHORTEST} characters, too few to be masked in logs",
            hint="what is no secret belongs into `envs`",
        )
    if len(value.encode()) > MOST_BYTES or "\0" in value:
        raise ConfigError(f"{where}: is longer than {MOST_BYTES} bytes, or holds a NUL character")
    return value
