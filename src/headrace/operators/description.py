"""Stores as plain JSON, so that a checkpoint can be read without the program that wrote it.

A description holds names and Arrow types, never code. A name is looked up in a fixed list (`PARTIALS`, `LIFETIMES`), so reading a
checkpoint runs nothing that the checkpoint brings along.

>>> from headrace.operators.partials import Both, Count, Sum
>>> describe_partial(Both(Sum(pa.float64()), Count()))
{'kind': 'both', 'first': {'kind': 'sum', 'type': 'double', 'checked': True}, 'second': {'kind': 'count'}}
>>> partial_from(describe_partial(Sum(pa.timestamp("us", tz="UTC"))))
Sum(type=TimestampType(timestamp[us, tz=UTC]), checked=True)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

from headrace.errors import CheckpointError
from headrace.operators import more_partials as M
from headrace.operators import partials as P
from headrace.operators.lifetime import FOREVER, Forever, Lifetime, TimeToLive, UntilFired, UntilWatermark, UntilWindowsClose
from headrace.operators.partials import Partial
from headrace.operators.shape import TimerClock
from headrace.operators.store import Store
from headrace.operators.top_rows import TopRows
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
    "lists": M.Lists,
    "bits": M.Bits,
    "higher_moments": M.HigherMoments,
    "co_moments": M.CoMoments,
    "both": P.Both,
    "top_rows": TopRows,
}
"""The names of partials in checkpoints. They stay the same when a class is renamed."""
LIFETIMES: dict[str, type[Any]] = {
    "forever": Forever,
    "windows": UntilWindowsClose,
    "watermark": UntilWatermark,
    "ttl": TimeToLive,
    "fired": UntilFired,
}
"""The names of lifetimes in checkpoints."""
_KIND_OF = {kind: name for registry in (PARTIALS, LIFETIMES) for name, kind in registry.items()}


@dataclass(frozen=True)
class ColumnNames:
    """The user's names for the columns of a store."""

    keys: tuple[str, ...]
    values: tuple[str, ...] = ()
    sub: str | None = None
    """The name of the sub-key; None hides it."""


def describe_store(store: Store, names: ColumnNames) -> Json:
    """A store as JSON, with what is needed to merge its rows and to show them."""
    return {
        "layout": _describe_layout(store.layout),
        "names": {"keys": list(names.keys), "sub": names.sub, "values": list(names.values)},
        "partials": [describe_partial(partial) for partial in store.partials],
        "lifetime": describe_lifetime(store.lifetime),
    }


def store_from(about: Json) -> Store:
    """The reverse of `describe_store`. Names that are not known come from a newer Headrace and are refused."""
    partials = tuple(partial_from(each) for each in about.get("partials", ()))
    lifetime = lifetime_from(about["lifetime"]) if "lifetime" in about else _lifetime_of_kind(about)
    return Store(_layout_from(about["layout"]), partials, lifetime)


def describe_lifetime(lifetime: Lifetime) -> Json:
    """A lifetime as JSON.

    >>> describe_lifetime(UntilWatermark(keep_us=5))
    {'kind': 'watermark', 'keep_us': 5, 'due_us': None}
    """
    about: Any = lifetime
    return {"kind": _KIND_OF[type(lifetime)], **asdict(about)}


def lifetime_from(about: Json) -> Lifetime:
    """The reverse of `describe_lifetime`."""
    kind = LIFETIMES.get(about["kind"])
    if kind is None:
        raise _unknown("lifetime", about["kind"])
    values = {name: value for name, value in about.items() if name != "kind"}
    if "window" in values:
        values["window"] = TimeWindow(**values["window"])
    if "clock" in values:
        values["clock"] = TimerClock(values["clock"])
    lifetime: Lifetime = kind(**values)
    return lifetime


def _of_process(about: Json) -> Lifetime:
    if about["falls_due"]:
        return UntilWatermark(due_us=0)
    return FOREVER if about["ttl_us"] is None else TimeToLive(about["ttl_us"], TimerClock(about["ttl_by"]))


_LIFETIME_OF_KIND: dict[str, Callable[[Json], Lifetime]] = {
    "running": lambda about: FOREVER,
    "windowed": lambda about: UntilWindowsClose(TimeWindow(**about["window"])),
    "session": lambda about: UntilWatermark(due_us=0),
    "dropDuplicates": lambda about: UntilWatermark() if about["layout"]["sub"] else FOREVER,
    "buffer": lambda about: UntilWatermark(due_us=0),
    "newest": lambda about: FOREVER,
    "rows": lambda about: UntilWatermark(about["keep_us"], about["due_us"]),
    "ring": lambda about: FOREVER,
    "process": _of_process,
}
"""Before a description said what the lifetime is, it said the kind of the store. Such checkpoints are still read."""


