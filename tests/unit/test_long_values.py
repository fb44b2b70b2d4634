"""Columns with more bytes of text than 32-bit offsets reach: nothing is dropped on the way in, in the state, or on the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import QueryError
from headrace.operators.sets import list_offsets
from headrace.runtime import border
from headrace.state.layout import HASH, Layout, one_batch
from headrace.state.merge import merge_rows
from headrace.state.run import RunReader, write_run
from headrace.state.segments import sort_into_segments

MEGABYTE = 1 << 20
KEYS = 2200
SCHEMA = pa.schema([(HASH, pa.uint64()), ("k0", pa.int64()), ("p0", pa.large_string())])


def from_spark(keys: int, size: int, chunks: int) -> pa.Table:
    """Rows as Spark gives them: in pieces, texts with offsets of 32 bits, hashes signed. The text of key n begins with n."""
    parts = []
    for at in np.array_split(np.arange(keys, dtype=np.int64), chunks):
        texts = pa.array([f"{n:08d}".ljust(size, "x") for n in at], pa.string())
        parts.append(pa.RecordBatch.from_arrays([pa.array(at << 40), pa.array(at), texts], names=SCHEMA.names))
    return pa.Table.from_batches(parts)


def firsts(rows: pa.RecordBatch | pa.Table) -> list[int]:
    return [int(str(value)[:8]) for value in rows.column("p0")]


def test_pieces_become_one_batch_with_every_row() -> None:
    rows = one_batch(from_spark(50, 20, 7), SCHEMA)
    assert rows.schema.types == SCHEMA.types
    assert firsts(rows) == list(range(50))
    assert one_batch(from_spark(5, 20, 1), SCHEMA).num_rows == 5


def test_rows_go_to_spark_in_pieces_that_fit_and_in_its_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(border, "BATCH_BYTES", 1000)
    rows = one_batch(from_spark(50, 90, 3), SCHEMA)
    pieces = list(border.spark_batches(rows))
    assert len(pieces) > 5
    assert all(piece.nbytes <= 1000 for piece in pieces)
    assert list(pieces[0].schema.types) == [pa.uint64(), pa.int64(), pa.string()]
    assert firsts(pa.Table.from_batches(pieces)) == list(range(50))
    # A single row is never cut.
    assert len(list(border.spark_batches(one_batch(from_spark(2, 5000, 1), SCHEMA)))) == 2


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (pa.large_binary(), pa.binary()),
        (pa.struct([("a", pa.large_string()), ("b", pa.int64())]), pa.struct([("a", pa.string()), ("b", pa.int64())])),
        (pa.list_(pa.large_string()), pa.list_(pa.string())),
        (pa.map_(pa.large_string(), pa.large_binary()), pa.map_(pa.string(), pa.binary())),
        (pa.map_(pa.int64(), pa.int64()), pa.map_(pa.int64(), pa.int64())),
    ],
    ids=str,
)
def test_types_of_spark(kind: pa.DataType, wanted: pa.DataType) -> None:
    assert border.spark_type(kind) == wanted


def test_more_elements_than_lists_can_hold_are_refused() -> None:
    assert list_offsets(np.array([2, 0, 3])).to_pylist() == [0, 2, 2, 5]
    with pytest.raises(QueryError, match="rescale"):
        list_offsets(np.array([2**31 - 1, 1]))


@pytest.mark.extra
@pytest.mark.slow
def test_more_than_two_gibibytes_of_text(tmp_path: Path) -> None:
    """In as pieces, sorted, written as a run, read, merged with another run, and out as pieces again."""
    layout = Layout((("k0", pa.int64()),), (("p0", pa.large_string()),))
    rows, starts = sort_into_segments(one_batch(from_spark(KEYS, MEGABYTE, 40), SCHEMA), layout)
    assert len(starts) == rows.num_rows == KEYS
    old = write_run(tmp_path, "old.arrow", rows, layout, seq=1, lo=0, hi=4096, sync=False)
    newer = rows.slice(KEYS - 2)
    del rows
    merged = merge_rows([newer, RunReader(tmp_path, layout).open(old).rows], layout, lambda columns, _: columns)
    assert firsts(merged) == list(range(KEYS))
    seen = []
    for piece in border.spark_batches(merged):
        assert piece.schema.types == [pa.uint64(), pa.int64(), pa.string()]
        seen += firsts(piece)
    assert seen == list(range(KEYS))
