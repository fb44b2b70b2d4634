"""Running a user's program to learn its queries, which are planned and not started."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.api.planning import Planned


def run_program(file: Path) -> str:
    """Run a program. Returns how it failed, or an empty text. It may fail because a planned query has no results."""
    if not file.is_file():
        raise HeadraceError(where="program", wanted="a Python file", found=str(file), hint="give the path of the program")
    sys.path.insert(0, str(file.parent))
    try:
        # What the program itself prints would be mistaken for ours.
        with contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(str(file), run_name="__main__")
    except HeadraceError:
        raise
    except SystemExit:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        sys.path.remove(str(file.parent))
    return ""


def check_found(queries: list[Planned], file: Path, failed: str) -> None:
    """Raise an error if a program has started no query."""
    if not queries:
        found = f"none before it ended with {failed}" if failed else "none"
        raise HeadraceError(where=str(file), wanted="a query that is started", found=found, hint="call start() on a stream's writer")


@contextlib.contextmanager
def sessions_kept() -> Iterator[None]:
    """Inside, a program that stops its Spark session leaves it running."""
    from pyspark.sql import SparkSession

    stop = SparkSession.stop
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        SparkSession.stop = stop  # type: ignore[method-assign]
