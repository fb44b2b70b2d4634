"""What a program prints when an error of Headrace, or Ctrl-C, ends it: a few lines, the user's own first.

Python would print every line that led to the error, most of them Headrace's. A program with a ``sys.excepthook`` of its own keeps it.
``HEADRACE_TRACEBACK=1`` prints Python's whole traceback.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from headrace.errors import BatchFailedError, HeadraceError
from headrace.runtime.lifetime import is_drained
from headrace.spark.console import report_folder

VARIABLE = "HEADRACE_TRACEBACK"


def install() -> None:
    """Show errors of Headrace in a few lines if nobody catches them, from now on."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _shown


def _shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    lines = None if os.environ.get(VARIABLE) == "1" else lines_of(error)
    if lines is None:
        sys.__excepthook__(kind, error, trace)
        return
    for line in lines:
        print(line, file=sys.stderr)


def lines_of(error: BaseException) -> list[str] | None:
    """What to print for an exception that ends the program; None if Python should print its traceback."""
    if isinstance(error, KeyboardInterrupt):
        # The end of the query was reported when the user pressed the keys.
        return [] if is_drained(error) else None
    if not isinstance(error, HeadraceError):
        return None
    lines, folder = error.few_lines(), report_folder()
    if isinstance(error, BatchFailedError):
        where = f"Spark's report is in {folder}; " if folder is not None else ""
        lines.append(f"({where}{VARIABLE}=1 prints the whole traceback)")
    return lines
