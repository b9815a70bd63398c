"""Rows of (instant, value) from the outside world made into sorted, gap-aware steps."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from itertools import pairwise

from surefoot.core.trace import Step
from surefoot.errors import TraceError
from surefoot.traces.times import instant_ms


class TraceWarning(UserWarning):
    """Something in a history file was mended or assumed; the message says what."""


Row = tuple[int, int | None, int]
"""(at_ms, value, row number in the file)."""


def steps_of(rows: Sequence[Row], *, where: str, gaps: bool = False) -> tuple[Step, ...]:
    """Return sorted steps without repeats of one value.

    Equal duplicates count once; two values for one instant raise TraceError. With `gaps`, rows
    on a regular grid that miss more than 3 ticks leave an unknown stretch.
    """
    ordered = _unique(rows, where)
    tick = _tick_ms(ordered) if gaps else None
    steps: list[Step] = []
    for index, (at_ms, value, _) in enumerate(ordered):
        before = ordered[index - 1][0] if index else at_ms
        if tick is not None and at_ms - before > 3 * tick:
            _append(steps, Step(before + tick, None))
        _append(steps, Step(at_ms, value))
    return tuple(steps)


def _append(steps: list[Step], step: Step) -> None:
    if not steps or steps[-1].value != step.value:
        steps.append(step)


def _unique(rows: Sequence[Row], where: str) -> list[Row]:
    ordered = sorted(rows, key=lambda r: (r[0], r[2]))
    if [r[2] for r in ordered] != [r[2] for r in rows]:
        warnings.warn(f"{where}: rows were not in order of time and were sorted", TraceWarning, 4)
    out: list[Row] = []
    for row in ordered:
        if out and out[-1][0] == row[0]:
            if out[-1][1] != row[1]:
                raise TraceError(
                    f"{where}: rows {out[-1][2]} and {row[2]} give one instant two values: "
                    f"{out[-1][1]} and {row[1]}"
                )
            continue
        out.append(row)
    return out


def _tick_ms(rows: Sequence[Row]) -> int | None:
    """Return the grid's spacing, or None for rows that are on no regular grid."""
    spaces = [b[0] - a[0] for a, b in pairwise(rows)]
    if len(spaces) < 3:
        return None
    tick = statistics.median(spaces)
    near = sum(abs(space - tick) <= 0.2 * tick for space in spaces)
    return int(tick) if near >= 0.8 * len(spaces) else None


def end_ms_of(instants: Sequence[int]) -> int:
    """Return when a record ends: its last instant plus the usual spacing (1 ms for one row)."""
    ordered = sorted(set(instants))
    spaces = [b - a for a, b in pairwise(ordered)]
    return ordered[-1] + (int(statistics.median(spaces)) if spaces else 1)


def number(text: str, *, where: str, row: int, column: str) -> float:
    """Read a finite number. A comma as decimal mark is an error, not a guess."""
    try:
        value = float(text)
    except ValueError:
        hint = "write the decimal mark as a point" if "," in text else ""
        raise TraceError(
            f"{where}: row {row}: {column}: not a number: {text!r}", hint=hint
        ) from None
    if not math.isfinite(value):
        raise TraceError(f"{where}: row {row}: {column}: must be finite, got {text!r}")
    return value


class Stamps:
    """Reads one file's time stamps and refuses a mix of zoned and zone-less ones."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._first: tuple[bool, int] | None = None

    def read(self, text: str, *, row: int) -> int:
        """Return epoch ms. Zone-less stamps are read as UTC, with one warning a file."""
        try:
            at_ms, zoned = instant_ms(text)
        except ValueError as error:
            raise TraceError(f"{self.where}: row {row}: {error}") from None
        if self._first is None:
            self._first = (zoned, row)
            if not zoned:
                note = f"{self.where}: time stamps name no zone and are read as UTC"
                warnings.warn(note, TraceWarning, 4)
        elif self._first[0] != zoned:
            raise TraceError(
                f"{self.where}: row {row}: time stamps with and without a time zone in one file "
                f"(compare row {self._first[1]})",
                hint="write all of them with a zone, such as 2026-01-31T12:00:00Z",
            )
        return at_ms
