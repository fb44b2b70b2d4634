"""State variables as users' code gets them from the handle: Spark's ``ValueState``, ``ListState`` and ``MapState``, with the same methods.

They belong to the key that the handle stands at. A value is a tuple; what comes back is what Spark would give.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

from headrace.errors import ProcessorError
from headrace.operators.user_state.shape import Values, Variable
from headrace.operators.user_state.stored import Elements, Entries, OneValue


class AtKey(Protocol):
    """What a variable must know of the handle."""

    @property
    def owner(self) -> int:
        """The number of the key that the user's code is called for."""

    def one_value(self, name: str) -> OneValue: ...

    def elements(self, name: str) -> Elements: ...

    def entries(self, name: str) -> Entries: ...

    def refuse(self, what: str, wanted: str, found: str) -> ProcessorError: ...

    def check_key(self, what: str) -> None:
        """Raise unless the user's code is called for a key."""


class _Base:
    """What the three kinds share."""

    def __init__(self, at: AtKey, variable: Variable) -> None:
        self._at = at
        self._variable = variable
        self._width = len(variable.values)

    def _checked(self, codec: Any, value: Any, width: int, what: str) -> Values:
        """A tuple that the user gave, in plain Python values."""
        if value is None:
            raise self._at.refuse(f"{what} of the state {self._variable.name!r}", "a tuple", "None")
        found: Values = codec.plain(value)
        if len(found) != width:
            columns = ", ".join(self._variable.values.names if width == self._width else (self._variable.keys or []))
            raise self._at.refuse(f"{what} of the state {self._variable.name!r}", f"a tuple of {width} values ({columns})", repr(value))
        return found


class ValueVariable(_Base):
    """One value per key."""

    @cached_property
    def _cells(self) -> OneValue:
        self._at.check_key(f"the state {self._variable.name!r}")
        cells = self._at.one_value(self._variable.name)
        self._plain = cells.source.codec.plain
        return cells

    def exists(self) -> bool:
        """True if the key has a value."""
        return self._cells.values[self._at.owner] is not None

    def get(self) -> Values | None:
        """The value, or None."""
        return self._cells.values[self._at.owner]

    def update(self, newValue: Any) -> None:
        """Set the value."""
        cells = self._cells
        value = self._plain(newValue) if newValue is not None else None
        if value is None or len(value) != self._width:
            value = self._checked(cells.source.codec, newValue, self._width, "a value")
        owner = self._at.owner
        cells.values[owner] = value
        cells.changed.add(owner)

    def clear(self) -> None:
        """Remove the value."""
        cells, owner = self._cells, self._at.owner
        cells.values[owner] = None
        cells.changed.add(owner)


class ListVariable(_Base):
    """A list of values per key."""

    @cached_property
    def _cells(self) -> Elements:
        self._at.check_key(f"the state {self._variable.name!r}")
        return self._at.elements(self._variable.name)

    def exists(self) -> bool:
        """True if the list has elements."""
        return bool(self._cells.live(self._at.owner))

    def get(self) -> Iterator[Values]:
        """The elements, in the order in which they were added."""
        return iter(self._cells.live(self._at.owner))

    def put(self, newState: Any) -> None:
        """Replace the list."""
        self._cells.replace(self._at.owner, self._all(newState))

    def appendValue(self, newState: Any) -> None:
        """Add an element."""
        self._cells.append(self._at.owner, [self._one(newState)])

    def appendList(self, newState: Any) -> None:
        """Add elements."""
        self._cells.append(self._at.owner, self._all(newState))

    def clear(self) -> None:
        """Remove all elements."""
        self._cells.replace(self._at.owner, [])

    def _one(self, value: Any) -> Values:
        return self._checked(self._cells.source.codec, value, self._width, "an element")

    def _all(self, values: Any) -> list[Values]:
        if values is None or isinstance(values, str | bytes | dict):
            raise self._at.refuse(f"the state {self._variable.name!r}", "a list of tuples", repr(values))
        found = [self._one(value) for value in values]
        if not found:
            raise self._at.refuse(f"the state {self._variable.name!r}", "at least one element; clear() removes all", "an empty list")
        return found


class MapVariable(_Base):
    """A map per key."""

    @cached_property
    def _cells(self) -> Entries:
        self._at.check_key(f"the state {self._variable.name!r}")
        return self._at.entries(self._variable.name)

    def exists(self) -> bool:
        """True if the map has entries."""
        return bool(self._cells.live(self._at.owner))

    def getValue(self, key: Any) -> Values | None:
        """The value of a map key, or None."""
        return self._cells.get(self._at.owner, self._key(key))

    def containsKey(self, key: Any) -> bool:
        """True if the map has this key."""
        return self._cells.get(self._at.owner, self._key(key)) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        """Set the value of a map key."""
        cells = self._cells
        cells.put(self._at.owner, self._key(key), self._checked(cells.source.codec, value, self._width, "a value"))

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        """The entries."""
        entries = self._cells.live(self._at.owner)
        return iter([(key, entries[key]) for key in self._cells.key_codec.order(list(entries))])

    def keys(self) -> Iterator[Values]:
        """The map keys."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Values]:
        """The values."""
        return (value for _, value in self.iterator())

    def removeKey(self, key: Any) -> None:
        """Remove a map key. Nothing happens if the map does not have it."""
        self._cells.remove(self._at.owner, [self._key(key)])

    def clear(self) -> None:
        """Remove all entries."""
        owner = self._at.owner
        self._cells.remove(owner, list(self._cells.maps.get(owner, {})))

    def _key(self, key: Any) -> Values:
        assert self._variable.keys is not None
        return self._checked(self._cells.key_codec, key, len(self._variable.keys), "a key")
