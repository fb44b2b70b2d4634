"""Operators as plain JSON, so that a checkpoint can be read without the program that wrote it.

A description holds names and Arrow types, never code: what a name means is looked up in a fixed list. So reading a checkpoint runs
nothing that the checkpoint brings along.

>>> from headrace.operators.partials import Both, Count, Sum
>>> describe_partial(Both(Sum(pa.float64()), Count()))
{'kind': 'both', 'first': {'kind': 'sum', 'type': 'double', 'checked': True}, 'second': {'kind': 'count'}}
>>> partial_from(describe_partial(Sum(pa.timestamp("us", tz="UTC"))))
Sum(type=TimestampType(timestamp[us, tz=UTC]), checked=True)
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pyarrow as pa

from headrace.errors import CheckpointError
from headrace.operators import partials as P
from headrace.operators.aggregate import RunningAggregate
from headrace.operators.buffer import RowBuffer
from headrace.operators.counted import Buffer, CountAggregate, OpenWindows
from headrace.operators.dedup import DropDuplicates
from headrace.operators.instance_state import Part
from headrace.operators.kernel import Operator, Store
from headrace.operators.last import Ring
from headrace.operators.partials import Partial
from headrace.operators.processor import Clock
from headrace.operators.session import SessionAggregate
from headrace.operators.windowed import WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.state.layout import Layout, Policy

Json = dict[str, Any]

PARTIALS: dict[str, type[Any]] = {
    "count": P.Count,
    "sum": P.Sum,
    "decimal_sum": P.DecimalSum,
    "extreme": P.Extreme,
    "moments": P.Moments,
    "pick": P.Pick,
    "pick_row": P.PickRow,
    "distinct": P.Distinct,
    "registers": P.Registers,
    "both": P.Both,
}
"""Names in checkpoints: they outlive the names of classes."""
_KIND_OF = {kind: name for name, kind in PARTIALS.items()}

_COLUMNS: dict[type[Any], tuple[str, ...]] = {
    P.Count: ("count",),
    P.Sum: ("sum",),
    P.DecimalSum: ("sum", "is empty"),
    P.Moments: ("n", "mean", "m2"),
    P.Pick: ("value", "order"),
    P.Distinct: ("values",),
    P.Registers: ("registers",),
}


def describe(operator: Operator, store: str, *, keys: list[str], sub: str | None, calls: list[tuple[str, ...]]) -> Json:
    """A store of an operator, with all that is needed to merge its state and to show it.

    `keys` are the user's names of the key columns, `sub` that of the sub-key (None hides it), `calls` the texts of the aggregate calls
    that each partial serves.
    """
    partials = getattr(operator, "partials", ())
    labels = [label for partial, served in zip(partials, calls, strict=True) for label in column_labels(partial, *served)]
    layout = operator.stores[store].layout
    # In front of the partials some stores have columns of their own, which are called what they are.
    own = layout.value_names[: len(layout.value_names) - len(labels)]
    about: Json = {"layout": _describe_layout(layout), "names": {"keys": keys, "sub": sub, "values": [*own, *labels]}}
    if isinstance(operator, CountAggregate):
        return {"kind": "buffer" if store else "newest", **about, "names": about["names"] | {"sub": "time" if store else None}}
    if isinstance(operator, SessionAggregate):
        return {"kind": "session", **about, "partials": [describe_partial(p) for p in partials], "gap_us": operator.gap_us}
    if isinstance(operator, DropDuplicates):
        return {
            "kind": "dropDuplicates",
            **about,
            "payload": [[f.name, describe_type(f.type)] for f in operator.payload],
            "late": operator.late_by_column,
        }
    if isinstance(operator, WindowedAggregate):
        window = {name: getattr(operator.window, name) for name in ("size_us", "advance_us", "offset_us")}
        return {"kind": "windowed", **about, "partials": [describe_partial(p) for p in partials], "window": window}
    if isinstance(operator, RunningAggregate):
        return {"kind": "running", **about, "partials": [describe_partial(p) for p in partials]}
    raise TypeError(f"no description for {type(operator).__name__}")


def describe_rows(store: RowBuffer, *, keys: list[str], sub: str, values: list[str]) -> Json:
    """A store of rows as they came: `keys`, `sub` and `values` are the user's names of their columns."""
    names = {"keys": keys, "sub": sub, "values": values}
    return {"kind": "rows", "layout": _describe_layout(store.layout), "names": names, "keep_us": store.keep_us, "due_us": store.due_us}


def describe_part(part: Part, *, keys: list[str], sub: str | None, values: list[str]) -> Json:
    """A store of a user's own operator."""
    names = {"keys": keys, "sub": sub, "values": values}
    return {
        "kind": "process",
        "layout": _describe_layout(part.layout),
        "names": names,
        "falls_due": part.falls_due,
        "ttl_us": part.ttl_us,
        "ttl_by": str(part.ttl_by),
    }


def describe_ring(store: Ring, *, keys: list[str], values: list[str]) -> Json:
    """A store of the last rows of each key."""
    names = {"keys": keys, "sub": None, "values": ["number", "time", *values]}
    return {"kind": "ring", "layout": _describe_layout(store.layout), "names": names}


