"""A user's own stateful operator: what the user writes, and what the engine knows of it.

A processor is a black box with explicit state: it may compute what it likes, but what it keeps between batches are typed columns per
key, which the engine stores, splits, moves and shows. There are two forms with one state model: ``Processor`` sees all keys of an
instance at once, as Arrow tables; ``KeyProcessor`` is called once for each key and batch.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import HeadraceError, ProcessorError

if TYPE_CHECKING:
    from headrace.operators.keyed_state import KeyedState

TIMERS = "timers"
"""The store of timers; a map cannot have this name."""

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LINES_MAX = 12


class Processor:
    """Base of processors that work on all keys of an instance at once. Define ``process``; the other methods are optional.

    A processor keeps nothing in itself from one call to the next: each call may happen in another process.
    """

    def process(self, rows: pa.Table, state: KeyedState) -> pa.Table:
        """Rows of a batch, key by key, those of a key in order (see ``orderBy``); gives the rows to emit, under the output's names."""
        raise NotImplementedError

    def on_timers(self, due: pa.Table, state: KeyedState) -> pa.Table:
        """Timers that fell due: the key columns and ``at``, one row a key (the next timer of a key comes in another call)."""
        raise NotImplementedError


class KeyProcessor:
    """Base of processors that are called once for each key and batch. Define ``process``; the other methods are optional."""

    def process(self, key: Any, rows: list[Any], state: Any) -> Any:
        """One key's rows of a batch; gives rows to emit (tuples, dicts or named tuples), or None."""
        raise NotImplementedError

    def on_timer(self, key: Any, at: Any, state: Any) -> Any:
        """A timer of this key fell due."""
        raise NotImplementedError


AnyProcessor = Processor | KeyProcessor


def defines(processor: AnyProcessor, method: str) -> bool:
    """Whether the user's class has a method of its own by this name."""
    base = Processor if isinstance(processor, Processor) else KeyProcessor
    return getattr(type(processor), method, None) is not getattr(base, method, None)


class Clock(StrEnum):
    """By what timers fall due and state expires."""

    EVENT = "event"
    PROCESSING = "processing"


@dataclass(frozen=True)
class MapShape:
    """A second level of state: rows by key and map key."""

    name: str
    keys: pa.Schema
    values: pa.Schema


@dataclass(frozen=True)
class Shape:
    """The columns of a processor under the user's names, and its clocks."""

    keys: pa.Schema
    payload: pa.Schema
    """The other columns of its rows."""
    values: pa.Schema
    output: pa.Schema
    maps: tuple[MapShape, ...] = ()
    timers: Clock | None = None
    ttl_us: int | None = None
    ttl_by: Clock = Clock.PROCESSING
    order: tuple[str, ...] = ()
    """Columns of the payload by which a key's rows are ordered; none: by event time."""
    name: str = "the processor"
    where: str = ""

    @property
    def rows(self) -> pa.Schema:
        return pa.schema([*self.keys, *self.payload])

    @property
    def due(self) -> pa.Schema:
        return pa.schema([*self.keys, pa.field("at", pa.timestamp("us", tz="UTC"))])


def columns_text(schema: pa.Schema) -> str:
    """Columns as a reader would write them.

    >>> columns_text(pa.schema([("n", pa.int64()), ("word", pa.string())]))
    'n int64, word string'
    """
    return ", ".join(f"{f.name} {type_text(f.type)}" for f in schema) or "none"


def type_text(kind: pa.DataType) -> str:
    """A type as users know it: how long the offsets of texts are does not matter to them."""
    return str(kind).replace("large_", "")


@contextmanager
def user_code(shape: Shape, method: str, about: Callable[[], str] = str) -> Iterator[None]:
    """What the user's code raises becomes an error of ours that shows where in their code it was."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raised = traceback.format_exception_only(error)[-1].strip()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
        lines = "".join(traceback.format_list(frames)).rstrip().splitlines()[-_LINES_MAX:]
        raise ProcessorError(
            f"{shape.name}.{method} raised {raised}{about()}", where=shape.where, hint="\n".join(["in", *lines, raised] if lines else [])
        ) from error
