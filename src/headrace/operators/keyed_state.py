"""The state as a `Processor` sees it: Arrow tables of all keys of a call."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ProcessorError
from headrace.operators.arrow_fit import fit, fitted
from headrace.operators.instance_state import Cells, InstanceState
from headrace.operators.key_index import KeyIndex
from headrace.operators.shape import MapShape, ProcessorShape
from headrace.state.layout import Indices

_TIME = pa.timestamp("us", tz="UTC")


class KeyedState:
    """The state of all keys of a call, as a ``Processor`` gets it.

    Keys are given as a table that has the key columns; other columns are ignored. If there is one key column, an array will do. Only keys
    of the call's rows or timers can be read and changed; for other keys, methods raise ``ProcessorError``.
    """

    def __init__(self, state: InstanceState) -> None:
        self._state = state
        self._shape: ProcessorShape = state.shape
        self._last: tuple[Any, Indices] | None = None

    @property
    def watermark(self) -> datetime:
        """The watermark of the query, in UTC."""
        return moment(self._state.watermark_us)

    @property
    def now(self) -> datetime:
        """The time at which the batch began, in UTC."""
        return moment(self._state.now_us)

    def keys(self, rows: Any) -> pa.Table:
        """The distinct keys of ``rows``, as a table of the key columns."""
        return self._key_table(np.unique(self._owners(rows)))

    def get(self, keys: Any) -> pa.Table:
        """The values of each of ``keys``, as a table in the same order; null if a key has no state."""
        return pa.Table.from_arrays(self._state.main.read(self._owners(keys)), schema=self._shape.values)

    def known(self, keys: Any) -> pa.Array:
        """For each of ``keys``, true if it has state."""
        return pa.array(self._state.main.known(self._owners(keys)))

    def put(self, table: Any) -> None:
        """Set the values of keys: ``table`` has the key columns and all value columns, and each key at most once."""
        owners = self._once(self._owners(table), "put")
        self._state.main.write(owners, fitted(table, self._shape.values, self._shape, "state.put"))

    def delete(self, keys: Any) -> None:
        """Delete the values of ``keys``. Maps and timers stay."""
        self._state.main.remove(np.unique(self._owners(keys)))

    def map(self, name: str) -> KeyedMap:
        """The map ``name``, as ``hr.State`` declares it; an unknown name raises ``ProcessorError``."""
        for each in self._shape.maps:
            if each.name == name:
                return KeyedMap(self, self._state.map(name), each)
        raise ProcessorError(
            f"{self._shape.name}: state.map",
            where=self._shape.where,
            wanted=f"one of the maps {', '.join(m.name for m in self._shape.maps) or '(none are declared)'}",
            found=repr(name),
        )

    def set_timer(self, keys: Any, at: Any) -> None:
        """Set a timer for each of ``keys``: ``at`` is one datetime for all, or an array with a timestamp for each."""
        owners = self._owners(keys)
        self._change_timers(owners, self._moments(at, len(owners)), alive=True)

    def delete_timer(self, keys: Any, at: Any = None) -> None:
        """Delete the timers of ``keys`` at the times ``at``, given as in ``set_timer``; without a time, all of them."""
        owners = self._owners(keys)
        if at is None:
            self._check_timers()
            owners, at_us = self._state.timers.of(owners)
        else:
            at_us = self._moments(at, len(owners))
        self._change_timers(owners, at_us, alive=False)

    def timers(self, keys: Any) -> pa.Table:
        """The timers of ``keys`` that have not fired: a table of the key columns and ``at``."""
        self._check_timers()
        owners, at_us = self._state.timers.of(np.unique(self._owners(keys)))
        return self._key_table(owners).append_column("at", pa.array(at_us).cast(_TIME))

    def _change_timers(self, owners: Indices, at_us: Indices, alive: bool) -> None:
        self._check_timers()
        self._state.timers.change(owners, at_us, alive)

    def _check_timers(self) -> None:
        check_timers(self._shape)

    def _moments(self, at: Any, rows: int) -> Indices:
        if isinstance(at, datetime):
            return np.full(rows, datetime_micros(at), dtype=np.int64)
        if isinstance(at, pa.Array | pa.ChunkedArray) and pa.types.is_timestamp(at.type) and len(at) == rows and not at.null_count:
            column = at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at
            return np.asarray(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy(), dtype=np.int64)
        found = f"{at.type} with {len(at)} values, {at.null_count} null" if hasattr(at, "null_count") else repr(at)
        raise ProcessorError(
            f"{self._shape.name}: a timer",
            where=self._shape.where,
            wanted=f"a datetime, or an array of {rows} timestamps without nulls",
            found=found,
        )

    def _owners(self, keys: Any) -> Indices:
        """The numbers of these keys in the state of the call."""
        if self._last is not None and self._last[0] is keys:
            return self._last[1]
        names = self._shape.keys.names
        if isinstance(keys, pa.Array | pa.ChunkedArray) and len(names) == 1:
            columns = [fit(keys, self._shape.keys.field(0), self._shape, "keys")]
        else:
            columns = fitted(keys, self._shape.keys, self._shape, "keys")
        owners = self._state.find(columns)
        if bool((owners < 0).any()):
            first = [column[int(np.argmax(owners < 0))].as_py() for column in columns]
            raise ProcessorError(
                f"{self._shape.name} asks for the state of a key that does not belong to this call",
                where=self._shape.where,
                wanted="keys of the rows (or timers) of the call",
                found=repr(first[0] if len(first) == 1 else tuple(first)),
            )
        self._last = (keys, owners)
        return owners

    def _once(self, owners: Indices, method: str) -> Indices:
        if bool((np.bincount(owners) > 1).any()):
            raise ProcessorError(
                f"{self._shape.name}: state.{method}", where=self._shape.where, wanted="each key once", found="a key several times"
            )
        return owners

    def _key_table(self, owners: Indices) -> pa.Table:
        index = pa.array(owners)
        return pa.Table.from_arrays([column.take(index) for column in self._state.key_columns], schema=self._shape.keys)


class KeyedMap:
    """A map state of all keys of a call, made by ``KeyedState.map``. Tables have the key columns and the map's key columns."""

    def __init__(self, state: KeyedState, cells: Cells, shape: MapShape) -> None:
        self._state = state
        self._cells = cells
        self._map = shape

    def get(self, table: Any) -> pa.Table:
        """The values of each key and map key in ``table``, in the same order; null if there is no entry."""
        return pa.Table.from_arrays(self._cells.read(self._cells.find(self._keys(table))), schema=self._map.values)

    def known(self, table: Any) -> pa.Array:
        """For each key and map key in ``table``, true if there is an entry."""
        return pa.array(self._cells.known(self._cells.find(self._keys(table))))

    def put(self, table: Any) -> None:
        """Set entries: ``table`` has the key columns, the map's key columns and its value columns, and each entry at most once."""
        keys = self._keys(table)
        if bool(np.any(KeyIndex(keys).find(keys) != np.arange(len(keys[0])))):
            self._state._once(np.zeros(2, dtype=np.int64), f"map({self._map.name!r}).put")
        self._cells.put(keys, fitted(table, self._map.values, self._state._shape, f"state.map({self._map.name!r}).put"))

    def delete(self, table: Any) -> None:
        """Delete the entries of the keys and map keys in ``table``."""
        self._cells.remove(self._cells.find(self._keys(table)))

    def items(self, keys: Any) -> pa.Table:
        """All entries of ``keys``: a table of the key columns, the map's key columns and its value columns."""
        wanted = np.unique(self._state._owners(keys))
        owners = self._cells.keys[0].to_numpy()
        at = np.flatnonzero(self._cells.there & np.isin(owners, wanted))
        found = self._state._key_table(owners[at])
        entries = [column.take(pa.array(at)) for column in self._cells.keys[1:]] + self._cells.read(at)
        for field, column in zip([*self._map.keys, *self._map.values], entries, strict=True):
            found = found.append_column(field, column)
        return found

    def _keys(self, table: Any) -> list[pa.Array]:
        what = f"state.map({self._map.name!r})"
        return [pa.array(self._state._owners(table)), *fitted(table, self._map.keys, self._state._shape, what)]


def check_timers(shape: ProcessorShape) -> None:
    """Refuse the use of timers that the state does not declare."""
    if shape.timers is None:
        raise ProcessorError(
            f"{shape.name} sets a timer",
            where=shape.where,
            wanted="a state with timers",
            found="one without",
            hint="declare them: hr.State(..., timers='event') or timers='processing'",
        )


def moment(us: int) -> datetime:
    """Microseconds since the epoch as a datetime in UTC."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


def datetime_micros(at: datetime) -> int:
    """A datetime as microseconds since the epoch. Without a time zone it is read as UTC, as in Arrow.

    >>> datetime_micros(datetime(1970, 1, 1, 0, 0, 1, 5))
    1000005
    """
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    since = aware - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
