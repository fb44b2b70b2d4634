"""Sorting rows into state order: each distinct key is one stretch, also where keys share a hash."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.state.layout import Layout, hashes, subs
from headrace.state.segments import int_order, key_starts, sort_into_segments

POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
points = st.one_of(st.none(), st.fixed_dictionaries({"x": st.one_of(st.none(), st.integers(0, 2)), "y": st.sampled_from([None, "", "a"])}))
KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), st.sampled_from([None, "", "a", "b", "é"])),
    "binary": (pa.binary(), st.sampled_from([None, b"", b"\x00", b"\xff"])),
    "bigint": (pa.int64(), st.sampled_from([None, 0, -1, 1])),
    "boolean": (pa.bool_(), st.sampled_from([None, True, False])),
    "double": (pa.float64(), st.sampled_from([None, 0.0, 1.5, float("nan"), float("-inf")])),
    "float": (pa.float32(), st.sampled_from([None, 0.0, 1.5, float("nan")])),
    "decimal": (pa.decimal128(38, 18), st.sampled_from([None, Decimal(0), Decimal(1), Decimal("-1.5")])),
    "struct": (POINT, points),
    "struct of struct": (pa.struct([("p", POINT)]), st.one_of(st.none(), st.fixed_dictionaries({"p": points}))),
}


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


@pytest.mark.parametrize("kind", list(KEYS))
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_each_key_is_one_stretch_in_input_order(kind: str, data: st.DataObject) -> None:
    """Hashes of two values only, drawn per key: most different keys collide."""
    type_, values = KEYS[kind]
    keys = data.draw(st.lists(values, max_size=30))
    has_sub = data.draw(st.booleans())
    layout = Layout((("k0", type_),), (("p0", pa.int64()),), has_sub=has_sub)
    h = np.array([len(repr(k)) % 2 for k in keys], dtype=np.uint64)
    sub = data.draw(st.lists(st.integers(-1, 1), min_size=len(keys), max_size=len(keys)))
    columns = [
        pa.array(h),
        pa.array(keys, type_),
        *([pa.array(sub, pa.int64())] if has_sub else []),
        pa.array(range(len(keys)), pa.int64()),
    ]
    # A slice, so that offsets into the buffers are not zero.
    padded = [pa.concat_arrays([pa.nulls(1, c.type), c]).slice(1) if c.type == type_ else c for c in columns]
    rows = pa.RecordBatch.from_arrays(padded, schema=layout.schema)
    ordered, starts = sort_into_segments(rows, layout)
    assert np.all(hashes(ordered)[1:] >= hashes(ordered)[:-1])
    groups = []
    for begin, end in itertools.pairwise([*starts, len(keys)]):
        part = ordered.slice(begin, end - begin)
        found = part.column("k0").to_pylist()
        assert all(same(k, found[0]) for k in found)
        order = part.column("p0").to_pylist()
        assert order == sorted(order)
        groups.append((repr(found[0]), int(subs(part)[0]) if has_sub else 0))
    wanted = {(repr(k), s if has_sub else 0) for k, s in zip(pa.array(keys, type_).to_pylist(), sub, strict=True)}
    assert sorted(groups) == sorted(wanted)
    by_key = key_starts(ordered, layout)
    assert len(by_key) == len({k for k, _ in wanted})


@given(st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)))
def test_whole_numbers_are_sorted_and_equal_ones_keep_their_order(values: list[int]) -> None:
    numbers = np.array(values, dtype=np.int64)
    assert int_order(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()
