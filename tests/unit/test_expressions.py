"""Conditions over pairs of rows: three-valued logic, numbers at their limits, errors, and grids against brute force."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CheckpointError, QueryError, UnsupportedError
from headrace.operators import expressions as E
from headrace.operators import grid, vectors
from headrace.operators.evaluate import evaluate, holds
from headrace.operators.expressions import And, Arithmetic, Cast, Column, Compare, Expr, Literal, Math1, Math2, Not, Or
from headrace.operators.grid import evaluate_grid, holds_pairs
from headrace.operators.vectors import Vector, columns_from_arrow
from tests.examples import examples

NAN, INF = float("nan"), float("inf")
LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)


def L(name: str) -> Column:
    return Column("left", name)


def R(name: str) -> Column:
    return Column("right", name)


def rows(**columns: Any) -> dict[str, Vector]:
    batch = pa.RecordBatch.from_pydict({k: v if isinstance(v, pa.Array) else pa.array(v) for k, v in columns.items()})
    return columns_from_arrow(batch, batch.schema.names)


def value(expr: Expr, **columns: Any) -> list[Any]:
    """The expression's value per row, null as None."""
    side = rows(**columns)
    found = evaluate(expr, {"left": side, "right": {}})
    shape = (len(next(iter(side.values()))),)
    values = np.broadcast_to(found.values, shape).tolist()
    valid = np.broadcast_to(True if found.valid is None else found.valid, shape).tolist()
    return [v if ok else None for v, ok in zip(values, valid, strict=True)]


THREE = [True, True, True, False, False, False, None, None, None]
OTHER = [True, False, None] * 3


def test_and_or_and_not_know_three_values() -> None:
    assert value(And((L("a"), L("b"))), a=THREE, b=OTHER) == [True, False, None, False, False, False, None, False, None]
    assert value(Or((L("a"), L("b"))), a=THREE, b=OTHER) == [True, True, True, True, False, None, True, None, None]
    assert value(Not(L("a")), a=[True, False, None]) == [False, True, None]
    assert value(E.Same(L("a"), L("b")), a=THREE, b=OTHER) == [True, False, False, False, True, False, False, False, True]
    assert value(E.IsNull(L("a")), a=[True, None]) == [False, True]


def test_a_condition_holds_only_where_it_is_true() -> None:
    assert holds(L("a"), {"left": rows(a=[True, False, None]), "right": {}}).tolist() == [True, False, False]
    assert holds(Literal(True, "bool"), {"left": rows(a=[1, 2]), "right": {}}).tolist() == [True, True]


@pytest.mark.parametrize("right_literal", [False, True])
def test_nan_is_the_greatest_and_equals_itself(right_literal: bool) -> None:
    a = [NAN, NAN, 1.0, INF, -0.0]
    b = [NAN, 1.0, NAN, NAN, 0.0]
    order = [0, 1, -1, -1, 0]
    for op, keeps in (("eq", (0,)), ("ne", (-1, 1)), ("lt", (-1,)), ("le", (-1, 0)), ("gt", (1,)), ("ge", (0, 1))):
        wanted = [o in keeps for o in order]
        if right_literal:
            assert [value(Compare(op, L("a"), Literal(y, "float64")), a=[x])[0] for x, y in zip(a, b, strict=True)] == wanted
        else:
            assert value(Compare(op, L("a"), L("b")), a=a, b=b) == wanted
            single = {op: [value(Compare(op, L("a"), L("b")), a=[x], b=[y])[0] for x, y in zip(a, b, strict=True)]}
            assert single[op] == wanted


def test_texts_compare_by_their_bytes() -> None:
    left, right = rows(s=["a", "é", "\U0001f600", None, "\uffee"]), rows(s=["b", "z", "\uffee", "a", "\U0001f600"])
    sides = {"left": left, "right": right}
    assert holds(Compare("lt", L("s"), R("s")), sides).tolist() == [True, False, False, False, True]
    assert holds(Compare("eq", L("s"), Literal(b"a", "text")), sides).tolist() == [True, False, False, False, False]
    assert holds(E.TextTest("startswith", L("s"), "é".encode()), sides).tolist() == [False, True, False, False, False]
    assert holds(E.TextTest("contains", E.Coalesce((L("s"), R("s"))), b"a"), sides).tolist() == [True, False, False, True, False]


