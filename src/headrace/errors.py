"""All errors that Headrace raises on purpose. The ones that a user's program may want to catch are also names of ``headrace``.

    HeadraceError
      QueryError                 UnsupportedError, MissingError, ProcessorError
      BatchFailedError
      SessionError, SourceError, SinkError
      CheckpointError            CheckpointMismatchError, StateSchemaError, CorruptStateError, StorageError, FencedError,
                                 VersionNotFoundError
      MissingRunError            not public: a CorruptStateError that recovery repairs, if the run can be computed again
      ClusterError, InvariantError

A message says where the problem is, what was wanted, what was found, and what to do next:

>>> raise QueryError(where="groupBy", wanted="a column of the stream", found="'user'", hint="use one of src, dst, ts")
Traceback (most recent call last):
...
headrace.errors.QueryError: groupBy: wanted a column of the stream; found 'user'; use one of src, dst, ts

Where that form does not fit, a sentence comes first: ``SessionError("Spark Connect is not supported", hint="...")``. The parts are
fields of the error. Errors travel from tasks on executors to the driver, so all of them can be pickled with their fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.tracebacks import frames_of, printed


class HeadraceError(Exception):
    """Base class of all errors of Headrace. The parts of its message are fields; a part that does not apply is empty."""

    def __init__(self, message: str = "", *, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        """A sentence, where the other parts do not say enough."""
        self.where = where
        """The place of the problem: a method with the line of your program, an option, a file."""
        self.wanted = wanted
        """What was required."""
        self.found = found
        """What was there instead."""
        self.hint = hint
        """What to do next."""

    def __str__(self) -> str:
        wanted = self.wanted and f"wanted {self.wanted}"
        found = self.found and f"found {self.found}"
        text = "; ".join(part for part in (self.message, wanted, found, self.hint) if part)
        return f"{self.where}: {text}" if self.where else text

    def few_lines(self) -> list[str]:
        """What to print if nobody catches the error: the lines of your own code, then the message. Headrace's own lines are left out."""
        return [*printed(frames_of(self.__traceback__)), f"{_name(self)}: {self}"]

    def _render_traceback_(self) -> list[str]:
        """Jupyter and IPython print this instead of a traceback."""
        return self.few_lines()

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, unpickling calls the class with `args`. Subclasses with required fields would refuse that.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _name(error: HeadraceError) -> str:
    return f"headrace.{type(error).__name__}"


def _rebuild(kind: type[HeadraceError], args: tuple[Any, ...], fields: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class QueryError(HeadraceError):
    """The query is built or used wrongly: an unknown column, a wrong type, an operator in the wrong place."""


class UnsupportedError(QueryError):
    """The query asks for something that Headrace does not support. ``supported`` lists what it supports instead."""

    def __init__(
        self, message: str = "", *, supported: Iterable[str] = (), where: str = "", wanted: str = "", found: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, where=where, wanted=wanted, found=found, hint=hint)
        self.supported = tuple(supported)
        """What Headrace supports instead."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; supported: {', '.join(self.supported)}" if self.supported else text


class MissingError(QueryError, AttributeError):
    """The object has no such attribute. Also an AttributeError, which ``hasattr`` and ``copy`` rely on."""


class BatchFailedError(HeadraceError):
    """A batch failed because of something outside Headrace: a user's function, a file, a sink. ``details`` has the full stack trace."""

    def __init__(self, message: str = "", *, where: str = "", wanted: str = "", found: str = "", hint: str = "", details: str = "") -> None:
        super().__init__(message, where=where, wanted=wanted, found=found, hint=hint)
        self.details = details
        """The full stack trace, as Spark reports it."""
        self.cause_lines: tuple[str, ...] = ()
        """What failed: the exception, then the lines of your own code that raised it."""

    def few_lines(self) -> list[str]:
        """Your exception and its lines first, then where in the query it happened."""
        if not self.cause_lines:
            return [f"{_name(self)}: {self}"]
        return [*self.cause_lines, f"{_name(self)}: {self.where}; {self.hint}"]


class ProcessorError(QueryError):
    """A user's processor raised an exception, or returned something that does not fit its schema."""

    def few_lines(self) -> list[str]:
        """Your exception and its lines first, then whose it is."""
        start, _, lines = self.hint.partition("in\n")
        if start or not lines:
            return super().few_lines()
        *frames, raised = lines.split("\n")
        return [raised, *frames, f"{_name(self)}: {self.where}: {self.message}"]


class SessionError(HeadraceError):
    """The Spark session cannot run a Headrace query: Spark Connect, no Java, a Spark that differs, workers without Headrace."""


class SourceError(HeadraceError):
    """A source is not a streaming DataFrame, or cannot be replayed."""


class SinkError(HeadraceError):
    """A sink cannot be written, or does not fit the query's output."""


class CheckpointError(HeadraceError):
    """The checkpoint cannot be used as it is."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another query, or its parts do not belong together."""


class StateSchemaError(CheckpointError):
    """The schema of an operator's state has changed since the checkpoint was written."""


class CorruptStateError(CheckpointError):
    """A file of the checkpoint is missing or damaged. ``path`` names it. Headrace never guesses its content."""

    def __init__(self, message: str = "", *, path: str, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message, where=where or path, wanted=wanted, found=found, hint=hint)
        self.path = path
        """The file."""


class MissingRunError(CorruptStateError):
    """A run is neither on this executor nor in the durable store. If only executors had it, recovery computes it again."""

    def __init__(
        self, message: str = "", *, path: str, where: str = "", wanted: str = "", found: str = "", hint: str = "", executor: str = ""
    ) -> None:
        super().__init__(message, path=path, where=where, wanted=wanted, found=found, hint=hint)
        self.executor = executor
        """The executor that lacks it."""


class StorageError(CheckpointError):
    """The disk refuses a read or write: it is full or read-only, or permission is missing. ``path`` names the place."""

    def __init__(self, message: str = "", *, path: str, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message, where=where or path, wanted=wanted, found=found, hint=hint)
        self.path = path
        """The file or folder."""


class FencedError(CheckpointError):
    """Another query has taken over the checkpoint. This one must not commit, deliver or remove anything any more."""


class VersionNotFoundError(CheckpointError):
    """The requested version was never committed, or is no longer kept."""


class ClusterError(HeadraceError):
    """``headrace cluster`` cannot start a cluster on this machine, or finds none."""


class InvariantError(HeadraceError):
    """An invariant does not hold. This is a bug in Headrace, not a mistake of the user."""

    def __init__(self, message: str = "", *, where: str = "", wanted: str = "", found: str = "", hint: str = "") -> None:
        hint = hint or "this is a bug in Headrace, please report it with this message"
        super().__init__(message, where=where, wanted=wanted, found=found, hint=hint)


def require(condition: bool, message: str) -> None:
    """Raise InvariantError unless the condition is true. ``message`` says what must hold.

    >>> require(2 > 1, "versions grow")
    >>> require(1 > 2, "versions grow")
    Traceback (most recent call last):
    ...
    headrace.errors.InvariantError: versions grow; this is a bug in Headrace, please report it with this message
    """
    if not condition:
        raise InvariantError(message)
