"""Every error Surefoot raises, typed by what the caller should do next.

SurefootError                 has .hint: the command or edit that helps
├── RetryLaterError           do the same again, later
│   └── ThrottledError        the cloud asked us to slow down
├── CapacityError             try another pool
├── AskUserError              only the user can go on
│   ├── ConfigError           a file, key or value is wrong
│   ├── QuotaError            the account may not hold this many
│   ├── AuthError             credentials are missing, wrong or expired
│   ├── LimitError            a budget, price cap or deadline forbids it
│   └── NotBuiltError         Surefoot cannot do this yet
├── TraceError                a history file cannot be trusted (file, row, value)
├── CheckpointError           a save or a load failed
│   ├── CorruptError          fall back to the checkpoint before
│   └── NoSpaceError          the store is full or out of quota
├── UserCodeError             the training script or its setup failed on a healthy VM
└── FencedError               somebody newer is in charge: stop at once
"""

from __future__ import annotations


class SurefootError(Exception):
    """Base of all errors; `hint` says what to type or change next (may be empty)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class RetryLaterError(SurefootError):
    """The same call may work later."""


class ThrottledError(RetryLaterError):
    """The cloud asked us to slow down."""


class CapacityError(SurefootError):
    """This pool has no VM to give now: try another pool."""


class AskUserError(SurefootError):
    """Only the user can resolve this."""


class ConfigError(AskUserError):
    """A configuration file, key or value is wrong; the message names all three."""


class QuotaError(AskUserError):
    """The account's quota is below the request; not worth a retry in this place."""


class AuthError(AskUserError):
    """Credentials are missing, wrong or expired."""


class LimitError(AskUserError):
    """A budget, price cap or deadline that the user set forbids this."""


class NotBuiltError(AskUserError):
    """Surefoot does not do this yet."""


class TraceError(SurefootError):
    """A trace or history file is malformed; the message names file, row and value."""


class CheckpointError(SurefootError):
    """A checkpoint could not be saved or loaded."""


class CorruptError(CheckpointError):
    """A checkpoint's bytes are not what was written: fall back to the one before."""


class NoSpaceError(CheckpointError):
    """The store refused bytes for want of space or quota."""


class UserCodeError(SurefootError):
    """The user's script or setup failed on a healthy VM."""


class FencedError(SurefootError):
    """A newer controller or generation is in charge: stop at once."""