def test_integer_overflow_is_an_error_or_wraps_or_is_null() -> None:
    for op, a, b, wrapped in (
        ("add", LONG_MAX, 1, LONG_MIN),
        ("subtract", LONG_MIN, 1, LONG_MAX),
        ("multiply", LONG_MIN, -1, LONG_MIN),
        ("multiply", -1, LONG_MIN, LONG_MIN),
        ("multiply", 2**62, 2, LONG_MIN),
        ("multiply", 2**33, -(2**33), 0),
        ("quotient", LONG_MIN, -1, LONG_MIN),
    ):
        columns = {"a": [a, 7], "b": [b, 2]}
        fine = value(Arithmetic(op, L("a"), L("b"), "legacy"), **columns)[1]
        assert value(Arithmetic(op, L("a"), L("b"), "legacy"), **columns)[0] == wrapped
        assert value(Arithmetic(op, L("a"), L("b"), "try"), **columns) == [None, fine]
        with pytest.raises(QueryError, match="overflow"):
            value(Arithmetic(op, L("a"), L("b")), **columns)
    least = pa.array([-128, 5], pa.int8())
    assert value(E.Abs(L("a"), "legacy"), a=least) == [-128, 5]
    assert value(E.Negate(L("a"), "legacy"), a=least) == [-128, -5]
    with pytest.raises(QueryError, match="overflow"):
        value(E.Abs(L("a")), a=least)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("op", ["add", "subtract", "multiply"])
