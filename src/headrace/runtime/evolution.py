"""How the stored state of an operator becomes the state of a changed one: which columns stay, are widened, added, or go.

Columns are matched by the names that ``query.json`` keeps for them, such as ``sum(seconds)`` for an aggregate, or a field of a processor.
The columns of one partial aggregate belong together: all of them are found, or none. Nothing is guessed; what cannot be matched is an
addition, a removal, or a reason to refuse the change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.compile.dataflow import Op
from headrace.ids import OperatorId, StoreId
from headrace.operators.description import describe_partial, store_from
from headrace.state.conversion import ColumnFrom, Conversion, can_widen

HASHED = ("registers", "lists")
"""Partials that depend on the very type of what they aggregate: they hold hashes of values, or Spark's own buffers."""
COLUMNS_SAY_ALL = ("aggregate", "process")
"""Kinds of operators whose "calls" are what their columns are called. For others, they must be equal."""


@dataclass(frozen=True)
class Evolution:
    """What becomes of an operator's stored state."""

    changes: tuple[str, ...] = ()
    """The changes of columns, in words. None: the state is as it was."""
    added: tuple[str, ...] = ()
    """Columns, without a default, that begin without the rows before."""
    dropped: tuple[str, ...] = ()
    """Columns and stores that go."""
    refused: tuple[str, ...] = ()
    """Why the state cannot be kept, in words, with the names of columns."""
    earlier: Mapping[StoreId, tuple[Conversion, ...]] = field(default_factory=dict)
    """By store: how runs of earlier layouts are read."""

    @property
    def is_safe(self) -> bool:
        """True if the state means the same as before, and nothing of it is lost."""
        return not (self.added or self.dropped or self.refused)


@dataclass(frozen=True)
class _Group:
    """Value columns that belong together: those of one partial, or a single one."""

    kind: str | None
    about: Any
    """The partial as JSON; None for a column without one."""
    labels: tuple[str, ...]
    """The user's names of the columns, each with a number if it occurs several times."""
    columns: tuple[tuple[str, pa.DataType], ...]
    neutral: tuple[Any, ...]


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with the names of columns replaced.

    >>> renamed("sum(v) of v2", {"v": "w"})
    'sum(w) of v2'
    """
    if text in names:
        return names[text]
    if not names:
        return text
    either = "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<!\w)({either})(?!\w)", lambda found: names[found[1]], text)


def all_renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A text, or the texts of a list, with the names of columns replaced."""
    if isinstance(value, list):
        return [all_renamed(each, names) for each in value]
    return renamed(value, names) if isinstance(value, str) else value


def evolution(op: Op, stored: OperatorId, about: Mapping[str, Any], names: Mapping[str, str], same_input: bool) -> Evolution:
    """What becomes of the state of the stored operator if ``op`` takes it over.

    ``about`` are the stores in query.json, ``names`` the new names of columns by their old ones. ``same_input`` says that the operator
    still reads the same columns of the same types.
    """
    mine = {StoreId(op.id, name): json for name, json in op.plan.stores_as_json().items()}
    theirs = {StoreId.parse(name): each for name, each in about.items() if StoreId.parse(name).operator == stored}
    changes: list[str] = []
    added: list[str] = []
    dropped: list[str] = []
    refused: list[str] = []
    earlier: dict[StoreId, tuple[Conversion, ...]] = {}
    for store, kernel in mine.items():
        old = theirs.get(StoreId(stored, store.name))
        if old is None:
            changes.append(f"new: {store.name}")
            continue
        known = tuple(Conversion.from_json(each) for each in old.get("earlier", ()))
        now = op.plan.operator.stores[store.name].layout.fingerprint
        shown = op.plan.description.shown
        if old["fingerprint"] == now and all(old.get(part) == shown.get(part) for part in ("window", "keys", "calls")):
            earlier[store] = known
            continue
        compared = _Stores(op, store, old, kernel, names, same_input)
        reasons = compared.refused()
        if not reasons:
            earlier[store] = _all_conversions(known, compared.conversion(), now, reasons)
        refused += reasons
        changes += compared.changes
        added += compared.added
        dropped += compared.dropped
        refused += compared.mixed
    for store in theirs:
        if StoreId(op.id, store.name) not in mine:
            dropped.append(store.name)
            changes.append(f"dropped: {store.name}")
    return Evolution(tuple(changes), tuple(added), tuple(dropped), tuple(dict.fromkeys(refused)), earlier)


def _all_conversions(known: tuple[Conversion, ...], last: Conversion, now: str, refused: list[str]) -> tuple[Conversion, ...]:
    """The conversions of all earlier layouts to the present one."""
    every = [each.then(last) for each in known]
    if not last.changes_nothing or last.fingerprint != now:
        every.append(last)
    # Runs are told apart by their layouts. So a layout that comes back must mean what it meant before.
    if any(each.fingerprint == now and not each.changes_nothing for each in every):
        refused.append("the new columns have the types of the old ones, so old files could not be told from new ones")
    return tuple(each for each in every if each.fingerprint != now)


