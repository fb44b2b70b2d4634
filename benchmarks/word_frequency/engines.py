"""One process per engine: each has its own JVM, heap and compiled code, and is idle while a cell of another engine runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Protocol

from benchmarks.word_frequency.cell import Cell, Run
from benchmarks.word_frequency.check import Texts, wrong
from benchmarks.word_frequency.summary import Seen, summarise
from headrace.bench.machine import cores
from headrace.bench.model import Lane
from headrace.bench.runner import lane_session
from headrace.errors import HeadraceError

HEAP_GB = 3
"""The heap of each engine's JVM; three JVMs run at the same time."""
_KEPT = {"spark.sql.streaming.numRecentProgressUpdates": "100000", "spark.sql.streaming.minBatchesToRetain": "100000"}
"""Spark must keep all progress and logs: a cell reads them at its end."""
_spark: Any = None


class Engines(Protocol):
    def run(self, cell: Cell) -> Seen: ...


class Here:
    """Runs all engines on one session, for tests."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def run(self, cell: Cell) -> Seen:
        return run_cell(self.spark, cell, self.folder)


class Processes:
    """Runs the cells of an engine in its own process, which is warmed up before the first cell."""

    def __init__(self, engines: Sequence[str], folder: Path, stack: ExitStack) -> None:
        self._pools = {
            engine: stack.enter_context(
                ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=(str(folder / f"{engine}.log"),))
            )
            for engine in engines
        }
        self._folder = folder
        stack.push(_end_at_once)

    def run(self, cell: Cell) -> Seen:
        waiting: Future[Seen] = self._pools[cell.engine].submit(_run, cell, self._folder)
        try:
            return waiting.result()
        except Exception as error:
            log = self._folder / f"{cell.engine}.log"
            lines = log.read_text(errors="replace").strip().splitlines()[-1:] if log.is_file() else []
            raise HeadraceError(where=f"bench word-frequency, {cell.name}", found=str(error), hint=" ".join(lines)) from error


@contextmanager
def processes(engines: Sequence[str]) -> Iterator[tuple[Processes, Path]]:
    """The engines and a folder for pools; both are removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-words-"))
    try:
        with ExitStack() as stack:
            yield Processes(engines, folder, stack), folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_at_once(kind: type[BaseException] | None, *_: object) -> None:
    """End the engines without waiting for a running cell. A JVM ends with the process that started it."""
    if kind is not None:
        for child in active_children():
            child.kill()


def run_cell(spark: Any, cell: Cell, folder: Path) -> Seen:
    """Run a cell and check what it delivered."""
    place = Path(tempfile.mkdtemp(prefix=f"{cell.engine}-", dir=folder)) / "cell"
    outcome = Run(spark, cell, place).run()
    texts = texts_of(cell.pool, cell.head)
    seen = summarise(outcome, wrong(outcome, texts), texts.words_per_fragment, place / "checkpoint")
    shutil.rmtree(place.parent, ignore_errors=True)
    # The path of the pool is of no interest to a reader.
    return replace(seen, cell=replace(cell, pool=""))


@cache
def texts_of(pool: str, head: int) -> Texts:
    return Texts(Path(pool), head)


def _begin(log: str) -> None:
    """Start the session, with the output of Spark and its workers redirected to a file."""
    global _spark
    with open(log, "wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    _spark = lane_session(cores(), HEAP_GB, _KEPT, Lane("words", "any", {}), Path(log).parent)


def _run(cell: Cell, folder: Path) -> Seen:
    return run_cell(_spark, cell, folder)
