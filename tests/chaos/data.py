"""The campaign's input: files of rows whose results do not depend on where batches are cut.

A row is one of two kinds, and says which in the column ``late`` (the query under test never reads it):

- *in time*: newer than everything in earlier files minus the watermark's delay, so no operator may drop it, however files share batches;
- *late*: older than everything an operator can still hold open ``SLACK`` files earlier, so every operator with an event time drops it.

``arrange`` makes such files from any rows in time order: generated ones (skewed keys, nulls, ties, long and foreign texts), or a real
stream given by ``--data``.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
BEGIN_US = 1_700_000_000 * SECOND
DELAY_US = 10 * SECOND
STEP_US = 12 * SECOND
"""Event time covered by one file, on average."""
SLACK = 6
"""The most files that may share a batch; the campaign feeds fewer at a time."""
HORIZON_US = 120 * SECOND
"""Longer than any operator of the query keeps anything open behind the watermark."""
ROWS = 60
KEYS = ("ada", "bob", "Ωmega", "名前", "naïve", "👩‍🚀", "", " ", "a'b\"c`d", "tab\tnew\nline", *(f"key-{n}" for n in range(25)))
KEYS += ("long" * 500,)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("file", pa.int32()),
        ("k", pa.string()),
        ("side", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("v", pa.int64()),
        ("note", pa.string()),
        ("late", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Row:
    """One row of the input; times in microseconds."""

    id: int
    file: int
    k: str | None
    side: str
    ts: int
    v: int | None
    note: str | None
    late: bool = False


Raw = tuple[str | None, str, int, int | None]
"""Key, side, time and value of a row of the original stream."""


def generated(random: Random, rows: int) -> list[Raw]:
    """Zipf keys; every tenth row has the time of the one before; some keys and values are null."""
    weights = [1 / (rank + 1) for rank in range(len(KEYS))]
    keys = random.choices(KEYS, weights, k=rows)
    found: list[Raw] = []
    ts = BEGIN_US
    for key in keys:
        if random.random() > 0.1:
            ts += int(random.expovariate(1) * STEP_US / ROWS)
        value = None if random.random() < 0.04 else random.choice((random.randint(-9, 9), random.randint(-(10**12), 10**12)))
        found.append((None if random.random() < 0.04 else key, random.choice("lr"), ts, value))
    return found


def real(path: Path, random: Random, rows: int) -> list[Raw]:
    """A stretch of a real stream: Wikipedia's edits as JSON lines, or taxi rides as CSV; times stretched to ``STEP_US`` a file."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
        first = lines.readline()
        read = _edits if first.lstrip().startswith("{") else _rides
        skip = random.randrange(20_000)
        found = sorted(read(islice(lines, skip, skip + rows)), key=lambda row: row[2])
    if len(found) < rows:
        raise ValueError(f"{path}: {rows} rows wanted from row {skip} on, {len(found)} found")
    begin, span = found[0][2], max(1, found[-1][2] - found[0][2])
    return [(k, side, BEGIN_US + (ts - begin) * (rows * STEP_US // ROWS) // span, v) for k, side, ts, v in found]


def _edits(lines: Iterator[str]) -> Iterator[Raw]:
    for edit in map(json.loads, lines):
        ts = datetime.fromisoformat(edit["time"])
        yield edit["channel"], "l" if edit["isRobot"] else "r", int(ts.timestamp() * SECOND), edit["delta"]


def _rides(lines: Iterator[str]) -> Iterator[Raw]:
    for ride in csv.reader(lines):
        start = ride[1] == "START"
        ts = datetime.fromisoformat(ride[2 if start else 3]).replace(tzinfo=UTC)
        yield ride[9][-2:], "l" if start else "r", int(ts.timestamp() * SECOND), int(ride[8])


def arrange(raw: list[Raw], random: Random, rows_per_file: int = ROWS) -> list[list[Row]]:
    """Rows in time order become files: some come a file later, some twice, some far too late."""
    chunks = [raw[at : at + rows_per_file] for at in range(0, len(raw), rows_per_file)]
    files: list[list[Row]] = [[] for _ in chunks]
    number = 0
    for at, chunk in enumerate(chunks):
        reached = chunk[-1][2]
        for k, side, ts, v in chunk:
            number += 1
            note = random.choice((None, "", f"note {number % 7}", "ü" * 2000 if random.random() < 0.02 else "n"))
            row = Row(number, at, k, side, ts, v, note)
            may_wait = at + 1 < len(files) and ts > reached - DELAY_US + SECOND
            row = replace(row, file=at + 1) if may_wait and random.random() < 0.15 else row
            files[row.file].append(row)
            if random.random() < 0.05:
                again = replace(row, file=at + 1) if may_wait else row
                files[again.file].append(again)
        for _ in range(random.randint(0, 4) if at > SLACK + 1 else 0):
            number += 1
            k, side, _, v = random.choice(chunk)
            ts = chunks[at - SLACK - 1][0][2] - DELAY_US - HORIZON_US - random.randrange(300 * SECOND)
            files[at].append(Row(number, at, k, side, ts, v, "late", late=True))
    for rows in files:
        random.shuffle(rows)
    check(files)
    return files


def check(files: list[list[Row]]) -> None:
    """Check that each row is what it claims to be: never late, or always late."""
    reached = [0]
    for at, rows in enumerate(files):
        long_ago = reached[max(0, at - SLACK + 1)]
        for row in rows:
            if row.late:
                assert row.ts < long_ago - DELAY_US - HORIZON_US, row
            else:
                assert row.ts > reached[-1] - DELAY_US, row
        reached.append(max(reached[-1], max(row.ts for row in rows)))


def write_file(directory: Path, at: int, rows: list[Row]) -> Path:
    """Write a file under a name that the source does not read yet. Its modification time makes Spark read files in order."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{at:05d}.parquet"
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in SCHEMA]
    temporary = directory / f".{path.name}"
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), temporary)
    os.utime(temporary, (BEGIN_US // SECOND + at, BEGIN_US // SECOND + at))
    temporary.rename(path)
    return path


def files_of(seed: int | str, files: int, path: Path | None = None) -> list[list[Row]]:
    """The input of a seed."""
    random = Random(f"data/{seed}")
    raw = generated(random, files * ROWS) if path is None else real(path, random, files * ROWS)
    return arrange(raw, random)