def test_overflow_is_found_exactly(kind: str, op: str) -> None:
    info = np.iinfo(kind)
    rng = np.random.default_rng(3)
    edges = [info.min, info.min + 1, -2, -1, 0, 1, 2, info.max - 1, info.max, int(info.max**0.5), -int(info.max**0.5) - 1, info.min // 2]
    edges += rng.integers(info.min, info.max, 20).tolist()
    a, b = (each.ravel().tolist() for each in np.meshgrid(np.array(edges, kind), np.array(edges, kind)))
    exact = [{"add": x + y, "subtract": x - y, "multiply": x * y}[op] for x, y in zip(a, b, strict=True)]
    wanted = [x if info.min <= x <= info.max else None for x in exact]
    columns = {"a": pa.array(a, pa.type_for_alias(kind)), "b": pa.array(b, pa.type_for_alias(kind))}
    assert value(Arithmetic(op, L("a"), L("b"), "try"), **columns) == wanted


def test_division_rounds_towards_zero_and_by_zero_is_null_or_an_error() -> None:
    a, b = [7, -7, 7, -7, 5, LONG_MIN, None], [2, 2, -2, -2, 0, 3, 0]
    assert value(Arithmetic("quotient", L("a"), L("b"), "legacy"), a=a, b=b) == [3, -3, -3, 3, None, -(2**63 // 3), None]
    assert value(Arithmetic("remainder", L("a"), L("b"), "legacy"), a=a, b=b) == [1, -1, 1, -1, None, -2, None]
    assert value(Arithmetic("remainder", L("a"), L("b")), a=[LONG_MIN], b=[-1]) == [0]
    assert value(Arithmetic("divide", L("a"), L("b"), "legacy"), a=[1.0, 1.0, 0.0], b=[2.0, -0.0, NAN])[:2] == [0.5, None]
    with pytest.raises(QueryError, match="division by zero"):
        value(Arithmetic("divide", L("a"), L("b")), a=[1.0], b=[0.0])
    assert value(Arithmetic("divide", L("a"), L("b")), a=[1.0, None], b=[None, 0.0]) == [None, None]


def test_errors_of_parts_that_spark_skips_are_not_raised() -> None:
    ratio = Compare("gt", Arithmetic("divide", Literal(1.0, "float64"), L("x")), Literal(0.1, "float64"))
    is_zero = Compare("eq", L("x"), Literal(0.0, "float64"))
    x = [0.0, 2.0, 100.0]
    assert value(And((Not(is_zero), ratio)), x=x) == [False, True, False]
    assert value(Or((is_zero, ratio)), x=x) == [True, True, False]
    assert value(E.CaseWhen((is_zero,), (Literal(None, "bool"),), ratio), x=x) == [None, True, False]
    assert value(E.Coalesce((L("y"), ratio)), x=x, y=[True, None, None]) == [True, True, False]
    for eager in (And((ratio, Not(is_zero))), Or((ratio, is_zero)), E.Coalesce((ratio, L("y")))):
        with pytest.raises(QueryError, match=r"1\.0 / left\.x.*division by zero"):
            value(eager, x=x, y=[True, None, None])


def test_casts_saturate_wrap_or_fail() -> None:
    d = [NAN, INF, -INF, 1.9, -1.9, 3e9, 200.7]
    assert value(Cast(L("d"), "int32", "legacy"), d=d) == [0, 2**31 - 1, -(2**31), 1, -1, 2**31 - 1, 200]
    assert value(Cast(L("d"), "int8", "legacy"), d=d) == [0, -1, 0, 1, -1, -1, -56]
    assert value(Cast(L("d"), "int8", "try"), d=d) == [None, None, None, 1, -1, None, None]
    assert value(Cast(L("n"), "int16", "legacy"), n=[70000, -1]) == [4464, -1]
    assert value(Cast(L("n"), "float64"), n=[2**53 + 1]) == [2.0**53]
    assert value(Cast(L("b"), "int32"), b=[True, False, None]) == [1, 0, None]
    with pytest.raises(QueryError, match="does not fit"):
        value(Cast(L("n"), "int16"), n=[70000])


def test_functions_at_their_limits() -> None:
    assert value(Math1("ln", L("d")), d=[0.0, -1.0, 1.0, None]) == [None, None, 0.0, None]
    assert np.isnan(value(Math1("ln", L("d")), d=[NAN])[0])
    assert np.isnan(value(Math1("sqrt", L("d")), d=[-1.0])[0])
    assert np.isnan(value(Math2("pow", L("d"), L("e")), d=[1.0, -1.0], e=[NAN, INF])).all()
    assert value(Math2("pow", L("d"), Literal(2.0, "float64")), d=[3.0, -1e200]) == [9.0, INF]
    assert value(E.Whole("floor", L("d"), "legacy"), d=[-0.5, 1e300, NAN]) == [-1, LONG_MAX, 0]
    assert value(E.Whole("ceil", L("d")), d=[-0.5, 1.2]) == [0, 2]
    assert value(E.IsNaN(L("d")), d=[NAN, None, 1.0]) == [True, False, False]


def test_arrow_columns_of_every_type_and_slices_of_them() -> None:
    decimal = pa.array([None, 100, -250, 3], pa.decimal128(10, 2)).slice(1)
    assert columns_from_arrow(pa.table({"m": decimal}), ["m"])["m"].values.tolist() == [10000, -25000, 300]
    times = pa.chunked_array([pa.array([1, None], pa.timestamp("ms", "UTC")), pa.array([3], pa.timestamp("ms", "UTC"))])
    found = columns_from_arrow(pa.table({"t": times}), ["t"])["t"]
    assert found.values.tolist() == [1000, 0, 3000]
    assert found.valid is not None
    assert found.valid.tolist() == [True, False, True]
    days = pa.array([5, None], pa.date32())
    assert columns_from_arrow(pa.table({"d": days}), ["d"])["d"].values.tolist() == [5, 0]
    words = pa.array(["b", "a", None, "b"]).dictionary_encode()
    assert columns_from_arrow(pa.table({"s": words}), ["s"])["s"].values.tolist()[:2] == [1, 0]
    with pytest.raises(UnsupportedError, match=r"^x: wanted a column .* found list"):
        columns_from_arrow(pa.table({"x": [[1]]}), ["x"])


NEAR = Compare("lt", E.Abs(Arithmetic("subtract", L("x"), R("x"))), Literal(5.0, "float64"))
EXPRESSIONS = [
    NEAR,
    And((NEAR, Compare("ne", L("k"), R("k")), Compare("gt", L("x"), Literal(20.0, "float64")))),
    And((Compare("eq", L("s"), R("s")), NEAR, Compare("lt", R("k"), Literal(5, "int64")))),
    Or((NEAR, Compare("eq", L("s"), Literal(b"s1", "text")), E.IsNull(R("x")))),
    Compare("le", Math1("sin", Arithmetic("multiply", L("x"), R("x"))), Math1("cos", R("x"))),
    Compare("lt", Arithmetic("multiply", Arithmetic("subtract", L("x"), R("x")), Arithmetic("subtract", L("x"), R("x"))), L("x")),
    And((Compare("ne", R("k"), Literal(0, "int64")), Compare("eq", Arithmetic("remainder", L("k"), R("k")), Literal(1, "int64")))),
    E.CaseWhen((Compare("lt", L("k"), R("k")),), (Compare("lt", L("s"), R("s")),), Literal(None, "bool")),
    E.Same(L("x"), R("x")),
    Not(Compare("ge", E.Coalesce((L("x"), R("x"))), Cast(R("k"), "float64"))),
    E.TextTest("startswith", E.Coalesce((L("s"), R("s"))), b"s"),
    Compare("gt", L("k"), Literal(3, "int64")),
    And((Literal(True, "bool"), Compare("gt", E.Whole("floor", L("x")), E.Negate(R("k"))))),
    And((Literal(False, "bool"), NEAR)),
]


def random_side(seed: int, count: int) -> dict[str, Vector]:
    rng = np.random.default_rng(seed)
    x = pa.array(rng.integers(0, 60, count) / 2.0, mask=rng.random(count) < 0.1)
    return rows(x=x, k=rng.integers(0, 10, count), s=pa.array([f"s{i}" if i else None for i in rng.integers(0, 6, count)], pa.string()))


def pairs(found: Iterator[tuple[Any, Any]]) -> list[tuple[int, int]]:
    return sorted((a, b) for left, right in found for a, b in zip(left.tolist(), right.tolist(), strict=True))


def by_brute_force(expr: Expr, left: dict[str, Vector], right: dict[str, Vector], n: int, m: int) -> list[tuple[int, int]]:
    a, b = (each.ravel() for each in np.meshgrid(np.arange(n), np.arange(m), indexing="ij"))
    taken = {"left": {k: v.take(a) for k, v in left.items()}, "right": {k: v.take(b) for k, v in right.items()}}
    mask = holds(expr, taken)
    return sorted(zip(a[mask].tolist(), b[mask].tolist(), strict=True))


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
@pytest.mark.parametrize(("n", "m"), [(40, 130), (90, 7), (1, 1), (0, 5), (700, 600)])
def test_a_grid_finds_what_brute_force_finds(expr: Expr, n: int, m: int) -> None:
    left, right = random_side(1, n), random_side(2, m)
    wanted = by_brute_force(expr, left, right, n, m)
    for tile in (grid.TILE_PAIRS, 20_000, 64):
        if n * m < 10_000 or tile > 64:
            assert pairs(evaluate_grid(expr, left, right, tile_pairs=tile)) == wanted
    rng = np.random.default_rng(5)
    if n and m:
        a, b = rng.integers(0, n, 3000), rng.integers(0, m, 3000)
        known = set(wanted)
        some = holds_pairs(expr, left, right, a, b)
        assert some.tolist() == [pair in known for pair in zip(a.tolist(), b.tolist(), strict=True)]
        assert holds_pairs(expr, left, right, a[:3], b[:3]).tolist() == some[:3].tolist()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 200), st.lists(st.sampled_from(EXPRESSIONS), min_size=1, max_size=3))
def test_conditions_joined_by_and_or_or_over_any_tiles(n: int, m: int, tile: int, items: list[Expr]) -> None:
    left, right = random_side(n, n), random_side(m + 100, m)
    for expr in (And(tuple(items)), Or(tuple(items))):
        assert pairs(evaluate_grid(expr, left, right, rows=(n, m), tile_pairs=tile)) == by_brute_force(expr, left, right, n, m)


def test_a_side_without_columns_and_a_condition_without_any() -> None:
    left = rows(x=[1.0, 7.0])
    above = Compare("gt", L("x"), Literal(5.0, "float64"))
    assert pairs(evaluate_grid(above, left, {}, rows=(2, 3))) == [(1, 0), (1, 1), (1, 2)]
    assert pairs(evaluate_grid(Literal(True, "bool"), {}, {}, rows=(2, 2))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert pairs(evaluate_grid(Literal(None, "bool"), {}, {}, rows=(2, 2))) == []


def test_a_condition_that_is_remembered_is_evaluated_on_other_rows() -> None:
    # Texts have other places among others' texts, parts of one side other values, and once a part fails where it did not before.
    named = Or((Compare("eq", L("a"), Literal(b"m", "text")), Compare("eq", R("a"), Literal(b"m", "text"))))
    smaller = Compare("lt", Arithmetic("quotient", Literal(10, "int64"), L("x")), Arithmetic("add", R("x"), Literal(1, "int64")))
    condition = And((named, smaller))
    first = rows(a=["m", "n"], x=[10, 2]), rows(a=["m", "a"], x=[1, 9])
    assert pairs(evaluate_grid(condition, *first)) == [(0, 0), (0, 1)]
    second = rows(a=["z", "b", "m"], x=[5, 1, 10]), rows(a=["c", "m"], x=[2, 8])
    assert pairs(evaluate_grid(condition, *second)) == [(0, 1), (2, 0), (2, 1)]
    with pytest.raises(QueryError, match="zero"):
        list(evaluate_grid(condition, rows(a=["m"], x=[0]), rows(a=["m"], x=[1])))
    assert pairs(evaluate_grid(condition, *first)) == [(0, 0), (0, 1)]


def test_what_is_remembered_is_told_apart_by_identity_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Expr] = []
    known = vectors.remembered(lambda expr: made.append(expr) or len(made))
    one, same = Literal(0.0, "float64"), Literal(-0.0, "float64")
    assert [known(one), known(same), known(one)] == [1, 2, 1]
    monkeypatch.setattr(vectors, "REMEMBERED_MAX", 2)
    assert [known(Literal(3, "int64")), known(one)] == [3, 4]


def test_a_grid_raises_only_for_pairs_that_come_to_the_error() -> None:
    left, right = rows(x=[1.0, 2.0], y=[0.0, 4.0]), rows(x=[0.0, 2.0], y=[1.0, 1.0])
    ratio = Compare("gt", Arithmetic("divide", L("x"), R("x")), Literal(0.1, "float64"))
    guarded = And((Compare("ne", R("x"), Literal(0.0, "float64")), ratio))
    assert pairs(evaluate_grid(guarded, left, right)) == [(0, 1), (1, 1)]
    # A guard over both sides: the row of zeros is never divided by.
    guarded = And((Compare("gt", Arithmetic("multiply", R("x"), L("x")), Literal(0.0, "float64")), ratio))
    assert pairs(evaluate_grid(guarded, left, right)) == [(0, 1), (1, 1)]
    own = Compare("gt", Arithmetic("divide", Literal(1.0, "float64"), L("y")), Literal(0.1, "float64"))
    assert pairs(evaluate_grid(And((Compare("gt", L("x"), R("x")), Compare("gt", L("y"), R("y")), own)), left, right)) == [(1, 0)]
    with pytest.raises(QueryError, match=r"^my condition: found a division by zero"):
        list(evaluate_grid(ratio, left, right, where="my condition"))


def test_integers_too_large_for_their_difference_fail_only_where_it_overflows() -> None:
    left, right = rows(k=[LONG_MAX, 3]), rows(k=[1, 2])
    near = Compare("lt", E.Abs(Arithmetic("subtract", L("k"), R("k"))), Literal(5, "int64"))
    assert pairs(evaluate_grid(near, left, right)) == [(1, 0), (1, 1)]
    with pytest.raises(QueryError, match="overflow"):
        list(evaluate_grid(near, left, rows(k=[-1, 2])))


@pytest.mark.parametrize("expr", [*EXPRESSIONS, Literal(NAN, "float64"), Literal(-INF, "float32")], ids=str)
def test_a_description_is_json_and_gives_the_tree_again(expr: Expr) -> None:
    text = json.dumps(E.describe(expr), allow_nan=False)
    assert E.from_description(json.loads(text)) == expr


@pytest.mark.parametrize(
    "about",
    [
        {"kind": "exec", "code": "1"},
        {"kind": "math1", "function": "system", "child": {"kind": "column", "side": "left", "name": "x"}},
        {"kind": "column", "side": "middle", "name": "x"},
        {"kind": "literal", "value": 1, "type": "object"},
        {"kind": "compare", "op": "add", "left": {}, "right": {}},
    ],
)
def test_unknown_names_in_a_description_are_refused(about: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="wanted a known"):
        E.from_description(about)


def test_literals_that_python_takes_for_equal_are_not() -> None:
    assert Literal(0.0, "float64") != Literal(-0.0, "float64")
    assert Literal(1, "int64") != Literal(True, "bool")
    assert Literal(NAN, "float64") == Literal(NAN, "float64")


def test_the_examples_in_docstrings_hold() -> None:
    result = doctest.testmod(E)
    assert result.attempted
    assert not result.failed
