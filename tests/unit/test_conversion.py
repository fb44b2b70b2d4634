"""Runs of an earlier layout are read under the present one: random rows, random changes of columns, one after the other."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptStateError, InvariantError
from headrace.ids import SLOTS, RunSeq
from headrace.operators.description import describe_partial
from headrace.operators.partials import Count, Extreme, Partial, Registers, Sum
from headrace.runtime.evolution import renamed
from headrace.state.conversion import ColumnFrom, Conversion, can_widen
from headrace.state.layout import DELETED, HASH, Layout
from headrace.state.run import RunReader, RunRef, write_run

KEYS = (("k0", pa.int64()),)
TYPES = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.large_string(), pa.decimal128(10, 2), pa.decimal128(14, 3))


def layout(*types: pa.DataType) -> Layout:
    return Layout(KEYS, tuple((f"p{at}", each) for at, each in enumerate(types)))


def rows(of: Layout, count: int, deleted: bool = False) -> pa.RecordBatch:
    hashes = np.sort(np.random.default_rng(count).integers(0, 2**63, count).astype(np.uint64)) * np.uint64(2)
    columns: list[Any] = [pa.array(hashes), pa.array(range(count), pa.int64())]
    for at, (_, kind) in enumerate(of.values):
        make: Any = str if kind == pa.large_string() else Decimal if pa.types.is_decimal(kind) else int
        columns.append(pa.array([None if each % 5 == 4 else make(each + at) for each in range(count)], kind))
    names = [*of.schema.names]
    if deleted:
        columns.append(pa.array([each % 2 == 0 for each in range(count)]))
        names.append(DELETED)
    return pa.RecordBatch.from_arrays(columns, names=names)


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[pa.DataType], list[list[tuple[int | None, pa.DataType]]]]:
    """The types of a first layout, and changes: for each column of the next one its place before, or None, and its type."""
    first = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    now, steps = first, []
    for _ in range(draw(st.integers(1, 3))):
        step: list[tuple[int | None, pa.DataType]] = []
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.one_of(st.none(), st.integers(0, len(now) - 1)))
            kind = draw(st.sampled_from([each for each in TYPES if at is None or each == now[at] or can_widen(now[at], each)]))
            step.append((at, kind))
        steps.append(step)
        now = [kind for _, kind in step]
    return first, steps


@given(changes(), st.integers(0, 12), st.booleans())
def test_several_changes_in_one_step_are_the_changes_one_after_the_other(
    case: tuple[list[pa.DataType], list[list[tuple[int | None, pa.DataType]]]], count: int, deleted: bool
) -> None:
    first, steps = case
    of, at_once = layout(*first), None
    stepwise = rows(of, count, deleted)
    original = stepwise
    for step in steps:
        conversion = Conversion(
            of.fingerprint, tuple(ColumnFrom(f"p{i}", None if at is None else f"p{at}") for i, (at, _) in enumerate(step))
        )
        of = layout(*(kind for _, kind in step))
        stepwise = conversion.apply(stepwise, of)
        at_once = conversion if at_once is None else at_once.then(conversion)
    assert at_once is not None
    again = Conversion.from_json(json.loads(json.dumps(at_once.to_json())))
    assert again.apply(original, of).equals(stepwise)
    assert stepwise.schema.names == [*of.schema.names, *([DELETED] if deleted else [])]
    assert stepwise.column(HASH).equals(original.column(HASH))


def test_a_run_of_an_earlier_layout_is_read_and_one_of_an_unknown_layout_is_not(tmp_path: Path) -> None:
    old, new = layout(pa.int32()), layout(pa.int64(), pa.int64())
    written = rows(old, 20)
    ref = write_run(tmp_path, "run.arrow", written, old, seq=RunSeq(1), lo=0, hi=SLOTS, sync=False)
    conversion = Conversion(old.fingerprint, (ColumnFrom("p0", None, 0), ColumnFrom("p1", "p0")))
    reader = RunReader(tmp_path, new, earlier=[conversion])
    for _ in range(2):
        found = reader.open(ref).rows
        assert found.schema.equals(new.schema)
        assert found.column("p0").to_pylist() == [0] * 20
        assert found.column("p1").to_pylist() == written.column("p0").to_pylist()
    half = RunRef(**{**ref.to_json(), "hi": SLOTS / 2})
    assert reader.open(half).rows.num_rows == reader.count(half) < 20
    # The same file, open in this process already, is still read under its own layout, and under no other.
    assert RunReader(tmp_path, old).open(ref).rows.equals(written)
    with pytest.raises(CorruptStateError, match="another version of the query"):
        RunReader(tmp_path, layout(pa.large_string())).open(ref)
    with pytest.raises(InvariantError):
        conversion.apply(written, layout(pa.int64()))


@pytest.mark.parametrize("partial", [Count(), Sum(pa.int64()), Extreme(pa.float64(), True), Registers()])
def test_an_added_partial_begins_as_that_of_no_rows(partial: Partial) -> None:
    """A stored row that gets the column is merged with later rows as if it had seen none."""
    value: Any = [3 << 8 | 5] if isinstance(partial, Registers) else 7
    columns = [pa.array([neutral, value], kind) for neutral, kind in zip(partial.neutral(), partial.types, strict=True)]
    merged = partial.merge(columns, np.array([0]))
    assert [column.to_pylist() for column in merged] == [[value]], describe_partial(partial)


def test_names_are_replaced_as_whole_words() -> None:
    names = {"v": "w", "a.b": "c"}
    assert renamed("sum(v) FILTER (WHERE (vv > v))", names) == "sum(w) FILTER (WHERE (vv > w))"
    assert renamed("max(a.b)", names) == "max(c)"
    assert renamed("v", {}) == "v"
