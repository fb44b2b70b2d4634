"""The shape of a user's processor: its columns under the user's names, its maps, timers and clocks."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.errors import HeadraceError, ProcessorError

TIMERS = "timers"
"""The name of the store of timers. A map cannot have this name."""

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LINES_MAX = 12


class TimerClock(StrEnum):
    """The clock by which timers fire and state expires."""

    EVENT = "event"
    PROCESSING = "processing"


@dataclass(frozen=True)
class MapShape:
    """A map state: rows by key and map key."""

    name: str
    keys: pa.Schema
    values: pa.Schema


@dataclass(frozen=True)
class ProcessorShape:
    """The columns of a processor under the user's names, and its clocks."""

    keys: pa.Schema
    payload: pa.Schema
    """The columns of its input rows that are not keys."""
    values: pa.Schema
    """The columns of its value state."""
    output: pa.Schema
    maps: tuple[MapShape, ...] = ()
    timers: TimerClock | None = None
    """The clock of its timers; None if it has none."""
    ttl_us: int | None = None
    """The time to live of its state; None: for ever."""
    ttl_by: TimerClock = TimerClock.PROCESSING
    order: tuple[str, ...] = ()
    """Columns of the payload by which the rows of a key are sorted; none: by event time."""
    name: str = "the processor"
    """The user's name for it in error messages."""
    where: str = ""
    """The user's line, for error messages."""

    @property
    def rows(self) -> pa.Schema:
        """The columns of the rows that the processor gets."""
        return pa.schema([*self.keys, *self.payload])

    @property
    def due(self) -> pa.Schema:
        """The columns of the timers that the processor gets."""
        return pa.schema([*self.keys, pa.field("at", pa.timestamp("us", tz="UTC"))])


class Named(Protocol):
    """User code with a name and a line, for error messages."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...


def columns_text(schema: pa.Schema) -> str:
    """The names and types of columns, for error messages.

    >>> columns_text(pa.schema([("n", pa.int64()), ("word", pa.string())]))
    'n int64, word string'
    """
    return ", ".join(f"{f.name} {type_text(f.type)}" for f in schema) or "none"


def type_text(kind: pa.DataType) -> str:
    """A type as users know it: large_string is shown as string."""
    return str(kind).replace("large_", "")


@contextmanager
def user_code(shape: Named, method: str, about: Callable[[], str] = str) -> Iterator[None]:
    """Turn an exception of the user's code into a `ProcessorError` that shows the lines of that code. `about` adds to the message.

    `method` is empty for a function.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raised = traceback.format_exception_only(error)[-1].strip()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
        lines = "".join(traceback.format_list(frames)).rstrip().splitlines()[-_LINES_MAX:]
        called = f"{shape.name}.{method}" if method else shape.name
        hint = "\n".join(["in", *lines, raised] if lines else [])
        raise ProcessorError(f"{called} raised {raised}{about()}", where=shape.where, hint=hint) from error
