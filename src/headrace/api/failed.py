"""The error that ended a query, as programs written for Spark expect it: it is also a ``StreamingQueryException``."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException

from headrace.errors import HeadraceError


def as_sparks(error: HeadraceError | None) -> HeadraceError | None:
    """The same error, which ``except StreamingQueryException`` catches too. Its class and its words stay Headrace's."""
    if error is not None and not isinstance(error, StreamingQueryException):
        kind = type(error)
        error.__class__ = _BOTH.setdefault(kind, _both(kind))
    return error


_BOTH: dict[type[HeadraceError], type[HeadraceError]] = {}


def _both(kind: type[HeadraceError]) -> type[HeadraceError]:
    """A subclass of an error's class and of Spark's, under the same name. Pickled, it becomes Headrace's class again."""

    def reduced(self: HeadraceError) -> tuple[Any, ...]:
        rebuild, (_, *rest) = kind.__reduce__(self)
        return rebuild, (kind, *rest)

    # Spark's methods look up the last ones; the error has no error class of Spark's.
    members: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__reduce__": reduced}
    members |= dict.fromkeys(("_errorClass", "_messageParameters", "_contexts"))
    return type(kind.__name__, (kind, StreamingQueryException), members)
