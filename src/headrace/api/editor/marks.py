"""What is wrong with a text, at its lines: Headrace's words, or the short message of Spark or Python."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.errors import PySparkException

from headrace.errors import HeadraceError
from headrace.spark.gateway import description, first_line, java_failure

FILE = "<editor>"
"""The name of a text's file in tracebacks."""
MESSAGE_CHARS_MAX = 600
_POSITION = re.compile(r"\bline (\d+),? pos (\d+)")
_CLASS = re.compile(r"^\[([A-Z0-9_.]+)\] ")


@dataclass(frozen=True)
class Mark:
    """A mistake. `line` counts from 1, `column` from 0; 0 and 0 if it belongs to the text as a whole."""

    message: str
    line: int = 0
    column: int = 0
    chars: int = 0
    """How many characters are meant; 0 if that is not known."""
    kind: str = ""
    """Spark's name of the error, or the class of the exception."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class TextError(Exception):
    """A text that cannot be used as it is."""

    def __init__(self, *marks: Mark) -> None:
        super().__init__(marks[0].message)
        self.marks = marks


def short(failed: BaseException) -> tuple[str, str]:
    """The kind of an error, and its message in a line or a few: never a stack trace."""
    if isinstance(failed, HeadraceError):
        return type(failed).__name__, str(failed)[:MESSAGE_CHARS_MAX]
    java = None if isinstance(failed, PySparkException) else java_failure(failed)
    if isinstance(failed, PySparkException) or java is not None:
        said = first_line(failed) if java is None else next(iter(java.messages), java.text).split("\n")[0]
        text = _POSITION.split(said)[0].rstrip(" ;(")
        found = _CLASS.match(text)
        return (found[1] if found else type(failed).__name__), _CLASS.sub("", text)[:MESSAGE_CHARS_MAX]
    lines = str(failed).strip().splitlines()
    return type(failed).__name__, f"{type(failed).__name__}: {lines[0] if lines else ''}".removesuffix(": ")[:MESSAGE_CHARS_MAX]


def sql_mark(failed: BaseException, text: str) -> Mark:
    """The mark of an error of Spark's about an SQL text."""
    kind, message = short(failed)
    found = _POSITION.search(description(failed))
    if found is None:
        return Mark(message, kind=kind)
    line, column = int(found[1]), int(found[2])
    lines = text.split("\n")
    word = re.match(r"[\w.`]+", lines[line - 1][column:]) if 0 < line <= len(lines) else None
    return Mark(message, line, column, len(word[0]) if word else 0, kind)


def python_mark(failed: BaseException) -> Mark:
    """The mark of an exception that a Python text raised, or that its parser did."""
    kind, message = short(failed)
    if isinstance(failed, SyntaxError) and failed.filename == FILE:
        return Mark(f"SyntaxError: {failed.msg}", failed.lineno or 0, max(0, (failed.offset or 1) - 1), 0, "SyntaxError")
    frames = [each for each in traceback.extract_tb(failed.__traceback__) if each.filename == FILE]
    if not frames:
        return Mark(message, kind=kind)
    last = frames[-1]
    if last.colno is not None and last.end_colno is not None and last.lineno == last.end_lineno:
        return Mark(message, last.lineno or 0, last.colno, last.end_colno - last.colno, kind)
    return Mark(message, last.lineno or 0, kind=kind)
