"""The API's token in a file that only its owner can read; server and command line share it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from surefoot.errors import AuthError, ConfigError


def default_file() -> Path:
    """Return where the token lies unless another file is named."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "surefoot" / "api.token"


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises AuthError when there is none, ConfigError when others may read the file.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise AuthError(
            f"there is no token file {path}",
            hint="copy it from the machine that runs `surefoot dashboard`; name it by --token-file",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise AuthError(f"{path} cannot be read ({error})") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"others may read the file {path} (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    if len(text) < 16 or not text.isascii() or any(c.isspace() for c in text):
        raise AuthError(
            f"there is no token in the file {path}", hint="remove the file; a new one is made"
        )
    return text


def make_token(path: Path) -> str:
    """Return the token in a file, made (mode 0600) where there is none. Raises as `read_token`."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            return read_token(path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(secrets.token_urlsafe(32) + "\n")
    return read_token(path)
