"""The state of a call: for each variable the values of all keys of the call, as Python objects, and the changes to write.

A variable is read when the user's code first asks for it, for all keys at once. Keys are numbered; the number is called the *owner*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.arrow_fit import python_column
from headrace.operators.kernel import View
from headrace.operators.key_index import KeyIndex
from headrace.operators.lifetime import WRITTEN
from headrace.operators.shape import Named
from headrace.operators.store import Store
from headrace.operators.user_state.shape import Codec, Values, Variable
from headrace.state import lookup
from headrace.state.keys import Mask
from headrace.state.layout import DELETED, HASH, Indices, hashes
from headrace.state.merge import merge_rows
from headrace.state.segments import sort_into_segments


class Keys:
    """The keys of a call: sorted, distinct, numbered."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def columns(self) -> list[pa.Array]:
        return [self.rows.column(name) for name in self.rows.schema.names if name != HASH]

    @cached_property
    def _index(self) -> KeyIndex:
        return KeyIndex(self.columns)

    def find(self, columns: list[pa.Array]) -> Indices:
        """The numbers of these keys; -1 for keys that do not belong to the call."""
        if all(mine.equals(theirs) for mine, theirs in zip(self.columns, columns, strict=True)):
            return np.arange(len(self))
        return self._index.find(columns)

    def of(self, rows: pa.RecordBatch) -> Indices:
        """The number of each row's key; -1 for keys that only share a hash with one."""
        return self.find([rows.column(name) for name in self.rows.schema.names if name != HASH])

    def take(self, owners: Indices) -> list[pa.Array]:
        """Hash and key columns of these keys."""
        if len(owners) == len(self) and bool((owners == np.arange(len(owners))).all()):
            return [self.rows.column(HASH), *self.columns]
        at = pa.array(owners)
        return [column.take(at) for column in (self.rows.column(HASH), *self.columns)]


@dataclass
class Source:
    """Where the values of a variable come from, and how they are written."""

    variable: Variable
    store: Store
    view: View
    keys: Keys
    shape: Named
    codec: Codec
    now_us: int

    def rows_of_keys(self) -> tuple[pa.RecordBatch, Indices]:
        """The merged rows of the keys in a store with several rows per key, and the owner of each."""
        wanted = np.unique(hashes(self.keys.rows))
        rows = merge_rows([lookup.rows_of_hashes(run.rows, wanted) for run in self.view.runs()], self.store.layout)
        owners = self.keys.of(rows)
        if bool((owners < 0).any()):
            mine = np.flatnonzero(owners >= 0)
            rows, owners = rows.take(pa.array(mine)), owners[mine]
        return rows, owners

    def values_of(self, rows: pa.RecordBatch) -> list[Values]:
        """The value tuples of these rows."""
        if not len(self.variable.values):
            return [()] * rows.num_rows
        return self.codec.tuples([rows.column(f"p{i}") for i in range(len(self.variable.values))])

    def expired_us(self) -> int:
        """Values that were written at this moment or before have expired."""
        return self.now_us - (self.variable.ttl_ms or 0) * 1000

    def columns(self, tuples: list[Values], schema: pa.Schema, codec: Codec) -> list[pa.Array]:
        """Value tuples as Arrow columns."""
        what = f"the state {self.variable.name!r}"
        if not tuples:
            return [pa.array([], f.type) for f in schema]
        found = []
        for column, f, convert in zip(zip(*tuples, strict=True), schema, codec.to_arrow, strict=True):
            values = list(column) if convert is None else [None if v is None else convert(v) for v in column]
            found.append(python_column(values, f, self.shape, what))
        return found

    def written(self, times_us: list[int]) -> list[pa.Array]:
        """The column of the times of writing, if the variable has a time to live."""
        return [pa.array(times_us, pa.int64())] if self.variable.ttl_ms is not None else []


