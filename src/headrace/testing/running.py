"""The life of a query under test: sources, batches, starts, aborts and restarts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.api.origin import user_line
from headrace.api.query import HeadraceQuery
from headrace.api.stream import Stream, stream
from headrace.api.writer import StreamWriter, start
from headrace.config import PREFIX
from headrace.errors import BatchFailedError, QueryError
from headrace.ids import Version
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import DRIVER_POINTS, TASK_POINTS, break_off
from headrace.runtime.start import settings_of
from headrace.spark.streaming import planning_paused
from headrace.state.manifest import Manifest
from headrace.testing.reference import grouping_columns
from headrace.testing.results import CollectingSink
from headrace.testing.source import Source, SourcePart
from headrace.testing.values import schema_of

FAIL_POINTS = (*DRIVER_POINTS, *TASK_POINTS)
"""The points at which ``QueryTest.abort`` can abort a batch: first those of the driver in their order, then those of a task."""

RESULT = "result"
"""The name of the sink of a query that has one sink."""

Query = Callable[..., Any]


@dataclass(frozen=True)
class Setup:
    """The arguments that the query was last started with."""

    query: Query
    mode: str | dict[str, str]
    keys: Sequence[str] | None
    options: dict[str, Any]


class Running:
    """Runs and aborts a query batch by batch. ``QueryTest`` adds methods that look at its results."""

    def __init__(self, spark: SparkSession, folder: str | Path | None = None) -> None:
        self.spark = spark
        """The session."""
        self._is_temporary = folder is None
        self._folder = Path(tempfile.mkdtemp(prefix="query-test-", dir=folder))
        self.checkpoint = self._folder / "checkpoint"
        """The query's checkpoint location."""
        self._sources: list[Source] = []
        self._batches: list[list[SourcePart]] = []
        """Batches that were added and have not run yet."""
        self._shared: list[SourcePart] | None = None
        self._results: dict[str, CollectingSink] = {}
        self._query: HeadraceQuery | None = None
        self._setup: Setup | None = None
        self._unfinished = False
        """True if a batch was begun and has not finished."""
        self._late: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def source(self, schema: str | StructType, name: str | None = None) -> Source:
        """Make a source of rows. The query gets its sources in the order in which they were made.

        ``schema`` is a StructType or text such as ``"src string, ts timestamp, seconds long"``. ``name`` appears in error messages.
        """
        name = name or f"source{len(self._sources)}"
        known = [each.name for each in self._sources]
        if not name.isidentifier() or name.startswith("_") or name in known:
            found = f"{name!r}{' a second time' if name in known else ''}"
            raise QueryError(where=user_line("source"), wanted="a name of letters and digits, one for each source", found=found)
        folder = self._folder / "sources" / name
        made = Source(self.spark, name, schema_of(self.spark, schema), folder, self._folder / "waiting", self._offer)
        self._sources.append(made)
        return made

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Everything that is added inside the context, to any source, is one micro-batch.

        Example: ``with t.batch(): calls.add(...); refunds.add(...)``.
        """
        if self._shared is not None:
            raise QueryError(where=user_line("batch"), wanted="one batch at a time", found="a batch inside a batch")
        self._shared = []
        try:
            yield
            if self._shared:
                self._batches.append(self._shared)
        finally:
            self._shared = None

    def _offer(self, part: SourcePart) -> None:
        if self._shared is None:
            self._batches.append([part])
        else:
            self._shared.append(part)

    def start(self, query: Query, mode: str | dict[str, str] = "append", *, keys: Sequence[str] | None = None, **options: Any) -> None:
        """Start the query.

        - ``query``: a function of streams, one for each source. It returns a stream, or a dict of streams by the names of sinks. Instead
          of a stream it may return a writer, ``stream.writeStream.format(...)``; the rows of a writer are not kept here.
        - ``mode``: the output mode, or a dict of output modes by the names of sinks.
        - ``keys``: the columns that identify a result in update mode. They are not needed after a ``groupBy``.
        - ``options``: options of Headrace, such as ``instances=2``.
        """
        if self._setup is not None:
            raise QueryError(where=user_line("start"), wanted="one start", found="a query that was started before", hint="call restart()")
        if not self._sources:
            raise QueryError(where=user_line("start"), wanted="a source", found="none", hint="make one with source(schema)")
        self._begin(Setup(query, mode, keys, options), user_line("start"))

    def restart(
        self,
        query: Query | None = None,
        mode: str | dict[str, str] | None = None,
        *,
        keys: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Start the query again on its checkpoint, after an abort or a failure. A query that runs is stopped first.

        An aborted batch runs again before this returns. The arguments ``query``, ``mode``, ``keys`` and ``options`` replace those of
        ``start``: ``restart(instances=4)``. Use ``restart(other_query)`` to test that a change of your program is safe.
        """
        setup = self._started("restart")
        self.stop()
        if query is not None:
            # Another query may give other results for the batch that is delivered again.
            for results in self._results.values():
                results.batches.pop(self._next_batch(), None)
        keys = keys if keys is not None or query is not None else setup.keys
        changed = replace(setup, query=query or setup.query, mode=mode or setup.mode, keys=keys, options={**setup.options, **options})
        self._begin(changed, user_line("restart"))

    def _begin(self, setup: Setup, where: str) -> None:
        built = setup.query(*[stream(source.frame) for source in self._sources])
        outputs = built if isinstance(built, dict) else {RESULT: built}
        writers = [self._writer(name, output, setup, where) for name, output in outputs.items()]
        for name, value in setup.options.items():
            for writer in writers:
                writer.option(name if "." in name else f"{PREFIX}{name}", value)
        self._query = start(*writers, checkpointLocation=str(self.checkpoint))
        self._setup = setup
        self._finish()

    def _writer(self, name: str, output: Any, setup: Setup, where: str) -> Any:
        if not isinstance(output, Stream):
            if not isinstance(output, StreamWriter):
                wanted = "a query that returns a stream or a writer, or a dict of them"
                raise QueryError(where=where, wanted=wanted, found=type(output).__name__)
            self._results.pop(name, None)
            return output
        mode = setup.mode.get(name, "append") if isinstance(setup.mode, dict) else setup.mode
        keys = grouping_columns(output) if setup.keys is None else tuple(setup.keys)
        if unknown := [key for key in keys or () if key not in output.columns]:
            raise QueryError(where=where, wanted=f"keys among {', '.join(output.columns)}", found=", ".join(unknown))
        before = self._results[name].batches if name in self._results else {}
        self._results[name] = results = CollectingSink(name, mode.lower(), output.schema, keys, before)
        return output.writeStream.outputMode(mode).foreachBatch(results.take)

    def run(self) -> None:
        """Process everything that was added, batch by batch. Raises the query's error if it fails; ``restart`` runs that batch again."""
        query = self._running("run")
        while self._batches:
            parts, batch = self._batches.pop(0), self._next_batch()
            self._give(query, parts)
            self._finish()
            if self._next_batch() == batch:
                names = ", ".join(sorted({part.source.name for part in parts}))
                raise QueryError(where=user_line("run"), wanted="a query that reads all sources", found=f"one that does not read {names}")

    def abort(self, at: str) -> None:
        """Run the next batch and abort it at the point ``at``, one of ``FAIL_POINTS``, as if the driver had died there.

        This leaves the files that a crash would leave. Call ``restart`` next. Or call ``abort`` again: it restarts the query and aborts
        the same batch once more.
        """
        where = user_line("abort")
        if at not in FAIL_POINTS:
            raise QueryError(where=where, wanted=f"a fail point: {', '.join(FAIL_POINTS)}", found=repr(at))
        setup = self._started("abort")
        if not self._unfinished and not self._batches:
            raise QueryError(where=where, wanted="rows for the batch that is to break off", found="none", hint="add some first")
        batch = self._next_batch()
        try:
            with break_off(at, Version(batch)):
                if self._unfinished:
                    self.stop()
                    self._begin(setup, where)
                else:
                    self._give(self._running("abort"), self._batches.pop(0))
                    self._finish()
        except BatchFailedError as failure:
            if f"Crash: {at}@{batch}" not in str(failure):
                raise
            return
        hint = "a version that was committed before is only delivered again; a query without stateful operators has no tasks"
        raise QueryError(where=where, wanted=f"batch {batch} to come to {at!r}", found="that it never did", hint=hint)

    def _give(self, query: HeadraceQuery, parts: list[SourcePart]) -> None:
        """Make a batch visible to the query, all sources at once."""
        self._unfinished = True
        with planning_paused(self._spark_query(query)) if len(parts) > 1 else nullcontext():
            for part in parts:
                part.put()

    def _spark_query(self, query: HeadraceQuery) -> Any:
        return self.spark.streams.get(query.id)

    def _finish(self) -> None:
        """Wait until all visible rows are processed."""
        assert self._query is not None
        self._query.processAllAvailable()
        self._unfinished = False
        if (latest := self._latest()) is not None:
            self._late[latest.version] = latest.counters.rows_late

    def stop(self) -> None:
        """Let the current batch finish and stop the query. ``restart`` starts it again."""
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def _next_batch(self) -> int:
        """The number of the first batch that Spark has not committed."""
        newest = self._opened().spark_log.newest("commits")
        return 0 if newest is None else newest + 1

    def _latest(self) -> Manifest | None:
        return self._opened().newest_facts()

    def _opened(self) -> Checkpoint:
        return Checkpoint(str(self.checkpoint), settings=lambda: settings_of(self.spark))

    def _started(self, what: str) -> Setup:
        if self._setup is None:
            raise QueryError(where=user_line(what), wanted="a query", found="none", hint="call start(query) first")
        return self._setup

    def _running(self, what: str) -> HeadraceQuery:
        self._started(what)
        assert self._query is not None
        if not self._query.isActive:
            failure = self._query.exception()
            found = "one that was stopped" if failure is None else f"one that ended: {failure}"
            raise QueryError(where=user_line(what), wanted="a query that runs", found=found, hint="call restart() first")
        return self._query

    @property
    def query(self) -> HeadraceQuery:
        """The handle of the query, which may have ended: ``t.query.spread(7)``, ``t.query.lastProgress``."""
        self._started("query")
        assert self._query is not None
        return self._query

    def rescale(self, *request: str | int, protocol: str | None = None) -> None:
        """Change the number of instances from the next batch on; ``request`` and ``protocol`` are those of ``HeadraceQuery.rescale``."""
        self._running("rescale").rescale(*request, protocol=protocol)

    def move(self, slots: Any, to: int, operator: str | None = None, protocol: str | None = None) -> None:
        """Assign ``slots`` to the instance ``to`` from the next batch on: ``move(range(0, 100), to=1)``.

        ``operator`` and ``protocol`` are those of ``HeadraceQuery.move``.
        """
        self._running("move").move(slots, to, operator, protocol)
