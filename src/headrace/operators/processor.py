"""The base classes of a user's own stateful operator.

A processor may compute what it likes. What it keeps between batches are typed columns per key, which the engine stores, splits, moves and
shows. There are two forms with one state model: `Processor` sees all keys of an instance at once, as Arrow tables; `KeyProcessor` is
called once for each key and batch.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.operators.keyed_state import KeyedState


class Processor:
    """Base of processors that work on all keys of an instance at once. Define ``process``; the other methods are optional.

    Do not keep anything in the object between calls: each call may happen in another process.
    """

    def process(self, rows: pa.Table, state: KeyedState) -> pa.Table:
        """Process ``rows``, the rows of a batch, and return the rows to emit: a table with the columns of ``schema``.

        Rows come key by key; those of a key are sorted (see ``orderBy`` of ``process``). ``state`` is the state of their keys.
        """
        raise NotImplementedError

    def on_timers(self, due: pa.Table, state: KeyedState) -> pa.Table:
        """Handle timers that fire, and return the rows to emit. Define it if the state has timers.

        ``due`` has the key columns and ``at``, one row per key; the next timer of a key comes in another call. ``state`` is the state
        of these keys.
        """
        raise NotImplementedError


class KeyProcessor:
    """Base of processors that are called once for each key and batch. Define ``process``; the other methods are optional.

    Do not keep anything in the object between calls: each call may happen in another process.
    """

    def process(self, key: Any, rows: list[Any], state: Any) -> Any:
        """Process the rows of one key in a batch. Return or yield the rows to emit (tuples, named tuples or dicts), or return None.

        ``key`` is the key's value, or a named tuple of several. ``rows`` is a list of named tuples, sorted as ``orderBy`` of ``process``
        says. ``state`` is the key's ``KeyState``.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, at: Any, state: Any) -> Any:
        """Handle a timer that fires, and return or yield the rows to emit. Define it if the state has timers.

        ``key`` and ``state`` are those of ``process``; ``at`` is the time of the timer, a datetime in UTC.
        """
        raise NotImplementedError


AnyProcessor = Processor | KeyProcessor


def defines(processor: AnyProcessor, method: str) -> bool:
    """True if the user's class defines this method itself."""
    base = Processor if isinstance(processor, Processor) else KeyProcessor
    return getattr(type(processor), method, None) is not getattr(base, method, None)
