"""The versions of Spark that Headrace runs on, and what differs between them.

A version is a text such as ``"4.1"``: Spark changes its internals in minor versions, not in patches. Each difference is a field of
``Dialect``, with a value per version in ``DIALECTS``. Other modules use ``dialect()``; none of them compares versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyspark

from headrace.errors import SessionError


@dataclass(frozen=True)
class Dialect:
    """How one version of Spark is called, where versions differ."""

    logical_rdd_flags: tuple[bool, ...]
    """Last arguments of the constructor of ``LogicalRDD``, after the nine that all versions have, and of ``LogicalRDD.fromDataset``."""
    arrow_in_utc: Mapping[str, Any]
    """Argument of PySpark's ``to_arrow_type`` that gives timestamps the time zone UTC."""
    rounding_checks_overflow: bool
    """True if ``floor`` and ``ceil`` of a double fail in ANSI mode if the result does not fit a long."""
    offsets_by_source_id: bool
    """True if an entry of Spark's log of offsets needs the ids of the sources to be read."""
    incremental_execution_flags: tuple[bool, ...]
    """Last arguments of the constructor of ``IncrementalExecution``, after the fifteen that all versions have."""
    semi_joins_forget_first: bool
    """True if, in a left semi join, rows of the right side that expire in the batch in which they come meet no left rows of that batch."""


DIALECTS: Mapping[str, Dialect] = {
    "4.1": Dialect(
        logical_rdd_flags=(),
        arrow_in_utc={"timestamp_utc": True},
        rounding_checks_overflow=False,
        offsets_by_source_id=False,
        incremental_execution_flags=(),
        semi_joins_forget_first=False,
    ),
    "4.2": Dialect(
        logical_rdd_flags=(),
        arrow_in_utc={"timezone": "UTC"},
        rounding_checks_overflow=False,
        offsets_by_source_id=True,
        incremental_execution_flags=(),
        semi_joins_forget_first=True,
    ),
    "4.3": Dialect(
        # ``fromCheckpoint``, for rows that ``Dataset.checkpoint`` saved.
        logical_rdd_flags=(False,),
        arrow_in_utc={"timezone": "UTC"},
        rounding_checks_overflow=True,
        offsets_by_source_id=True,
        # ``isRealTimeMode``, in which a batch does not end when its rows do.
        incremental_execution_flags=(False,),
        semi_joins_forget_first=True,
    ),
}
"""By version. A version without an entry is refused."""
SUPPORTED = tuple(DIALECTS)
REQUIREMENT = "pyspark>=4.1,<4.4"
"""What ``pyproject.toml`` requires; a test compares them."""


def minor_version(text: str) -> str:
    """Major and minor version from the whole version. Vendors and pre-releases add to it.

    >>> minor_version("4.3.0"), minor_version("4.2.0-amzn-1"), minor_version("4.4.0.dev2")
    ('4.3', '4.2', '4.4')
    """
    found = re.match(r"\d+\.\d+", text)
    return found[0] if found else text


def check_version(product: str, text: str) -> str:
    """The minor version, or a SessionError if Headrace does not support it. ``product`` names it in the error.

    >>> check_version("PySpark", "4.0.1")
    Traceback (most recent call last):
    ...
    headrace.errors.SessionError: session: wanted Spark 4.1, 4.2 or 4.3; found PySpark 4.0.1; pip install "pyspark>=4.1,<4.4"
    """
    version = minor_version(text)
    if version in DIALECTS:
        return version
    wanted = f"Spark {', '.join(SUPPORTED[:-1])} or {SUPPORTED[-1]}"
    raise SessionError(where="session", wanted=wanted, found=f"{product} {text}", hint=f'pip install "{REQUIREMENT}"')


def check_same_version(spark: str) -> str:
    """The minor version of a running Spark, or a SessionError if Headrace or the installed PySpark does not fit it."""
    version = check_version("Spark", spark)
    if version != pyspark_version():
        raise SessionError(
            "PySpark talks to a Spark of another version",
            where="session",
            wanted=f"Spark {pyspark_version()}, as PySpark is",
            found=f"Spark {spark} and PySpark {pyspark.__version__}",
            hint="unset SPARK_HOME, or install the PySpark of that Spark",
        )
    return version


@cache
def pyspark_version() -> str:
    """The minor version of the installed PySpark, or a SessionError if Headrace does not support it."""
    return check_version("PySpark", pyspark.__version__)


def dialect() -> Dialect:
    """How the installed Spark is called."""
    return DIALECTS[pyspark_version()]
