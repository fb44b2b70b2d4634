"""Turns the failure of a batch into one error for the user: one line with the first cause and the user's own line of code.

Spark reports a failure in foreachBatch as one of a "user provided function", followed by pages of Java and Python. To Spark, Headrace is
that function. So Headrace finds out what really failed: a UDF, the user's own foreachBatch function, a file, a row. The error's ``details``
have Spark's whole text.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass

from pyspark.errors import PySparkException

from headrace.errors import BatchFailedError, HeadraceError, QueryError, SessionError
from headrace.ids import Version
from headrace.spark.gateway import SPARK_ERRORS, JavaFailure, description, first_line, java_failure
from headrace.spark.streaming import STOP_TEXT
from headrace.state.disk import storage_error_in
from headrace.tracebacks import frames_of, own_frames, printed

DATA_EXCEPTIONS = "22"
"""SQLSTATE class of data exceptions: values out of range, division by zero, failed casts and the like."""
LINE_CHARACTERS_MAX = 300
_AT = "headrace_at"
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_WRAPPERS = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]", "[FOREACH_USER_FUNCTION_ERROR]", "[TASK_WRITE_FAILED]")


class Stopping(Exception):
    """A batch was cancelled, or did not begin, because the query is being stopped. A restart runs it again.

    Its text makes Spark end the query without a failure: see ``STOP_TEXT``. Nothing may be chained to it.
    """

    def __init__(self) -> None:
        super().__init__(STOP_TEXT)


def mark_place(failure: Exception, place: str) -> Exception:
    """Note on an exception which part of the query raised it. If called several times, the first place counts."""
    if not hasattr(failure, _AT):
        setattr(failure, _AT, place)
    return failure


def of_batch(failure: Exception, version: Version, location: str) -> HeadraceError:
    """The error that the user sees when a batch has failed."""
    if isinstance(failure, HeadraceError):
        return failure
    place = getattr(failure, _AT, "")
    where = f"batch {version}, {place}" if place else f"batch {version}"
    if isinstance(failure, PySparkException) and (failure.getSqlState() or "").startswith(DATA_EXCEPTIONS):
        hint = "use a wider type or a try_ function, filter such rows, or turn spark.sql.ansi.enabled off"
        hint = f"{hint}; a restart goes on with this batch"
        return QueryError("a row does not fit the query's expressions", where=where, found=first_line(failure), hint=hint)
    if isinstance(failure, SPARK_ERRORS) and (full := storage_error_in(str(failure), location)) is not None:
        return full
    hint = f"nothing of batch {version} is lost: a restart runs it again"
    found = culprit(failure)
    error = BatchFailedError(str(found), where=where, hint=hint, details=full_text(failure))
    error.cause_lines = (found.said, *printed(found.frames))
    if not isinstance(failure, SPARK_ERRORS):
        # Only the user's own exception is shown as the cause. Spark's would print pages before our error.
        error.__cause__ = failure
    return error


def of_query(failure: JavaFailure, location: str) -> HeadraceError:
    """The error that the user sees when Spark has failed outside of a batch, for example while it listed a source or made a plan."""
    if (full := storage_error_in(failure.text, location)) is not None:
        return full
    where = "the query, outside of its batches (in Spark's source, planning or log)"
    hint = "delivered results are safe: fix the cause and restart the query, and it continues"
    # The outermost exception is Spark's StreamingQueryException, which only repeats its cause.
    return BatchFailedError(str(_of_causes(failure.messages[1:] or failure.messages)), where=where, hint=hint, details=failure.text)


def of_gone(refused: Exception) -> HeadraceError:
    """The error that the user sees when Spark's JVM has ended, so that it cannot tell the cause."""
    return SessionError(
        "Spark has ended under the query",
        where="the query",
        wanted="an answer from Spark's JVM",
        found=summary(refused),
        hint="the log of Spark or of the system has the cause (memory, a signal); delivered results are safe, and a restart continues",
    )


def full_text(failure: BaseException) -> str:
    return "".join(traceback.format_exception(failure))


@dataclass(frozen=True)
class Culprit:
    """The first cause of a failure."""

    said: str
    """Type and message, in one line."""
    frames: tuple[traceback.FrameSummary, ...] = ()
    """The user's own code that raised it, outermost first."""

    def __str__(self) -> str:
        if not self.frames:
            return self.said
        last = self.frames[-1]
        return f"{self.said} (in {last.name}, {last.filename}, line {last.lineno})"


def summary(failure: BaseException) -> str:
    """One line with type and message of the first cause, and the user's line of code."""
    return str(culprit(failure))


def culprit(failure: BaseException) -> Culprit:
    """The first cause of a failure, and the user's code that raised it."""
    frames = frames_of(failure.__traceback__)
    if not isinstance(failure, SPARK_ERRORS):
        return Culprit(_cut(f"{type(failure).__name__}: {failure}".strip().split("\n")[0].rstrip(": ")), frames)
    text = description(failure)
    if _TRACEBACK in text:
        return _of_traceback(text)
    java = java_failure(failure)
    return Culprit(_cut(first_line(failure)), frames) if java is None else _of_causes(java.messages, frames)


def _of_causes(messages: tuple[str, ...], frames: tuple[traceback.FrameSummary, ...] = ()) -> Culprit:
    """The first cause that has one of Spark's error classes, and the innermost cause if it says something else."""
    texts: list[str] = []
    for text in messages:
        if _TRACEBACK in text:
            return _of_traceback(text)
        texts.append(_cut(text.strip().split("\n")[0].split(" SQLSTATE")[0]))
    said = next((text for text in texts if text.startswith("[") and not text.startswith(_WRAPPERS)), texts[0])
    return Culprit(said if texts[-1] in said or said in texts[-1] else f"{said} ({texts[-1]})", frames)


def _of_traceback(text: str) -> Culprit:
    """The last complete traceback of a Python worker in a text."""
    lines = text[text.rindex(_TRACEBACK) :].split("\n")[1:]
    found = [match for line in lines if (match := _FRAME.match(line))]
    said = next((line for line in lines if line and not line[0].isspace()), "an exception in a Python worker")
    frames = [traceback.FrameSummary(each["file"], int(each["line"]), each["name"], lookup_line=False) for each in found]
    return Culprit(_cut(said), own_frames(frames))


def _cut(text: str) -> str:
    return text if len(text) <= LINE_CHARACTERS_MAX else f"{text[:LINE_CHARACTERS_MAX]} ..."