def _lifetime_of_kind(about: Json) -> Lifetime:
    if about["kind"] not in _LIFETIME_OF_KIND:
        raise _unknown("store", about["kind"])
    return _LIFETIME_OF_KIND[about["kind"]](about)


def describe_partial(partial: Partial) -> Json:
    """A partial as JSON: its kind and its fields."""
    kind: Any = type(partial)
    about: Json = {"kind": _KIND_OF[kind]}
    for each in fields(kind):
        value = getattr(partial, each.name)
        if isinstance(value, int):
            about[each.name] = value
        elif isinstance(value, pa.DataType):
            about[each.name] = describe_type(value)
        elif type(value) in _KIND_OF:
            about[each.name] = describe_partial(value)
        elif each.name == "values":
            about[each.name] = [describe_type(kind) for kind in value]
        # Other fields are constants of the class.
    return about


def partial_from(about: Json) -> Partial:
    """The reverse of `describe_partial`."""
    kind = PARTIALS.get(about["kind"])
    if kind is None:
        raise _unknown("partial", about["kind"])
    values: Json = {}
    for name, value in about.items():
        if name == "kind":
            continue
        if isinstance(value, int):
            values[name] = value
        elif isinstance(value, dict) and value.get("kind") in PARTIALS:
            values[name] = partial_from(value)
        elif isinstance(value, list):
            values[name] = tuple(map(type_from, value))
        else:
            values[name] = type_from(value)
    partial: Partial = kind(**values)
    return partial


def value_names(layout: Layout, partials: Iterable[Partial], calls: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Readable names for the value columns of a store of partials. `calls` are the aggregate calls that use each partial.

    Columns in front of the partials keep their own names.
    """
    labels = [label for partial, served in zip(partials, calls, strict=True) for label in partial.labels(served)]
    return (*layout.value_names[: len(layout.value_names) - len(labels)], *labels)


_ITEM = "item"
"""The name that pyarrow gives the values of a list."""
REQUIRED = "required"
"""In descriptions of types: there are no nulls."""


def describe_type(kind: pa.DataType) -> Any:
    """An Arrow type as JSON: its name, or an object for a nested type.

    The names of inner fields are kept where they are not pyarrow's own, since the fingerprint of a layout covers them.

    >>> describe_type(pa.struct([("a", pa.list_(pa.decimal128(10, 2)))]))
    {'struct': [['a', {'list': 'decimal128(10, 2)'}]]}
    >>> describe_type(pa.list_(pa.field("element", pa.int32(), nullable=False)))
    {'list': 'int32', 'item': 'element', 'required': True}
    """
    if pa.types.is_struct(kind):
        return {"struct": [[f.name, describe_type(f.type), *([] if f.nullable else [REQUIRED])] for f in kind]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field
        named = {} if item.name == _ITEM else {"item": item.name}
        return {_list_of(kind): describe_type(item.type), **named, **_required(item)}
    if pa.types.is_map(kind):
        return {"map": [describe_type(kind.key_type), describe_type(kind.item_type)], **_required(kind.item_field)}
    return str(kind)


def type_from(about: Any) -> pa.DataType:
    """The reverse of `describe_type`."""
    if isinstance(about, dict):
        nullable = not about.get(REQUIRED, False)
        for name, made in (("list", pa.list_), ("large_list", pa.large_list)):
            if name in about:
                return made(pa.field(about.get("item", _ITEM), type_from(about[name]), nullable))
        if "map" in about:
            key, item = map(type_from, about["map"])
            return pa.map_(key, pa.field("value", item, nullable))
        if "struct" in about:
            return pa.struct([pa.field(name, type_from(t), nullable=REQUIRED not in more) for name, t, *more in about["struct"]])
        raise _unknown("type", about)
    if found := re.fullmatch(r"timestamp\[(\w+), tz=(.+)\]", about):
        return pa.timestamp(found[1], tz=found[2])
    if found := re.fullmatch(r"decimal(128|256)\((\d+), (-?\d+)\)", about):
        return (pa.decimal128 if found[1] == "128" else pa.decimal256)(int(found[2]), int(found[3]))
    try:
        return pa.type_for_alias(about)
    except ValueError:
        raise _unknown("type", about) from None


def _list_of(kind: pa.DataType) -> str:
    return "list" if pa.types.is_list(kind) else "large_list"


def _required(field: pa.Field) -> Json:
    return {} if field.nullable else {REQUIRED: True}


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
