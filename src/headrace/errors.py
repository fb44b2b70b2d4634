"""The one error tree of Headrace.

A message says where the trouble is, what was wanted, what was found, and what to do next:

>>> raise QueryError(where="groupBy", wanted="a column of the stream", found="'user'", hint="use one of src, dst, ts")
Traceback (most recent call last):
...
headrace.errors.QueryError: groupBy: wanted a column of the stream; found 'user'; use one of src, dst, ts

Where that form does not fit, a sentence comes first: `SessionError("Spark Connect is not supported", hint="...")`.
The parts stay readable as fields. Errors cross process boundaries (a task on an executor, the driver, the user), so
every one of them survives pickling with all its fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""

    def __init__(self, message: str = "", *, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.wanted = wanted
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        wanted = self.wanted and f"wanted {self.wanted}"
        found = self.found and f"found {self.found}"
        text = "; ".join(part for part in (self.message, wanted, found, self.hint) if part)
        return f"{self.where}: {text}" if self.where else text

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with `args`, which subclasses with required fields would refuse.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(kind: type[HeadraceError], args: tuple[Any, ...], fields: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class QueryError(HeadraceError):
    """A mistake in how the query is built: an unknown column, a wrong type, an operator in the wrong place."""


class UnsupportedError(QueryError):
    """Headrace does not do what the query asks for. `supported` lists what it does instead."""

    def __init__(
        self, message: str = "", *, supported: Iterable[str] = (), where: str = "", wanted: str = "", found: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, where=where, wanted=wanted, found=found, hint=hint)
        self.supported = tuple(supported)

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; supported: {', '.join(self.supported)}" if self.supported else text


class MissingError(QueryError, AttributeError):
    """Something was asked for that the object does not have; an AttributeError too, as Python's own tools expect."""


class BatchFailedError(HeadraceError):
    """A batch failed by something outside Headrace: a user's function, a file, a sink. `details` has the whole text."""

    def __init__(self, message: str = "", *, where: str = "", wanted: str = "", found: str = "", hint: str = "", details: str = "") -> None:
        super().__init__(message, where=where, wanted=wanted, found=found, hint=hint)
        self.details = details


class ProcessorError(QueryError):
    """A user's own operator raised an exception, or gave back something that does not fit its schema."""


class SessionError(HeadraceError):
    """The Spark session cannot carry a Headrace query: Spark Connect, no Java, settings that do not fit."""


class SourceError(HeadraceError):
    """A source cannot be read, or is not a streaming DataFrame."""


class SinkError(HeadraceError):
    """A sink cannot be written, or does not fit the query's output."""


class CheckpointError(HeadraceError):
    """A checkpoint cannot be used as it is."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint was written by another query."""


class StateSchemaError(CheckpointError):
    """The schema of an operator's state has changed since the checkpoint was written."""


class CorruptStateError(CheckpointError):
    """A state file is truncated or its checksum is wrong. `path` names the file; its content is never guessed."""

    def __init__(self, message: str = "", *, path: str, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message, where=where or path, wanted=wanted, found=found, hint=hint)
        self.path = path


class StorageError(CheckpointError):
    """A disk refuses what a query needs of it: it is full or read-only, or permission is missing. `path` names the place."""

    def __init__(self, message: str = "", *, path: str, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message, where=where or path, wanted=wanted, found=found, hint=hint)
        self.path = path


class FencedError(CheckpointError):
    """Another query has taken over the checkpoint; this one may neither commit, deliver nor remove anything any more."""


class VersionNotFoundError(CheckpointError):
    """The version asked for was never committed, or is no longer kept."""


class ClusterError(HeadraceError):
    """A cluster on this machine cannot be started, or is not there."""


class PlaceLostError(HeadraceError):
    """A place that holds state, or what was to be there, is gone; what lies elsewhere is untouched."""


class InvariantError(HeadraceError):
    """An invariant of Headrace is broken: a bug in Headrace, never a mistake of the user."""

    def __init__(self, message: str = "", *, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        hint = hint or "this is a bug in Headrace, please report it with this message"
        super().__init__(message, where=where, wanted=wanted, found=found, hint=hint)


def require(condition: bool, message: str) -> None:
    """Check an invariant, in production too; `message` says what must hold.

    >>> require(2 > 1, "versions grow")
    >>> require(1 > 2, "versions grow")
    Traceback (most recent call last):
    ...
    headrace.errors.InvariantError: versions grow; this is a bug in Headrace, please report it with this message
    """
    if not condition:
        raise InvariantError(message)
