"""State of a query at kept versions: tables, single keys, differences of two versions. Read from the checkpoint, without the query."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError, VersionNotFoundError
from headrace.ids import SLOTS, StoreId, Version
from headrace.logs import logger, suppressed
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.inspection import pinned, state_rows, store_about
from headrace.state.manifest import Manifest
from headrace.state.sequence import run_version
from headrace.state.slots import SlotRange

_log = logger(__name__)
ROWS_MAX = 500
"""The most rows of one answer."""
TRIES = 5
SECONDS_MAX = 10.0
"""How long to read before an answer says how far it got."""
PIECES = 64
"""Differences are computed by so many ranges of slots, so that little of the state is in memory at a time."""

EXACT_MAX = 2**53
"""A browser's numbers are exact up to this one. Whole numbers beyond it are sent as text."""

Rows = list[list[Any]]


def versions(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The versions that are kept, oldest first."""
    found = []
    for version in checkpoint.manifests.versions():
        written_s = checkpoint.store.written_s(checkpoint.manifests.key(version))
        # Otherwise the running query has just removed it.
        if written_s is not None:
            found.append({"version": version, "writtenS": written_s})
    return found


def stores(checkpoint: Checkpoint, version: int | None) -> dict[str, Any]:
    """The stores of a version: columns, runs with their sizes and slots, and how many runs lie over a slot."""
    with pinned(checkpoint, None if version is None else Version(version)) as manifest:
        return {"version": manifest.version, "stores": [_store(checkpoint, manifest, store) for store in manifest.stores]}


def _store(checkpoint: Checkpoint, manifest: Manifest, store: StoreId) -> dict[str, Any]:
    about, refs = store_about(checkpoint, store), manifest.stores[store].runs
    depth = np.zeros(SLOTS, dtype=np.int64)
    for ref in refs:
        depth[int(ref.lo) : int(np.ceil(ref.hi))] += 1
    runs = [
        {
            **{name: getattr(ref, name) for name in ("file", "rows", "bytes", "lo", "hi")},
            "age": manifest.version - run_version(ref.seq),
            "subMin": ref.sub_min,
            "subMax": ref.sub_max,
        }
        for ref in refs
    ]
    return {
        "store": str(store),
        "operator": store.operator,
        "columns": list(about.get("layout", [])),
        "keys": list(about.get("kernel", {}).get("names", {}).get("keys", [])),
        "rows": sum(ref.rows for ref in refs),
        "bytes": sum({ref.file: ref.bytes for ref in refs}.values()),
        "depthMax": int(depth.max(initial=0)),
        "depthMean": round(float(depth.mean()), 2),
        "runs": sorted(runs, key=lambda each: (each["age"], each["lo"])),
    }


def table(
    checkpoint: Checkpoint, store: str, version: int | None, wanted: Mapping[str, str], offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Rows of a store whose columns have the wanted values, from an offset on. Counts all that match, as far as time permits."""
    limit = min(limit, ROWS_MAX)
    with pinned(checkpoint, None if version is None else Version(version)) as manifest:
        chosen, began, total, done = _chosen(manifest, store), time.monotonic(), 0, True
        kept: Rows = []
        schema: pa.Schema | None = None
        for rows in state_rows(checkpoint, manifest, chosen):
            schema = rows.schema
            found = matching(rows, wanted)
            missing = limit - len(kept)
            if missing > 0 and total + found.num_rows > offset:
                kept += _listed(found.slice(max(0, offset - total), missing))
            total += found.num_rows
            if time.monotonic() - began > SECONDS_MAX:
                done = False
                break
        return {"version": manifest.version, "columns": _columns(schema), "rows": kept, "offset": offset, "total": total, "complete": done}


def matching(rows: pa.RecordBatch, wanted: Mapping[str, str]) -> pa.RecordBatch:
    """The rows whose columns have these values, which are given as text. ``null`` stands for no value, and ``"null"`` for that text."""
    for name, text in wanted.items():
        if name not in rows.schema.names:
            raise QueryError(where="state", wanted=f"a column of {', '.join(rows.schema.names)}", found=repr(name))
        column = rows.column(name)
        if text == "null":
            keep = pc.is_null(column)
        else:
            keep = pc.equal(column, _value(text, column.type, name))
        rows = rows.filter(keep)
    return rows


def _value(text: str, kind: pa.DataType, name: str) -> pa.Scalar:
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            quoted = len(text) > 1 and text[0] == text[-1] == '"'
            return pa.scalar(text[1:-1] if quoted else text, kind)
        if pa.types.is_timestamp(kind):
            return pa.scalar(text.replace("T", " ").removesuffix("Z")).cast(pa.timestamp("us")).cast(kind)
        return pa.scalar(text.strip()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        raise QueryError(where=f"state, {name}", wanted=f"a value of type {kind}", found=f"{text!r} ({wrong})") from None


def _oldest(checkpoint: Checkpoint, held: contextlib.ExitStack) -> Manifest:
    """The manifest of the oldest version, leased until ``held`` closes; if a running query just removes it, of the next one."""
    for _ in range(TRIES):
        with suppressed(_log, "the oldest version has just been removed", VersionNotFoundError, level=logging.DEBUG):
            return held.enter_context(pinned(checkpoint, (checkpoint.manifests.versions() or [Version(0)])[0]))
    return held.enter_context(pinned(checkpoint))


def difference(checkpoint: Checkpoint, store: str, before: int | None, after: int | None, limit: int = 100) -> dict[str, Any]:
    """What differs between two versions of a store, by default the oldest and the newest: rows that came, went and changed."""
    limit = min(limit, ROWS_MAX)
    counts = {"came": 0, "gone": 0, "changed": 0, "same": 0}
    first: list[dict[str, Any]] = []
    names: list[dict[str, str]] = []
    began, slots = time.monotonic(), 0
    with contextlib.ExitStack() as held:
        old = _oldest(checkpoint, held) if before is None else held.enter_context(pinned(checkpoint, Version(before)))
        new = held.enter_context(pinned(checkpoint, None if after is None else Version(after)))
        then, now = _chosen(old, store), _chosen(new, store)
        about, told = store_about(checkpoint, now)["kernel"]["names"], {"before": old.version, "after": new.version}
        keys = len(about["keys"]) + (1 if about.get("sub") else 0)
        for lo, hi in _pieces():
            one, schema = _keyed(checkpoint, old, then, (lo, hi), keys)
            two, other = _keyed(checkpoint, new, now, (lo, hi), keys)
            names = names or _columns(schema or other)
            for kind, key, was, now_is in compared(one, two):
                counts[kind] += 1
                if kind != "same" and len(first) < limit:
                    first.append({"kind": kind, "key": list(key), "before": was, "after": now_is})
            slots = hi
            if time.monotonic() - began > SECONDS_MAX:
                break
    return {"columns": names, "keys": keys, "rows": first, **counts, **told, "slots": slots, "complete": slots == SLOTS}


def compared(one: Mapping[Any, Any], two: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    """The differences of two mappings from keys to the values of their rows.

    >>> list(compared({"a": [1], "b": [2]}, {"b": [3], "c": [4]}))
    [('gone', 'a', [1], None), ('changed', 'b', [2], [3]), ('came', 'c', None, [4])]
    """
    for key, value in one.items():
        if key not in two:
            yield "gone", key, value, None
        elif two[key] != value:
            yield "changed", key, value, two[key]
        else:
            yield "same", key, value, value
    for key, value in two.items():
        if key not in one:
            yield "came", key, None, value


def _pieces() -> Iterator[tuple[int, int]]:
    edges = [at * SLOTS // PIECES for at in range(PIECES + 1)]
    return itertools.pairwise(edges)


def _keyed(
    checkpoint: Checkpoint, manifest: Manifest, store: StoreId, slots: SlotRange, keys: int
) -> tuple[dict[tuple[Any, ...], list[Any]], pa.Schema | None]:
    """The rows of some slots by key. Rows with one key, as in the buffers of joins, are kept together."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    schema = None
    for rows in state_rows(checkpoint, manifest, store, (slots,)):
        schema = rows.schema
        for row in _listed(rows):
            found.setdefault(tuple(map(_hashable, row[:keys])), []).extend(row[keys:])
    return found, schema


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, list | dict) else value


def _listed(rows: pa.RecordBatch) -> Rows:
    return [[_told(value) for value in row] for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)]


def _told(value: Any) -> Any:
    """A value as a page can show it: numbers that JSON, or a browser, does not have become text. Two values that are not numbers are equal.

    >>> _told([1, 2**60, {"x": math.nan, "y": -math.inf}])
    [1, '1152921504606846976', {'x': 'NaN', 'y': '-Infinity'}]
    """
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    if isinstance(value, dict):
        return {name: _told(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not -EXACT_MAX <= value <= EXACT_MAX:
        return str(value)
    return value


def _columns(schema: pa.Schema | None) -> list[dict[str, str]]:
    return [] if schema is None else [{"name": field.name, "type": str(field.type)} for field in schema]


def _chosen(manifest: Manifest, store: str) -> StoreId:
    names = {str(each): each for each in manifest.stores}
    if store not in names:
        wanted = f"an operator's state: {', '.join(names)}"
        raise QueryError(where=f"state, version {manifest.version}", wanted=wanted, found=repr(store))
    return names[store]
