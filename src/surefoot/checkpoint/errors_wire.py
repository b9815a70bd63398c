"""How an error crosses from the writer process to the trainer: by name, message and hint."""

from __future__ import annotations

from typing import Any

from surefoot import errors
from surefoot.errors import CheckpointError, SurefootError


def error_json(error: BaseException) -> dict[str, str]:
    """Return an error as plain data; foreign ones become CheckpointError with their type named."""
    if isinstance(error, SurefootError):
        return {"name": type(error).__name__, "message": str(error), "hint": error.hint}
    message = f"{type(error).__name__}: {error}"
    return {"name": "CheckpointError", "message": message, "hint": ""}


def error_from_json(body: dict[str, Any]) -> SurefootError:
    """Return the error that `error_json` took apart."""
    kind = getattr(errors, str(body.get("name")), CheckpointError)
    return kind(str(body.get("message")), hint=str(body.get("hint", "")))
