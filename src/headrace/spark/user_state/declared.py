"""What state a processor declares. Its ``init`` runs once in the driver, on a handle that only takes notes, and then ``close``.

Spark does the same when a query starts. The object is a copy that came out of Spark's plan, so the user's own is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from headrace.errors import HeadraceError, QueryError
from headrace.spark.gateway import checked


@dataclass(frozen=True)
class Declared:
    """A state variable, in Spark's types."""

    kind: str
    """``value``, ``list`` or ``map``."""
    name: str
    values: T.StructType
    keys: T.StructType | None
    """The key columns of a map."""
    ttl_ms: int | None


@dataclass
class _Notes(StatefulProcessorHandle):
    """A handle that keeps what ``init`` asks for."""

    where: str
    can_expire: bool
    found: dict[str, Declared] = field(default_factory=dict)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._declare("value", stateName, schema, None, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._declare("list", stateName, schema, None, ttlDurationMs)

    def getMapState(self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None) -> Any:
        return self._declare("map", stateName, valueSchema, userKeySchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self.found.pop(stateName, None)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._refuse("registerTimer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._refuse("deleteTimer")

    def listTimers(self) -> Any:
        self._refuse("listTimers")

    def _declare(self, kind: str, name: str, values: Any, keys: Any, ttl_ms: int | None) -> Any:
        where = f"{self.where}, state {name!r}"
        if not isinstance(name, str) or not name:
            raise QueryError(where=self.where, wanted="a name for a state variable", found=repr(name))
        if name in self.found:
            raise QueryError(where=self.where, wanted="each state variable once", found=f"{name!r} twice")
        if ttl_ms is not None and (not self.can_expire or ttl_ms < 0):
            wanted = "a time to live above 0" if self.can_expire else "timeMode 'ProcessingTime' for state with a time to live"
            raise QueryError(where=where, wanted=wanted, found=f"ttlDurationMs={ttl_ms}")
        self.found[name] = Declared(kind, name, _schema(values, where), None if keys is None else _schema(keys, where), ttl_ms or None)
        return _Unusable(where)

    def _refuse(self, method: str) -> NoReturn:
        raise QueryError(where=self.where, wanted="timers of a key: in handleInputRows or handleExpiredTimer", found=f"{method} in init")


class _Unusable:
    """Stands for a state variable in the driver. It belongs to no key."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise QueryError(where=self._where, wanted="state to be used for a key, not in init", found=f"a call of {name}")


def declared_by(processor: Any, time_mode: str, where: str) -> tuple[Declared, ...]:
    """Run ``init`` of a processor, and return the state variables that it asks for."""
    notes = _Notes(where, can_expire=time_mode.lower() == "processingtime")
    name = type(processor).__name__
    methods = ("init", "handleInputRows", "close")
    if isinstance(processor, type) or not all(callable(getattr(processor, method, None)) for method in methods):
        found = f"the class {processor.__name__} itself" if isinstance(processor, type) else repr(processor)
        raise QueryError(where=where, wanted="an object of a class of StatefulProcessor", found=found)
    for method, call in (("init", lambda: processor.init(notes)), ("close", processor.close)):
        try:
            call()
        except HeadraceError:
            raise
        except Exception as error:
            raise QueryError(f"{name}.{method} raised {type(error).__name__}: {error}", where=where) from error
    return tuple(notes.found.values())


def _schema(columns: Any, where: str) -> T.StructType:
    if isinstance(columns, T.StructType):
        return columns
    if not isinstance(columns, str):
        raise QueryError(where=where, wanted="columns such as 'count long, total double', or a StructType", found=repr(columns))
    found = checked(where, lambda: T.StructType.fromDDL(columns))
    return found if isinstance(found, T.StructType) else T.StructType([T.StructField("value", found)])