def from_description(about: Json) -> Store:
    """The store again. Unknown names come from a newer Headrace, and are refused."""
    layout = _layout_from(about["layout"])
    kind = about["kind"]
    if kind == "process":
        return Part(layout, bool(about["falls_due"]), about["ttl_us"], Clock(about["ttl_by"]))
    if kind in ("rows", "ring"):
        return Ring(layout) if kind == "ring" else RowBuffer(layout, int(about["keep_us"]), about["due_us"])
    if kind == "dropDuplicates":
        payload = pa.schema([(name, type_from(t)) for name, t in about["payload"]])
        return DropDuplicates(layout, payload, bool(about["late"]))
    if kind in ("buffer", "newest"):
        return Buffer(layout) if kind == "buffer" else OpenWindows(layout)
    if kind not in ("windowed", "running", "session"):
        raise _unknown("operator", kind)
    partials = tuple(partial_from(p) for p in about["partials"])
    if kind == "session":
        return SessionAggregate(layout, partials, int(about["gap_us"]))
    return WindowedAggregate(layout, partials, TimeWindow(**about["window"])) if kind == "windowed" else RunningAggregate(layout, partials)


def describe_partial(partial: Partial) -> Json:
    kind: Any = type(partial)
    about: Json = {"kind": _KIND_OF[kind]}
    for each in fields(kind):
        value = getattr(partial, each.name)
        if isinstance(value, bool):
            about[each.name] = value
        elif isinstance(value, pa.DataType):
            about[each.name] = describe_type(value)
        elif type(value) in _KIND_OF:
            about[each.name] = describe_partial(value)
        elif each.name == "values":
            about[each.name] = [describe_type(kind) for kind in value]
        # What is left are constants of the class: the types of partials that have no choice.
    return about


def partial_from(about: Json) -> Partial:
    kind = PARTIALS.get(about["kind"])
    if kind is None:
        raise _unknown("partial", about["kind"])
    values: Json = {}
    for name, value in about.items():
        if name == "kind":
            continue
        if isinstance(value, bool):
            values[name] = value
        elif isinstance(value, dict) and value.get("kind") in PARTIALS:
            values[name] = partial_from(value)
        elif isinstance(value, list):
            values[name] = tuple(map(type_from, value))
        else:
            values[name] = type_from(value)
    partial: Partial = kind(**values)
    return partial


def column_labels(partial: Partial, call: str, *others: str) -> list[str]:
    """Names for a partial's columns that a person can read, from the texts of the aggregate calls that it serves."""
    if isinstance(partial, P.PickRow):
        return [*(f"{each} value" for each in (call, *others)), f"{call} order", f"{call} tie"]
    names = _column_names(partial)
    return [call] if len(names) == 1 else [f"{call} {name}" for name in names]


def _column_names(partial: Partial) -> list[str]:
    if isinstance(partial, P.Both):
        return _column_names(partial.first) + _column_names(partial.second)
    if isinstance(partial, P.Extreme):
        return ["greatest" if partial.greatest else "least"]
    return list(_COLUMNS[type(partial)])


def describe_type(kind: pa.DataType) -> Any:
    """An Arrow type: its own name, or an object for the nested ones.

    >>> describe_type(pa.struct([("a", pa.list_(pa.decimal128(10, 2)))]))
    {'struct': [['a', {'list': 'decimal128(10, 2)'}]]}
    """
    if pa.types.is_struct(kind):
        return {"struct": [[f.name, describe_type(f.type)] for f in kind]}
    if pa.types.is_list(kind):
        return {"list": describe_type(kind.value_type)}
    if pa.types.is_map(kind):
        return {"map": [describe_type(kind.key_type), describe_type(kind.item_type)]}
    return str(kind)


def type_from(about: Any) -> pa.DataType:
    """The reverse of `describe_type`."""
    if isinstance(about, dict):
        if "list" in about:
            return pa.list_(type_from(about["list"]))
        if "map" in about:
            return pa.map_(*map(type_from, about["map"]))
        if "struct" in about:
            return pa.struct([pa.field(name, type_from(t)) for name, t in about["struct"]])
        raise _unknown("type", about)
    if found := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", about):
        return pa.timestamp(found[1], tz=found[2])
    if found := re.fullmatch(r"decimal(128|256)\((\d+), (-?\d+)\)", about):
        return (pa.decimal128 if found[1] == "128" else pa.decimal256)(int(found[2]), int(found[3]))
    try:
        return pa.type_for_alias(about)
    except ValueError:
        raise _unknown("type", about) from None


def _describe_layout(layout: Layout) -> Json:
    return {
        "keys": [[name, describe_type(t)] for name, t in layout.keys],
        "values": [[name, describe_type(t)] for name, t in layout.values],
        "sub": layout.has_sub,
        "policy": str(layout.policy),
    }


def _layout_from(about: Json) -> Layout:
    keys, values = (tuple((str(name), type_from(t)) for name, t in about[part]) for part in ("keys", "values"))
    return Layout(keys, values, has_sub=bool(about["sub"]), policy=Policy(about["policy"]))


def _unknown(what: str, found: Any) -> CheckpointError:
    return CheckpointError(where="query.json", wanted=f"a known {what}", found=repr(found), hint="a newer Headrace may have written it")