@dataclass
class OneValue:
    """The values of a variable with at most one row per key."""

    source: Source
    values: list[Values | None] = field(default_factory=list)
    """By owner; None where the key has no value."""
    extras: list[list[object]] = field(default_factory=list)
    """By extra column and owner."""
    changed: set[int] = field(default_factory=set)
    stored: Mask = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """By owner: true if a run may have a row of the key."""

    def __post_init__(self) -> None:
        source = self.source
        place, rows = lookup.newest_places(source.view.runs(), source.keys.rows, source.store.layout)
        self.stored = place >= 0
        if source.variable.ttl_ms is not None and rows.num_rows:
            # An expired row may still be in a run, so a deletion has to be written.
            place[self.stored & (rows.column(WRITTEN).to_numpy()[place] <= source.expired_us())] = -1
        if not rows.num_rows:
            self.values = [None] * len(place)
            self.extras = [[None] * len(place) for _ in source.variable.extra]
            return
        found = source.values_of(rows)
        extras = [rows.column(name).to_pylist() for name, _ in source.variable.extra]
        at = place.tolist()
        self.values = [found[i] if i >= 0 else None for i in at]
        self.extras = [[column[i] if i >= 0 else None for i in at] for column in extras]

    def rows(self) -> pa.RecordBatch | None:
        """The changed rows of a new run."""
        owners = sorted(self.changed)
        owners = [o for o in owners if self.values[o] is not None or self.stored[o]]
        if not owners:
            return None
        source, schema = self.source, self.source.store.layout.schema
        nothing = (None,) * len(source.variable.values)
        tuples = [nothing if (v := self.values[o]) is None else v for o in owners]
        values = source.columns(tuples, source.variable.values, source.codec)
        extras = [pa.array([column[o] for o in owners], kind) for column, (_, kind) in zip(self.extras, source.variable.extra, strict=True)]
        written = source.written([source.now_us] * len(owners))
        found = pa.RecordBatch.from_arrays([*source.keys.take(np.array(owners)), *values, *extras, *written], schema=schema)
        gone = [self.values[o] is None for o in owners]
        return found.append_column(DELETED, pa.array(gone)) if any(gone) else found


@dataclass
class Elements:
    """The elements of the lists of a variable: per key their positions in the store, values, and times of writing."""

    source: Source
    positions: dict[int, list[int]] = field(default_factory=dict)
    """By owner: the positions that the store has."""
    items: dict[int, list[tuple[Values, int]]] = field(default_factory=dict)
    """By owner: the elements, each with the time at which it was written."""
    kept: dict[int, int] = field(default_factory=dict)
    """By changed owner: how many of the stored elements stay as they are, at the beginning of the list."""

    def __post_init__(self) -> None:
        rows, owners = self.source.rows_of_keys()
        if not rows.num_rows:
            return
        written = rows.column(WRITTEN).to_pylist() if self.source.variable.ttl_ms is not None else [0] * rows.num_rows
        positions = rows.column("sub").to_pylist()
        for owner, position, value, at in zip(owners.tolist(), positions, self.source.values_of(rows), written, strict=True):
            self.positions.setdefault(owner, []).append(position)
            self.items.setdefault(owner, []).append((value, at))

    def live(self, owner: int) -> list[Values]:
        """The elements of a key that have not expired."""
        found = self.items.get(owner, ())
        if self.source.variable.ttl_ms is None:
            return [value for value, _ in found]
        expired_us = self.source.expired_us()
        return [value for value, at in found if at > expired_us]

    def append(self, owner: int, values: list[Values]) -> None:
        """Add elements at the end of a key's list."""
        mine = self.items.setdefault(owner, [])
        self.kept.setdefault(owner, len(mine))
        now_us = self.source.now_us
        mine.extend([(value, now_us) for value in values])

    def replace(self, owner: int, values: list[Values]) -> None:
        """Replace the list of a key."""
        self.kept[owner] = 0
        now_us = self.source.now_us
        self.items[owner] = [(value, now_us) for value in values]

    def rows(self) -> pa.RecordBatch | None:
        """The changed rows of a new run: new elements, and tombstones of those that are gone."""
        owners: list[int] = []
        positions: list[int] = []
        found: list[Values] = []
        times: list[int] = []
        gone: list[bool] = []
        nothing = (None,) * len(self.source.variable.values)
        for owner in sorted(self.kept):
            stored, kept = self.positions.get(owner, []), self.kept[owner]
            # Positions only grow, so that an element that is appended never takes the place of one that has expired.
            new = self.items[owner][kept:]
            first = stored[-1] + 1 if stored else 0
            dead = stored[kept:]
            owners += [owner] * (len(dead) + len(new))
            positions += [*dead, *range(first, first + len(new))]
            found += [nothing] * len(dead) + [value for value, _ in new]
            times += [self.source.now_us] * len(dead) + [at for _, at in new]
            gone += [True] * len(dead) + [False] * len(new)
        if not owners:
            return None
        source, layout = self.source, self.source.store.layout
        columns = source.columns(found, source.variable.values, source.codec)
        keys = source.keys.take(np.array(owners))
        rows = pa.RecordBatch.from_arrays([*keys, pa.array(positions, pa.int64()), *columns, *source.written(times)], schema=layout.schema)
        rows = rows.append_column(DELETED, pa.array(gone)) if any(gone) else rows
        return sort_into_segments(rows, layout)[0]


