"""Partial aggregates: rows split in any way and merged in any grouping give what all rows at once give."""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, settings
from hypothesis import given as given_any
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.operators import partials as P
from headrace.operators.partials import Partial
from tests.examples import examples

NAN, INF = float("nan"), float("inf")

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "smallint": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "decimal": (pa.decimal128(38, 2), st.decimals(min_value=-(10**20), max_value=10**20, places=2)),
    "string": (pa.string(), st.text(max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.integers(-(2**60), 2**60)),
    "timestamp_ntz": (pa.timestamp("us"), st.integers(-(2**60), 2**60)),
    "interval": (pa.duration("us"), st.integers(-(2**60), 2**60)),
    "time": (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
}

kinds = pytest.mark.parametrize("kind", list(VALUES))


def given(*strategies: st.SearchStrategy[Any]) -> Any:
    """There are many parameters, so each gets few examples. There is no deadline, since the machine may be busy."""
    return lambda test: settings(max_examples=examples(30), deadline=None)(given_any(*strategies)(test))


@dataclass(frozen=True)
class Split:
    """Rows as partials of one row each, cut into segments twice: into parts, and parts into groups."""

    parts: list[int]
    """Where parts begin."""
    groups: list[int]
    """At which part each group begins."""

    def direct(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([self.parts[g] for g in self.groups])


@st.composite
def splits(draw: st.DrawFn, rows: int) -> Split:
    parts = sorted({0, *draw(st.sets(st.integers(0, rows - 1)))})
    groups = sorted({0, *draw(st.sets(st.integers(0, len(parts) - 1)))})
    return Split(parts, groups)


def splits_into_one(rows: int) -> st.SearchStrategy[Split]:
    """Any parts, all of one group."""
    return splits(rows).map(lambda split: Split(split.parts, [0]))


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(st.none(), values), min_size=1, max_size=25)


def split_of(data: st.DataObject, rows: int) -> Split:
    return data.draw(splits(rows))


def both_ways(partial: Partial, columns: list[pa.Array], split: Split) -> tuple[list[list[Any]], list[list[Any]]]:
    """Merge all at once, and in parts; also from slices, whose buffers have an offset."""
    padded = [pa.concat_arrays([c.slice(0, 1), c]).slice(1) for c in columns]
    once = partial.merge(padded, split.direct())
    parts = partial.merge(columns, np.array(split.parts))
    twice = partial.merge(parts, np.array(split.groups))
    for merged in (once, parts, twice):
        assert [c.type for c in merged] == list(partial.types)
    return [plain(c) for c in once], [plain(c) for c in twice]


def plain(column: pa.Array) -> list[Any]:
    """Python values; times as numbers, since python's own do not reach as far as Spark's."""
    if pa.types.is_list(column.type) and pa.types.is_temporal(column.type.value_type):
        column = column.cast(pa.list_(pa.int32() if pa.types.is_date32(column.type.value_type) else pa.int64()))
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def groups_of(values: list[Any], split: Split) -> list[list[Any]]:
    edges = [*split.direct().tolist(), len(values)]
    return [values[a:b] for a, b in itertools.pairwise(edges)]


def spark_key(value: Any) -> Any:
    """Spark's order: NaN after every number, strings by their bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


@kinds
@pytest.mark.parametrize("greatest", [False, True])
@given(st.data())
def test_least_and_greatest(kind: str, greatest: bool, data: st.DataObject) -> None:
    type_, values = VALUES[kind]
    column = pa.array(data.draw(nullable(values)), type_)
    split = split_of(data, len(column))
    once, twice = both_ways(P.Extreme(type_, greatest), [column], split)
    wanted = []
    for group in groups_of(plain(column), split):
        present = [v for v in group if v is not None]
        wanted.append((max if greatest else min)(present, key=spark_key) if present else None)
    for found in (once, twice):
        assert [spark_key(v) for v in found[0]] == [spark_key(v) for v in wanted]


@given(st.data())
def test_count(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 2**40), min_size=1))
    split = split_of(data, len(counts))
    once, twice = both_ways(P.Count(), [pa.array(counts, pa.int64())], split)
    assert once == twice == [[sum(g) for g in groups_of(counts, split)]]


@given(st.data())
def test_sum_of_whole_numbers(data: st.DataObject) -> None:
    values = data.draw(nullable(st.integers(-(2**40), 2**40)))
    split = split_of(data, len(values))
    once, twice = both_ways(P.Sum(pa.int64()), [pa.array(values, pa.int64())], split)
    wanted = [sum(v for v in g if v is not None) if any(v is not None for v in g) else None for g in groups_of(values, split)]
    assert once == twice == [wanted]


@given(st.data())
def test_sum_that_may_wrap(data: st.DataObject) -> None:
    values = data.draw(nullable(st.integers(-(2**63), 2**63 - 1)))
    split = split_of(data, len(values))
    once, twice = both_ways(P.Sum(pa.int64(), checked=False), [pa.array(values, pa.int64())], split)
    wrap = lambda n: (n + 2**63) % 2**64 - 2**63  # noqa: E731
    wanted = [wrap(sum(v for v in g if v is not None)) if any(v is not None for v in g) else None for g in groups_of(values, split)]
    assert once == twice == [wanted]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
@example([2**63 - 1, 1])
@example([-(2**63), -1])
@example([2**63 - 1, 0])
@example([-(2**63), 2**63 - 1, -1])
def test_an_overflow_is_an_error_and_nothing_else_is(values: list[int]) -> None:
    total = sum(values)
    merge = lambda: P.Sum(pa.int64()).merge([pa.array(values, pa.int64())], np.array([0]))  # noqa: E731
    if -(2**63) <= total < 2**63:
        assert merge()[0].to_pylist() == [total]
    else:
        with pytest.raises(QueryError, match="overflow"):
            merge()


@given(st.data())
def test_sum_of_floating_numbers(data: st.DataObject) -> None:
    values = data.draw(nullable(st.floats(-1e15, 1e15) | st.sampled_from([NAN, INF, -INF])))
    split = split_of(data, len(values))
    with np.errstate(invalid="ignore"):
        once, twice = both_ways(P.Sum(pa.float64()), [pa.array(values, pa.float64())], split)
    scale = sum(abs(v) for v in values if v is not None and math.isfinite(v))
    for a, b, group in zip(once[0], twice[0], groups_of(values, split), strict=True):
        present = [v for v in group if v is not None]
        if not present:
            assert a is None
            assert b is None
        else:
            wanted = sum(present)
            assert a == pytest.approx(wanted, rel=1e-12, abs=1e-12 * scale, nan_ok=True)
            assert b == pytest.approx(wanted, rel=1e-12, abs=1e-12 * scale, nan_ok=True)


@pytest.mark.parametrize("precision", [38, 20, 10])
@given(st.data())
def test_decimal_sum_is_exact_or_lost(precision: int, data: st.DataObject) -> None:
    """A sum beyond the precision is null and not empty, and stays lost, as in Spark."""
    bound = 10**precision - 1
    near = st.sampled_from([bound, -bound, bound // 2, -bound // 2, 0, 1, -1])
    values = data.draw(nullable(st.integers(-bound, bound) | near))
    split = split_of(data, len(values))
    type_ = pa.decimal128(precision, 0)
    column = pa.array([None if v is None else Decimal(v) for v in values], type_)
    once, twice = both_ways(P.DecimalSum(type_), [column, pa.array([v is None for v in values])], split)
    for i, group in enumerate(groups_of(values, split)):
        present = [v for v in group if v is not None]
        assert once[1][i] == twice[1][i] == (not present)
        total = sum(present)
        fits = abs(total) <= bound
        assert once[0][i] == (Decimal(total) if fits else None)
        # A part of the group may overflow although the whole does not: then, as in Spark, it is lost.
        assert twice[0][i] in ((Decimal(total), None) if fits else (None,))
        if abs(max(present, default=0)) <= bound // 30 and abs(min(present, default=0)) <= bound // 30:
            assert twice[0][i] == Decimal(total)


def test_an_overflowed_decimal_stays_lost() -> None:
    type_ = pa.decimal128(38, 0)
    partial = P.DecimalSum(type_)
    columns = [pa.array([None, Decimal(1), None], type_), pa.array([False, False, True])]
    assert [c.to_pylist() for c in partial.merge(columns, np.array([0]))] == [[None], [False]]


def moments_of(values: list[float | None]) -> list[pa.Array]:
    n = [0.0 if v is None else 1.0 for v in values]
    mean = [0.0 if v is None else v for v in values]
    return [pa.array(n), pa.array(mean), pa.array([0.0 if v is None else v - v for v in values])]


@given(st.data())
def test_moments(data: st.DataObject) -> None:
    values = data.draw(nullable(st.floats(-1e6, 1e6)))
    split = split_of(data, len(values))
    once, twice = both_ways(P.Moments(), moments_of(values), split)
    for i, group in enumerate(groups_of(values, split)):
        present = [v for v in group if v is not None]
        mean = math.fsum(present) / len(present) if present else 0.0
        m2 = math.fsum((v - mean) ** 2 for v in present)
        for found in (once, twice):
            assert found[0][i] == len(present)
            assert found[1][i] == pytest.approx(mean, rel=1e-12, abs=1e-9)
            assert found[2][i] == pytest.approx(m2, rel=1e-9, abs=1e-9 * (1 + m2))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 40), st.data())
def test_equal_values_have_no_variance_at_all(value: float, rows: int, data: st.DataObject) -> None:
    values: list[float | None] = data.draw(st.lists(st.sampled_from([value, None]), min_size=rows, max_size=rows))
    split = split_of(data, len(values))
    _, twice = both_ways(P.Moments(), moments_of(values), split)
    assert set(twice[2]) == {0.0}
    assert set(twice[1]) <= {0.0, value}


@pytest.mark.parametrize("special", [NAN, INF, -INF])
def test_moments_of_special_values_are_nan(special: float) -> None:
    _, mean, m2 = P.Moments().merge(moments_of([1.0, special, None]), np.array([0]))
    assert math.isnan(m2[0].as_py())
    assert not math.isfinite(mean[0].as_py())


few = {
    "double": (pa.float64(), st.sampled_from([0.0, 1.0, NAN, -INF])),
    "bigint": (pa.int64(), st.integers(0, 3)),
    "string": (pa.string(), st.sampled_from(["", "a", "b"])),
    "boolean": (pa.bool_(), st.booleans()),
}


@pytest.mark.parametrize("greatest", [False, True])
@pytest.mark.parametrize("order_kind", list(few))
@pytest.mark.parametrize("value_kind", ["bigint", "string", "double"])
@given(st.data())
def test_the_value_of_the_least_or_greatest_order(value_kind: str, order_kind: str, greatest: bool, data: st.DataObject) -> None:
    (v_type, v_values), (o_type, o_values) = few[value_kind], few[order_kind]
    pairs = data.draw(st.lists(st.tuples(st.none() | v_values, st.none() | o_values), min_size=1, max_size=20))
    split = split_of(data, len(pairs))
    columns = [pa.array([v for v, _ in pairs], v_type), pa.array([o for _, o in pairs], o_type)]
    once, twice = both_ways(P.Pick(v_type, o_type, greatest), columns, split)
    for i, group in enumerate(groups_of(pairs, split)):
        ordered = [(v, o) for v, o in group if o is not None]
        if not ordered:
            # Without an order there is no winner: the null order marks the kept value as not valid.
            assert once[1][i] is None
            assert twice[1][i] is None
            continue
        best = (max if greatest else min)((o for _, o in ordered), key=spark_key)
        tied = [repr(v) for v, o in ordered if spark_key(o) == spark_key(best)]
        assert repr(once[0][i]) == repr(twice[0][i])
        assert repr(once[0][i]) in tied
        assert spark_key(once[1][i]) == spark_key(best)


structs = pa.struct([("a", pa.int64()), ("b", pa.struct([("x", pa.float64()), ("y", pa.string())]))])
some_structs = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(0, 1),
        "b": st.none()
        | st.fixed_dictionaries({"x": st.sampled_from([None, 0.0, -0.0, 1.0, NAN, -INF]), "y": st.sampled_from([None, "", "a", "é"])}),
    }
)


def struct_key(value: dict[str, Any]) -> Any:
    """Spark's order of structs: field by field (here the alphabet's order), null first."""
    fields = [value[name] for name in sorted(value)]
    return tuple((0,) if v is None else (1, struct_key(v) if isinstance(v, dict) else spark_key(v)) for v in fields)


@pytest.mark.parametrize("greatest", [False, True])
@given(st.lists(st.none() | some_structs, min_size=1, max_size=20), st.data())
def test_least_and_greatest_structs(greatest: bool, rows: list[Any], data: st.DataObject) -> None:
    split = split_of(data, len(rows))
    once, twice = both_ways(P.Extreme(structs, greatest), [pa.array(rows, structs)], split)
    for i, group in enumerate(groups_of(rows, split)):
        present = [struct_key(v) for v in group if v is not None]
        for found in (once[0][i], twice[0][i]):
            assert (None if found is None else struct_key(found)) == ((max if greatest else min)(present) if present else None)


@pytest.mark.parametrize("greatest", [False, True])
@given(st.data())
def test_all_values_are_picked_from_one_row_however_rows_are_split(greatest: bool, data: st.DataObject) -> None:
    """Rows with many ties, in any order, cut in any way: always the same row, and always one of those that were there."""
    values = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "a", "z"]), st.sampled_from([None, [], [None], [1]]))
    drawn = data.draw(st.lists(st.tuples(values, st.none() | some_structs), min_size=1, max_size=15))
    # The compiler makes a tie of all values.
    rows = [(*row, order, zlib.crc32(repr(row).encode())) for row, order in drawn]
    partial = P.PickRow((pa.int64(), pa.string(), pa.list_(pa.int64())), structs, greatest)
    picked = []
    for _ in range(2):
        rows = data.draw(st.permutations(rows))
        columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(partial.types)]
        for way in both_ways(partial, columns, data.draw(splits_into_one(len(rows)))):
            picked.append(tuple(column[0] for column in way))
    ordered = [row for row in rows if row[3] is not None]
    if not ordered:
        assert all(row[3] is None for row in picked)
        return
    best = (max if greatest else min)(struct_key(row[3]) for row in ordered)
    assert len({repr((*row[:3], row[4])) for row in picked}) == 1
    assert repr((*picked[0][:3], picked[0][4])) in {repr((*row[:3], row[4])) for row in ordered if struct_key(row[3]) == best}


@pytest.mark.parametrize("kind", ["bigint", "double", "string", "binary", "decimal", "boolean", "date", "timestamp"])
@given(st.data())
def test_distinct_values(kind: str, data: st.DataObject) -> None:
    type_, values = VALUES[kind]
    # Before the operator, Spark gives all zeros one sign, and all that is no number the same bits (compile/types.py, normalize).
    normal = values.map(lambda v: math.nan if v != v else abs(v) if v == 0 else v) if kind == "double" else values
    pool = data.draw(st.lists(normal, min_size=1, max_size=4))
    rows = data.draw(st.lists(st.lists(st.sampled_from(pool), max_size=1), min_size=1, max_size=20))
    split = split_of(data, len(rows))
    lists = pa.list_(type_)
    once, twice = both_ways(P.Distinct(type_), [pa.array(rows, lists)], split)
    for i, group in enumerate(groups_of(plain(pa.array(rows, lists)), split)):
        wanted = sorted({repr(v) for row in group for v in row})
        assert sorted(map(repr, once[0][i])) == wanted
        assert sorted(map(repr, twice[0][i])) == wanted


@given(st.data())
def test_registers_keep_the_greatest_rank(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=1), min_size=1, max_size=20))
    split = split_of(data, len(rows))
    column = pa.array([[i << 8 | r for i, r in row] for row in rows], pa.list_(pa.int32()))
    once, twice = both_ways(P.Registers(), [column], split)
    assert once == twice
    for i, group in enumerate(groups_of(rows, split)):
        wanted: dict[int, int] = {}
        for row in group:
            for index, rank in row:
                wanted[index] = max(rank, wanted.get(index, 0))
        assert once[0][i] == [index << 8 | rank for index, rank in sorted(wanted.items())]


def test_two_partials_side_by_side() -> None:
    both = P.Both(P.Sum(pa.int64()), P.Count())
    columns = [pa.array([1, None, 3], pa.int64()), pa.array([1, 0, 1], pa.int64())]
    assert [c.to_pylist() for c in both.merge(columns, np.array([0, 2]))] == [[1, 3], [1, 1]]


@pytest.mark.parametrize(
    ("partial", "row"),
    [
        (P.Count(), [3]),
        (P.Sum(pa.int64()), [5]),
        (P.DecimalSum(pa.decimal128(10, 0)), [Decimal(7), False]),
        (P.Extreme(pa.string(), True), ["a"]),
        (P.Moments(), [2.0, 1.5, 0.5]),
        (P.Pick(pa.int64(), pa.int64(), False), [1, 2]),
        (P.PickRow((pa.string(), pa.map_(pa.string(), pa.int64())), pa.struct([("t", pa.int64())]), True), ["a", [("b", 1)], {"t": 2}, 7]),
        (P.Distinct(pa.int64()), [[1, 2]]),
        (P.Registers(), [[257]]),
        (P.Both(P.Sum(pa.float64()), P.Count()), [1.5, 1]),
    ],
)
def test_no_rows_change_nothing(partial: Partial, row: list[Any]) -> None:
    columns = [pa.array([none, value], kind) for none, value, kind in zip(partial.neutral(), row, partial.types, strict=True)]
    assert [c.to_pylist() for c in partial.merge(columns, np.array([0]))] == [[value] for value in row]
