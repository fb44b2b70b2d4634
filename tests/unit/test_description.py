"""Descriptions of stores survive the way to JSON and back."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import CheckpointError
from headrace.operators import description as D
from headrace.operators import lifetime as L
from headrace.operators import more_partials as M
from headrace.operators import partials as P
from headrace.operators import top_rows
from headrace.operators.aggregate import RunningAggregate
from headrace.operators.counted import CountAggregate
from headrace.operators.dedup import DropDuplicates
from headrace.operators.kernel import Operator
from headrace.operators.lifetime import FOREVER, UNTIL_FIRED, Lifetime, TimeToLive, UntilWatermark, UntilWindowsClose
from headrace.operators.session import SessionAggregate
from headrace.operators.shape import TimerClock
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
    pa.list_(pa.field("element", pa.int32(), nullable=False)),
    pa.large_list(pa.field("element", pa.list_(pa.field("element", pa.struct([pa.field("a", pa.large_string(), nullable=False)]))))),
    pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
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
    again = D.type_from(through_json(D.describe_type(kind)))
    assert again == kind
    # The fingerprint of a layout covers the names of inner fields, and whether they may be null.
    assert str(again) == str(kind)


@pytest.mark.parametrize("partial", PARTIALS, ids=repr)
def test_partials_survive(partial: P.Partial) -> None:
    assert D.partial_from(through_json(D.describe_partial(partial))) == partial


@pytest.mark.parametrize("partial", PARTIALS, ids=repr)
def test_every_column_of_a_partial_has_a_label(partial: P.Partial) -> None:
    calls = tuple(f"f(x{at})" for at in range(len(partial.values) if isinstance(partial, P.PickRow) else 1))
    labels = partial.labels(calls)
    assert len(labels) == len(partial.columns) == len(partial.neutral()) == len(partial.types) == len(set(labels))


def test_labels_name_the_call_that_a_column_belongs_to() -> None:
    assert P.Extreme(pa.int64(), greatest=True).labels(("max(x)", "max(x) too")) == ["max(x)"]
    assert P.Both(P.Sum(pa.int64()), P.Extreme(pa.int64(), greatest=False)).labels(("f(x)",)) == ["f(x) sum", "f(x) least"]
    picked = P.PickRow((pa.int64(), pa.string()), pa.int64(), greatest=True)
    assert picked.labels(("last(x)", "last(y)")) == ["last(x) value", "last(y) value", "last(x) order", "last(x) tie"]


def test_every_partial_can_be_described() -> None:
    classes = [(m, c) for m in (P, M, top_rows) for _, c in inspect.getmembers(m, inspect.isclass)]
    merging = {c for m, c in classes if c.__module__ == m.__name__ and hasattr(c, "merge")}
    assert set(D.PARTIALS.values()) == merging - {P.Partial}


KEYS = (("k0", pa.string()), ("k1", pa.struct([("a", pa.int64())])))
VALUES = (("p0", pa.float64()), ("p1", pa.int64()))
MEAN = (P.Both(P.Sum(pa.float64()), P.Count()),)


def summed(sub: bool = False, policy: Policy = Policy.REPLACE) -> Layout:
    return Layout(KEYS, VALUES, has_sub=sub, policy=policy)


LIFETIMES = [
    FOREVER,
    UntilWindowsClose(TimeWindow(600, 60, 5)),
    UntilWatermark(keep_us=10, due_us=5),
    UntilWatermark(),
    TimeToLive(7, TimerClock.EVENT),
    UNTIL_FIRED,
]


@pytest.mark.parametrize("lifetime", LIFETIMES, ids=str)
def test_lifetimes_survive(lifetime: Lifetime) -> None:
    assert D.lifetime_from(through_json(D.describe_lifetime(lifetime))) == lifetime


def test_every_lifetime_can_be_described() -> None:
    defined = {c for _, c in inspect.getmembers(L, inspect.isclass) if issubclass(c, Lifetime)}
    assert set(D.LIFETIMES.values()) == defined - {Lifetime} == set(map(type, LIFETIMES))


@pytest.mark.parametrize(
    "operator",
    [
        RunningAggregate(summed(), MEAN),
        WindowedAggregate(summed(sub=True, policy=Policy.COMBINE), MEAN, TimeWindow(600, 60, 5)),
        SessionAggregate(summed(sub=True, policy=Policy.KEEP), MEAN, 7),
        CountAggregate(KEYS, VALUES, MEAN, 3, 1),
        DropDuplicates(Layout(KEYS, (), has_sub=True), pa.schema([("c0", pa.string())])),
    ],
    ids=lambda o: type(o).__name__,
)
def test_stores_survive_with_the_fingerprint_of_their_layout(operator: Operator) -> None:
    names = D.ColumnNames(("who", "where"), ("avg(v) sum", "avg(v) count"), "pane")
    for name, about in through_json(operator.describe(dict.fromkeys(operator.stores, names))).items():
        again, store = D.store_from(about), operator.stores[name]
        assert again == store
        assert again.layout.fingerprint == store.layout.fingerprint
        assert about["names"] == {"keys": ["who", "where"], "sub": "pane", "values": ["avg(v) sum", "avg(v) count"]}


def test_columns_in_front_of_partials_keep_their_names() -> None:
    layout = Layout(KEYS, (("start", pa.int64()), *VALUES))
    assert D.value_names(layout, MEAN, [("avg(v)",)]) == ("start", "avg(v) sum", "avg(v) count")


OLD: list[tuple[dict[str, Any], str, bool, Lifetime]] = [
    ({"kind": "running", "partials": [{"kind": "count"}]}, "replace", False, FOREVER),
    (
        {"kind": "windowed", "partials": [{"kind": "count"}], "window": {"size_us": 600, "advance_us": 60, "offset_us": 5}},
        "combine",
        True,
        UntilWindowsClose(TimeWindow(600, 60, 5)),
    ),
    ({"kind": "session", "partials": [{"kind": "count"}], "gap_us": 7}, "keep", True, UntilWatermark(due_us=0)),
    ({"kind": "dropDuplicates", "payload": [["c0", "string"]], "late": False}, "replace", True, UntilWatermark()),
    ({"kind": "dropDuplicates", "payload": [["c0", "string"]], "late": True}, "replace", False, FOREVER),
    ({"kind": "newest"}, "replace", False, FOREVER),
    ({"kind": "buffer"}, "keep", True, UntilWatermark(due_us=0)),
    ({"kind": "rows", "keep_us": 10, "due_us": 5}, "keep", True, UntilWatermark(10, 5)),
    ({"kind": "rows", "keep_us": 10, "due_us": None}, "keep", True, UntilWatermark(10)),
    ({"kind": "ring"}, "replace", True, FOREVER),
    ({"kind": "process", "falls_due": False, "ttl_us": 9, "ttl_by": "event"}, "replace", False, TimeToLive(9, TimerClock.EVENT)),
    ({"kind": "process", "falls_due": False, "ttl_us": None, "ttl_by": "processing"}, "replace", False, FOREVER),
    ({"kind": "process", "falls_due": True, "ttl_us": None, "ttl_by": "processing"}, "replace", True, UntilWatermark(due_us=0)),
]
"""Descriptions in older checkpoints, which name the kind of a store instead of its lifetime, and their meaning."""


@pytest.mark.parametrize(("about", "policy", "sub", "lifetime"), OLD, ids=str)
def test_descriptions_by_kind_are_still_read(about: dict[str, Any], policy: str, sub: bool, lifetime: Lifetime) -> None:
    layout = {"keys": [["k0", "int64"]], "values": [["p0", "int64"]], "sub": sub, "policy": policy}
    store = D.store_from({**about, "layout": layout})
    assert store.layout == Layout((("k0", pa.int64()),), (("p0", pa.int64()),), has_sub=sub, policy=Policy(policy))
    assert store.lifetime == lifetime
    assert store.partials == ((P.Count(),) if "partials" in about else ())


@pytest.mark.parametrize("about", [{"kind": "os.system"}, {"lifetime": {"kind": "os.system"}}], ids=str)
def test_unknown_stores_are_refused(about: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="a newer Headrace"):
        D.store_from({**about, "layout": {"keys": [], "values": [], "sub": False, "policy": "replace"}})


@pytest.mark.parametrize(
    "about", [{"kind": "os.system"}, {"kind": "sum", "type": "int65"}, {"kind": "sum", "type": {"map": "int64"}}], ids=str
)
def test_unknown_names_are_refused(about: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="a newer Headrace"):
        D.partial_from(about)
