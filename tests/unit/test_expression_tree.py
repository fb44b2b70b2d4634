"""Conditions and aggregates are compiled from plain data: each name that the readers of Spark's trees know has a meaning."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from headrace.compile import functions
from headrace.compile.vectorise import _CALLS, vectorise
from headrace.errors import UnsupportedError
from headrace.operators import expressions as E
from headrace.spark import aggregation, expression_tree
from headrace.spark.expression_tree import Attribute, Call, Constant, Node, Unknown
from headrace.spark.versions import SUPPORTED

X, Y = Attribute("x#1", T.DoubleType(), "x"), Attribute("y#2", T.DoubleType(), "y")
SIDES = {"x#1": ("left", "x"), "y#2": ("right", "y")}


def test_every_call_that_is_read_is_translated() -> None:
    assert set(expression_tree.FUNCTIONS.values()) == set(_CALLS)


def test_every_aggregate_function_that_is_read_is_compiled() -> None:
    assert {*aggregation.FUNCTIONS.values(), *aggregation.SEVERAL.values()} == set(functions.BUILDERS)


def test_a_call_keeps_its_mode() -> None:
    total = Call("add", (X, Y), T.DoubleType(), "(x + y)", mode="try")
    near = Call("lt", (total, Constant(5, T.DoubleType(), "5.0D")), T.BooleanType(), "((x + y) < 5.0D)")
    assert vectorise(near, SIDES.get) == E.Compare(
        "lt", E.Arithmetic("add", E.Column("left", "x"), E.Column("right", "y"), "try"), E.Literal(5.0, "float64")
    )


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (Unknown("Round", T.DoubleType(), "round(x, 1)"), "Round"),
        (Attribute("z#3", T.DoubleType(), "z"), "a column of neither side"),
        (Constant("[1]", T.ArrayType(T.IntegerType()), "array(1)"), "a value of type array<int>"),
        (Constant("1.5", T.DecimalType(20, 1), "1.5BD"), "a value of type decimal(20,1)"),
        (Call("sqrt", (Attribute("x#1", T.DecimalType(4, 1), "x"),), T.DoubleType(), "sqrt(x)"), "sqrt of a decimal or an interval"),
    ],
)
def test_what_is_refused_is_named_as_in_sql(part: Node, found: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        vectorise(Call("eq", (X, part), T.BooleanType(), "whole"), SIDES.get)
    assert (refused.value.where, refused.value.found) == (part.sql, found)


def test_the_contract_has_a_class_in_the_versions_that_have_it() -> None:
    name = "org.apache.spark.sql.catalyst.expressions.NullIfResult"
    assert [version for version in SUPPORTED if name in expression_tree.classes(version)] == ["4.3"]
