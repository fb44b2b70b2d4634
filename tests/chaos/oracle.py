"""Compares the sinks and the state of a settled query with the reference, and describes differences."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace.ids import StoreId
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.inspection import pinned, state_rows
from tests.chaos.data import SECOND
from tests.chaos.query import FORMATS, QUERIES, WITHIN_S
from tests.chaos.reference import Reference, Rows
from tests.crash.harness import listed_files

SHOWN = 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def differences(reference: Reference, query: str, fed: int, output: Path, checkpoint: Path) -> list[str]:
    """Descriptions of what is lost, doubled or wrong; empty if all is right."""
    found = []
    for sink in QUERIES[query]:
        found += _difference(f"sink {sink}", read_sink(sink, output), reference.output(sink, fed))
    found += falling_totals(output)
    expected = reference.state(fed)
    for store, rows in read_state(checkpoint, reference.watermark_us(fed)).items():
        found += _difference(f"state {store}", rows, expected[store])
    return found


def _difference(what: str, mine: Rows, expected: Rows) -> list[str]:
    missing, extra = expected - mine, mine - expected
    found = []
    for name, rows in (("missing", missing), ("too many", extra)):
        if rows:
            shown = ", ".join(str(tuple(v[:20] if isinstance(v, str) else v for v in row)) for row in list(rows)[:SHOWN])
            found.append(f"{what}: {rows.total()} {name} of {expected.total()}: {shown}")
    return found


def read_sink(sink: str, output: Path) -> Rows:
    """All rows that count: those of the files that the sink's log names, or the newest total of each key."""
    if sink == "totals":
        newest = "select k, n, s, low, high from totals t where version = (select max(version) from totals o where o.k is t.k)"
        return Counter(_ask(output, newest))
    found: Rows = Counter()
    for path in listed_files(output / sink):
        if FORMATS[sink] == "json":
            found.update(tuple(json.loads(line).values()) for line in path.read_text().splitlines())
        else:
            found.update(tuple(row.values()) for row in pq.read_table(path, partitioning=None).to_pylist())
    return found


def falling_totals(output: Path) -> list[str]:
    """A key's count must grow with every version that shows it; one that falls or stays was computed from an old state."""
    found = []
    last: dict[str | None, int] = {}
    for version, k, n in _ask(output, "select version, k, n from totals order by version"):
        if n <= last.get(k, 0):
            found.append(f"sink totals: key {k!r:.20} has count {n} in version {version} and {last[k]} before")
        last[k] = n
    return found[:SHOWN]


def repeated_calls(output: Path) -> list[int]:
    """Versions that came to the user's function more than once."""
    return [version for (version,) in _ask(output, "select version from calls group by version having count(*) > 1 order by version")]


def _ask(output: Path, query: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(f"file:{output / 'totals.db'}?mode=ro", uri=True)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def read_state(checkpoint: Path, reached_us: int) -> dict[str, Rows]:
    """The state of the newest version, by store, in the reference's terms."""
    opened = Checkpoint.existing(str(checkpoint))
    found = {}
    with pinned(opened) as manifest:
        for text, about in opened.identity()["operators"].items():
            store = StoreId.parse(text)
            rows = (row for part in state_rows(opened, manifest, store) for row in part.to_pylist())
            name, what = _store(store, about["kernel"], rows, reached_us)
            found[name] = what
    return found


def _store(store: StoreId, kernel: dict[str, Any], rows: Iterator[dict[str, Any]], reached_us: int) -> tuple[str, Rows]:
    """Which store of ours it is, told by its operator and its columns, and what it holds."""
    names = kernel["names"]
    match store.operator.partition("-")[0], names["sub"], names["values"]:
        case "aggregate", None, _:
            return "totals", Counter(tuple(row.values()) for row in rows)
        case "aggregate", "pane", _:
            return "windows", _added_up(rows, ("k",), ("count(1)", "sum(v)"))
        case "aggregate", "due", _:
            return "sessions", _added_up(rows, ("k",), ("count(1)", "sum(v)"))
        case "aggregate", "window.start", _:
            return "sizes", _added_up(rows, (), ("count(1)", "sum(n)"))
        case "dropDuplicates", _, _:
            return "distinct", Counter((row["id"], _us(row["ts"])) for row in rows)
        case "join", _, _:
            waiting = ((row["k"], _us(row["ts"]), row["id"]) for row in rows)
            # Rows may be kept for longer than they can find partners.
            return f"pairs.{store.name}", Counter(row for row in waiting if row[1] + WITHIN_S * SECOND > reached_us)
        case "process", "at", _:
            return "buckets.timers", Counter((row["k"], _us(row["at"])) for row in rows)
        case "process", _, ["rows"]:
            return "buckets", Counter((row["k"], row["rows"]) for row in rows)
        case "process", _, ["n"]:
            return "buckets.counts", Counter((row["k"], row["begin"], row["n"]) for row in rows)
        case unknown:
            raise AssertionError(f"the reference does not know the store {store}: {unknown}")


def _added_up(rows: Iterator[dict[str, Any]], keys: tuple[str, ...], values: tuple[str, str]) -> Rows:
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        n, s = found.get(key, (0, 0))
        found[key] = n + row[values[0]], s + (row[values[1]] or 0)
    return Counter((*key, *both) for key, both in found.items())


def _us(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)