class _Stores:
    """A store of the checkpoint, and the same store of the changed query."""

    def __init__(
        self, op: Op, store: StoreId, old: Mapping[str, Any], kernel: dict[str, Any], names: Mapping[str, str], same: bool
    ) -> None:
        self.op, self.store, self.old, self.kernel, self.names, self.same_input = op, store, old, kernel, names, same
        self.changes: list[str] = []
        self.added: list[str] = []
        self.dropped: list[str] = []
        self.mixed: list[str] = []

    def refused(self) -> list[str]:
        """Reasons that lie in keys, windows and the kind of store."""
        if "kernel" not in self.old:
            return [f"{self.store}: an older Headrace wrote the state, without the names of its columns"]
        before, now = self.old["kernel"], self.kernel
        found = []
        shown = self.op.plan.description.shown
        for part in ("window", "keys", *(() if self.op.plan.kind in COLUMNS_SAY_ALL else ("calls",))):
            old, new = all_renamed(self.old.get(part), self.names), shown.get(part)
            if old != new:
                found.append(f"{part} {self.old.get(part)} stored, {new} now")
        if not found and before["layout"]["keys"] != now["layout"]["keys"]:
            found.append(f"keys {before['layout']['keys']} stored, {now['layout']['keys']} now")
        for part in ("sub", "policy"):
            if before["layout"][part] != now["layout"][part]:
                found.append(f"{part} {before['layout'][part]} stored, {now['layout'][part]} now")
        lifetimes = [{part: each.get("lifetime", {}).get(part) for part in ("kind", "clock")} for each in (before, now)]
        if "lifetime" in before and lifetimes[0] != lifetimes[1]:
            found.append(f"rows that live by {lifetimes[0]} stored, by {lifetimes[1]} now")
        return found

    def conversion(self) -> Conversion:
        """How the stored columns become the present ones. Notes what changes."""
        old = {group.labels: group for group in _groups(self.old["kernel"], self.names)}
        columns: list[ColumnFrom] = []
        for group in _groups(self.kernel, {}):
            before = old.pop(group.labels, None)
            columns += self._added(group) if before is None else self._kept(before, group)
        for labels in old:
            self.dropped += labels
            self.changes.append(f"dropped: {', '.join(labels)}")
        if old:
            overlapping = {label for labels in old for label in labels} & set(self.added)
            self.mixed += [f"{label}: it was kept together with other columns, which have changed" for label in sorted(overlapping)]
        return Conversion(self.old["fingerprint"], tuple(columns))

    def _added(self, group: _Group) -> Iterator[ColumnFrom]:
        defaults = self.op.plan.defaults.get(self.store.name, {})
        if group.kind is None and group.labels[0] not in defaults:
            self.mixed.append(f"{group.labels[0]}: the stored rows do not have it")
        fills = [fill if defaults.get(label) is None else defaults[label] for label, fill in zip(group.labels, group.neutral, strict=True)]
        own = [label for label in group.labels if defaults.get(label) is None]
        self.added += own
        self.changes.append(f"added: {', '.join(group.labels)}" + (", empty" if own else f" = {fills[0]!r}"))
        return (ColumnFrom(name, None, fill) for (name, _), fill in zip(group.columns, fills, strict=True))

    def _kept(self, before: _Group, group: _Group) -> Iterator[ColumnFrom]:
        widened = []
        for label, (_, was), (_, now) in zip(group.labels, before.columns, group.columns, strict=True):
            if was != now and not can_widen(was, now):
                self.mixed.append(f"{label}: {_shown(was)} stored, {_shown(now)} now")
            elif was != now:
                widened.append(f"widened: {label} from {_shown(was)} to {_shown(now)}")
        if before.kind != group.kind:
            self.mixed.append(f"{group.labels[0]}: {before.kind} stored, {group.kind} now")
        elif group.kind in HASHED and (before.about != group.about or not self.same_input):
            self.mixed.append(f"{group.labels[0]}: its state cannot take values of another type")
        self.changes += widened
        return (ColumnFrom(name, old) for (name, _), (old, _) in zip(group.columns, before.columns, strict=True))


def _groups(kernel: dict[str, Any], names: Mapping[str, str]) -> list[_Group]:
    """The value columns of a store, as it is described in query.json."""
    store = store_from(kernel)
    columns = store.layout.values
    labels = _numbered(renamed(label, names) for label in kernel["names"]["values"])
    front = len(columns) - sum(len(partial.types) for partial in store.partials)
    found = [_Group(None, None, (labels[at],), (columns[at],), (None,)) for at in range(front)]
    at = front
    for partial in store.partials:
        end = at + len(partial.types)
        about = describe_partial(partial)
        found.append(_Group(about["kind"], about, tuple(labels[at:end]), columns[at:end], partial.neutral()))
        at = end
    return found


def _numbered(labels: Iterable[str]) -> list[str]:
    """Labels that differ from one another.

    >>> _numbered(["sum(v)", "n", "sum(v)"])
    ['sum(v)', 'n', 'sum(v) (2)']
    """
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found


def _shown(kind: pa.DataType) -> str:
    return str(kind).replace("large_", "")
