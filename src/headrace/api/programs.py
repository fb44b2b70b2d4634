"""The queries of a program in a file, planned but not started."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.api.planning import Planned, is_on, planning
from headrace.errors import HeadraceError


@dataclass(frozen=True)
class Program:
    """What a program did while its queries were planned."""

    queries: tuple[Planned, ...]
    failed: str
    """The exception that ended it, in a line; empty if it ran to its end. Without results, a program may fail."""


def planned_by(file: Path, what: str, *, printing: bool = True) -> Program:
    """Run a program as its main module, with its queries planned and not started. Its session is not stopped.

    With ``printing`` False, what it prints goes to stderr. Raises the program's own errors of Headrace.
    """
    if not file.is_file():
        found = f"{file}, which is {'a folder' if file.is_dir() else 'not there'}"
        raise HeadraceError(where=what, wanted="a Python file", found=found, hint="give the path of the program")
    failed = ""
    with planning() as queries, _sessions_go_on():
        sys.path.insert(0, str(file.parent))
        try:
            with contextlib.nullcontext() if printing else contextlib.redirect_stdout(sys.stderr):
                runpy.run_path(str(file), run_name="__main__")
        except HeadraceError:
            raise
        except SystemExit:
            pass
        except Exception as error:
            # The program may fail because a planned query has no results.
            failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        finally:
            sys.path.remove(str(file.parent))
    if not queries:
        found = f"none before it ended with {failed}" if failed else "none"
        raise HeadraceError(where=str(file), wanted="a query that is started", found=found, hint="call start() on a stream's writer")
    return Program(tuple(queries), failed)


@contextlib.contextmanager
def _sessions_go_on() -> Iterator[None]:
    """Inside, a program that plans its queries does not stop its session, in which others may run."""
    own: Any = SparkSession.stop

    def stop(session: SparkSession) -> None:
        if not is_on():
            own(session)

    sessions: Any = SparkSession
    sessions.stop = stop
    try:
        yield
    finally:
        sessions.stop = own
