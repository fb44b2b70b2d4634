"""The handle that ``init`` gets in a task: Spark's ``StatefulProcessorHandle`` over the state of a call."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pyarrow as pa

from headrace.errors import ProcessorError
from headrace.operators.kernel import Views
from headrace.operators.store import Store
from headrace.operators.user_state.shape import Front, Kind, TimeMode, UserShape, Variable, store_name
from headrace.operators.user_state.stored import Elements, Entries, Keys, OneValue, Source
from headrace.operators.user_state.timers import UserTimers
from headrace.operators.user_state.variables import ListVariable, MapVariable, ValueVariable


class Phase(IntEnum):
    """What the user's code is called for."""

    INIT = 0
    ROWS = 1
    TIMERS = 2
    CLOSE = 3


class CallState:
    """The state variables of all keys of a call, read when they are first asked for."""

    def __init__(self, shape: UserShape, stores: dict[str, Store], keys: Keys, views: Views, front: Front, now_ms: int) -> None:
        self.shape, self.keys, self.front = shape, keys, front
        self._stores, self._views, self._now_us = stores, views, now_ms * 1000
        self._read: dict[str, OneValue | Elements | Entries] = {}
        self._declared = {each.name: each for each in shape.variables}

    def variable(self, name: str, kind: Kind) -> Variable:
        """A variable that ``init`` declared in the driver."""
        found = self._declared.get(name)
        if found is None or found.kind is not kind:
            known = ", ".join(f"{each.kind} {each.name!r}" for each in self._declared.values()) or "none"
            raise ProcessorError(
                f"{self.shape.name}.init declares other state than it did when the query was built",
                where=self.shape.where,
                wanted=f"one of: {known}",
                found=f"{kind} {name!r}",
                hint="init must declare the same state wherever it runs",
            )
        return found

    def one_value(self, name: str) -> OneValue:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = OneValue(self._source(name))
        assert isinstance(found, OneValue)
        return found

    def elements(self, name: str) -> Elements:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = Elements(self._source(name))
        assert isinstance(found, Elements)
        return found

    def entries(self, name: str) -> Entries:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = Entries(self._source(name), self.front.codec(name, keys=True))
        assert isinstance(found, Entries)
        return found

    def changed(self) -> dict[str, pa.RecordBatch]:
        """The changed rows of new runs, by store."""
        found = {}
        for name, each in self._read.items():
            rows = each.rows()
            if rows is not None:
                found[store_name(name)] = rows
        return found

    def _source(self, name: str) -> Source:
        variable, store = self._declared[name], store_name(name)
        codec = self.front.codec(name)
        return Source(variable, self._stores[store], self._views[store], self.keys, self.shape, codec, self._now_us)


class Handle:
    """Spark's ``StatefulProcessorHandle``. It stands at one key at a time."""

    def __init__(self, state: CallState, timers: UserTimers | None) -> None:
        self._state, self._timers, self._shape = state, timers, state.shape
        self._phase = Phase.INIT
        self.owner = -1
        """The number of the key that the user's code is called for."""

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueVariable:
        """The value state of this name."""
        return ValueVariable(self, self._declared(stateName, Kind.VALUE))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListVariable:
        """The list state of this name."""
        return ListVariable(self, self._declared(stateName, Kind.LIST))

    def getMapState(self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None) -> MapVariable:
        """The map state of this name."""
        return MapVariable(self, self._declared(stateName, Kind.MAP))

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Set a timer of the key."""
        self._usable_timers("registerTimer").register(self.owner, self._moment(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the key."""
        self._usable_timers("deleteTimer").delete(self.owner, self._moment(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """The timers of the key, in milliseconds."""
        return iter(self._usable_timers("listTimers").of(self.owner))

    def deleteIfExists(self, stateName: str) -> None:
        """Spark removes a variable of an earlier class here. In a checkpoint of Headrace a variable that is not declared has no state."""
        self._in_init("deleteIfExists")

    def enter(self, phase: Phase) -> None:
        """From now on the user's code is called for this."""
        self._phase = phase

    def one_value(self, name: str) -> OneValue:
        return self._state.one_value(name)

    def elements(self, name: str) -> Elements:
        return self._state.elements(name)

    def entries(self, name: str) -> Entries:
        return self._state.entries(name)

    def refuse(self, what: str, wanted: str, found: str) -> ProcessorError:
        return ProcessorError(f"{self._shape.name}: {what}", where=self._shape.where, wanted=wanted, found=found)

    def check_key(self, what: str) -> None:
        if self._phase not in (Phase.ROWS, Phase.TIMERS):
            raise self.refuse(
                what, "to be used for a key: in handleInputRows, handleExpiredTimer or handleInitialState", self._phase.name.lower()
            )

    def _declared(self, name: str, kind: Kind) -> Variable:
        self._in_init(f"get{kind.capitalize()}State({name!r})")
        return self._state.variable(name, kind)

    def _in_init(self, what: str) -> None:
        if self._phase is not Phase.INIT:
            raise self.refuse(what, "to be called in init", f"a call while handling {self._phase.name.lower()}")

    def _usable_timers(self, what: str) -> UserTimers:
        if self._timers is None:
            modes = "timeMode 'ProcessingTime' or 'EventTime'"
            raise self.refuse(what, modes, f"timeMode {'None' if self._shape.time is TimeMode.NONE else self._shape.time}")
        self.check_key(what)
        return self._timers

    def _moment(self, at_ms: Any) -> int:
        try:
            return int(at_ms)
        except (TypeError, ValueError):
            raise self.refuse("a timer", "a moment in milliseconds, as an integer", repr(at_ms)) from None
