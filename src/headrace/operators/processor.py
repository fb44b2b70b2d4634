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
        """Process the rows of a batch and return the rows to emit, under the output's names.

        Rows come key by key; those of a key are sorted (see ``orderBy``).
        """
        raise NotImplementedError

    def on_timers(self, due: pa.Table, state: KeyedState) -> pa.Table:
        """Handle timers that fire: the key columns and ``at``, one row per key. The next timer of a key comes in another call."""
        raise NotImplementedError


class KeyProcessor:
    """Base of processors that are called once for each key and batch. Define ``process``; the other methods are optional."""

    def process(self, key: Any, rows: list[Any], state: Any) -> Any:
        """Process one key's rows of a batch; return the rows to emit (tuples, dicts or named tuples), or None."""
        raise NotImplementedError

    def on_timer(self, key: Any, at: Any, state: Any) -> Any:
        """Handle a timer of this key that fires."""
        raise NotImplementedError


AnyProcessor = Processor | KeyProcessor


def defines(processor: AnyProcessor, method: str) -> bool:
    """True if the user's class defines this method itself."""
    base = Processor if isinstance(processor, Processor) else KeyProcessor
    return getattr(type(processor), method, None) is not getattr(base, method, None)