@dataclass
class Entries:
    """The entries of the maps of a variable: per key a dict of map keys to values and times of writing."""

    source: Source
    key_codec: Codec
    maps: dict[int, dict[Values, tuple[Values, int]]] = field(default_factory=dict)
    stored: set[tuple[int, Values]] = field(default_factory=set)
    changed: dict[tuple[int, Values], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, owners = self.source.rows_of_keys()
        if not rows.num_rows:
            return
        written = rows.column(WRITTEN).to_pylist() if self.source.variable.ttl_ms is not None else [0] * rows.num_rows
        keys = self.key_codec.tuples([rows.column(f"m{i}") for i in range(len(self.source.variable.keys or ()))])
        for owner, key, value, at in zip(owners.tolist(), keys, self.source.values_of(rows), written, strict=True):
            self.maps.setdefault(owner, {})[key] = (value, at)
            self.stored.add((owner, key))

    def get(self, owner: int, key: Values) -> Values | None:
        """The value of a map key, or None."""
        found = self.maps.get(owner, {}).get(key)
        return None if found is None or self._expired(found) else found[0]

    def live(self, owner: int) -> dict[Values, Values]:
        """The entries of a key that have not expired."""
        return {key: found[0] for key, found in self.maps.get(owner, {}).items() if not self._expired(found)}

    def put(self, owner: int, key: Values, value: Values) -> None:
        """Set an entry."""
        self.maps.setdefault(owner, {})[key] = (value, self.source.now_us)
        self.changed[owner, key] = None

    def remove(self, owner: int, keys: Iterable[Values]) -> None:
        """Remove entries. Those that do not exist are ignored."""
        mine = self.maps.get(owner, {})
        for key in keys:
            if mine.pop(key, None) is not None:
                self.changed[owner, key] = None

    def _expired(self, found: tuple[Values, int]) -> bool:
        return self.source.variable.ttl_ms is not None and found[1] <= self.source.expired_us()

    def rows(self) -> pa.RecordBatch | None:
        """The changed rows of a new run."""
        changed = [(o, key) for o, key in self.changed if key in self.maps.get(o, {}) or (o, key) in self.stored]
        if not changed:
            return None
        source, layout = self.source, self.source.store.layout
        assert source.variable.keys is not None
        missing = ((None,) * len(source.variable.values), source.now_us)
        found = [self.maps.get(o, {}).get(key, missing) for o, key in changed]
        gone = [key not in self.maps.get(o, {}) for o, key in changed]
        keys = source.columns([key for _, key in changed], source.variable.keys, self.key_codec)
        values = source.columns([value for value, _ in found], source.variable.values, source.codec)
        owners = source.keys.take(np.array([o for o, _ in changed]))
        written = source.written([at for _, at in found])
        rows = pa.RecordBatch.from_arrays([*owners, *keys, *values, *written], schema=layout.schema)
        rows = rows.append_column(DELETED, pa.array(gone)) if any(gone) else rows
        return sort_into_segments(rows, layout)[0]
