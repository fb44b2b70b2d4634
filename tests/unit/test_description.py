"""Operators as JSON and back."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import CheckpointError
from headrace.operators import description as D
from headrace.operators import partials as P
from headrace.operators.aggregate import RunningAggregate
from headrace.operators.dedup import DropDuplicates
from headrace.operators.kernel import MAIN
from headrace.operators.windowed import WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.state.layout import Layout, Policy

TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(38, 18),
    pa.decimal128(5, 0),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us", tz="Europe/Berlin"),
    pa.duration("us"),
    pa.time64("us"),
    pa.list_(pa.int32()),
    pa.map_(pa.string(), pa.list_(pa.decimal128(3, 1))),
    pa.struct([("a b", pa.string()), ("c", pa.struct([("d", pa.list_(pa.decimal128(3, 1)))]))]),
]

PARTIALS: list[P.Partial] = [
    P.Count(),
    P.Sum(pa.int64()),
    P.Sum(pa.duration("us"), checked=False),
    P.DecimalSum(pa.decimal128(20, 2)),
    P.Extreme(pa.string(), greatest=True),
    P.Extreme(pa.float64(), greatest=False),
    P.Moments(),
    P.Pick(pa.string(), pa.timestamp("us", tz="UTC"), greatest=True),
    P.PickRow((pa.string(), pa.struct([("a", pa.list_(pa.int64()))])), pa.struct([("t", pa.int64())]), greatest=False),
    P.Distinct(pa.date32()),
    P.Registers(),
    P.Both(P.DecimalSum(pa.decimal128(20, 2)), P.Count()),
]


def through_json(about: Any) -> Any:
    return json.loads(json.dumps(about))


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_types_survive(kind: pa.DataType) -> None:
    assert D.type_from(through_json(D.describe_type(kind))) == kind


@pytest.mark.parametrize("partial", PARTIALS, ids=repr)
def test_partials_survive(partial: P.Partial) -> None:
    assert D.partial_from(through_json(D.describe_partial(partial))) == partial


@pytest.mark.parametrize("partial", PARTIALS, ids=repr)
def test_every_column_of_a_partial_has_a_label(partial: P.Partial) -> None:
    calls = [f"f(x{at})" for at in range(len(partial.values) if isinstance(partial, P.PickRow) else 1)]
    labels = D.column_labels(partial, *calls)
    assert len(labels) == len(partial.types) == len(set(labels))


def test_every_partial_can_be_described() -> None:
    merging = {c for _, c in inspect.getmembers(P, inspect.isclass) if c.__module__ == P.__name__ and hasattr(c, "merge")}
    assert set(D.PARTIALS.values()) == merging - {P.Partial}


KEYS = (("k0", pa.string()), ("k1", pa.struct([("a", pa.int64())])))
VALUES = (("p0", pa.float64()), ("p1", pa.int64()))
MEAN = (P.Both(P.Sum(pa.float64()), P.Count()),)


@pytest.mark.parametrize(
    "operator",
    [
        RunningAggregate(Layout(KEYS, VALUES), MEAN),
        WindowedAggregate(Layout(KEYS, VALUES, has_sub=True, policy=Policy.COMBINE), MEAN, TimeWindow(600, 60, 5)),
        DropDuplicates(Layout(KEYS, (), has_sub=True), pa.schema([("c0", pa.string())])),
    ],
    ids=lambda o: type(o).__name__,
)
def test_operators_survive_with_the_fingerprint_of_their_layout(operator: Any) -> None:
    calls = [("avg(v)",)] if hasattr(operator, "partials") else []
    about = through_json(D.describe(operator, MAIN, keys=["who", "where"], sub="pane", calls=calls))
    again = D.from_description(about)
    assert again == operator
    assert again.layout.fingerprint == operator.layout.fingerprint


@pytest.mark.parametrize(
    "about", [{"kind": "os.system"}, {"kind": "sum", "type": "int65"}, {"kind": "sum", "type": {"map": "int64"}}], ids=str
)
def test_unknown_names_are_refused(about: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="a newer Headrace"):
        D.partial_from(about)
