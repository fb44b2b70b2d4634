"""What a conformance program is: a function from streams to a streaming DataFrame, and what is claimed about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

Function = Callable[..., DataFrame]

WORKS, SPARK_REFUSES, NOT_YET = "works", "Spark refuses it", "not yet"


@dataclass(frozen=True)
class Program:
    """One program."""

    name: str
    group: str
    idiom: str
    """What it shows, in a few words, for docs/compatibility.md."""
    inputs: tuple[str, ...]
    """The names of its streams; ``data.py`` has their rows."""
    mode: str
    function: Function
    claim: str = WORKS
    why: str = ""
    """For other claims than WORKS: what the error says, in part."""
    ordered: bool = False
    """True if the order of the results counts."""
    columns: tuple[str, ...] = ()
    """The columns to compare, if others depend on the order of rows in a batch."""
    quick: bool = False
    """True if it is run with the unmarked tests."""
    conf: tuple[tuple[str, str], ...] = ()
    """Settings of the session."""


PROGRAMS: list[Program] = []


def program(idiom: str, inputs: str = "events", mode: str = "append", **more: Any) -> Callable[[Function], Function]:
    """Decorator: a function of the session and of streams is a program. ``inputs`` are names, with spaces between."""

    def register(function: Function) -> Function:
        group = function.__module__.rsplit(".", 1)[-1]
        PROGRAMS.append(Program(function.__name__, group, idiom, tuple(inputs.split()), mode, function, **more))
        return function

    return register
