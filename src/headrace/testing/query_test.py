"""A query under test: its rows, state and watermark, and the comparison with Spark's batch answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row

from headrace.api.origin import user_line
from headrace.errors import QueryError
from headrace.testing.compare import assert_same_rows
from headrace.testing.reference import expected
from headrace.testing.results import CollectingSink
from headrace.testing.running import Query, Running
from headrace.testing.values import collected, sorted_rows, zone_of


class QueryTest(Running):
    """Runs your query on your rows, one micro-batch at a time. Use it as a context manager.

    ``spark`` is any classic SparkSession. Files go into a new folder below ``folder`` and stay there; without it they are removed at the
    end. The query is a function of streams, one for each source. It returns a stream, or a dict of streams by the names of sinks.
    Methods raise ``QueryError`` if they are called in the wrong order or with wrong arguments.

    >>> def totals(calls):
    ...     return calls.groupBy("src").agg(F.sum("seconds").alias("total"))
    >>> with QueryTest(spark) as t:
    ...     calls = t.source("src string, seconds long")
    ...     t.start(totals, mode="update")
    ...     calls.add(("ada", 60), ("bob", 10))
    ...     t.run()
    ...     calls.add(("ada", 30))
    ...     t.abort("manifest-after")
    ...     t.restart(instances=3)
    ...     t.assert_same_as_spark()
    ...     t.rows()
    [Row(src='ada', total=90), Row(src='bob', total=10)]
    """

    def rows(self, sink: str | None = None, batch: int | None = None) -> list[Row]:
        """The result so far, sorted by its columns.

        In append mode this is all rows, in update mode the last row of each key, in complete mode the last table. ``sink`` is the
        sink's name; it is not needed if there is one. ``batch`` selects what one batch delivered; -1 is the last batch.
        """
        results = self._of_sink(sink, "rows")
        return results.rows() if batch is None else results.of_batch(batch)

    def _of_sink(self, sink: str | None, what: str) -> CollectingSink:
        self._started(what)
        if sink is None and len(self._results) == 1:
            return next(iter(self._results.values()))
        if sink not in self._results:
            wanted = f"the name of a sink: {', '.join(self._results) or 'none, as all write elsewhere'}"
            raise QueryError(where=user_line(what), wanted=wanted, found=repr(sink))
        return self._results[sink]

    def state(self, operator: str | None = None) -> list[Row]:
        """The rows of an operator's state, sorted by their columns. ``operator`` is that of ``HeadraceQuery.state``."""
        return sorted_rows(self.query.state(operator).collect())

    def watermark(self) -> datetime | None:
        """The watermark after the last batch, in UTC; None if there is none yet."""
        latest = self._latest()
        return datetime.fromtimestamp(latest.watermark_ms / 1000, UTC) if latest is not None and latest.watermark_ms else None

    def late_rows(self) -> int:
        """The number of rows that were dropped as late so far. A row that two operators drop counts twice."""
        return sum(self._late.values())

    def assert_rows(self, wanted: Sequence[Any] | DataFrame, sink: str | None = None) -> None:
        """Raise an AssertionError unless the result so far has exactly the rows ``wanted``, in any order.

        The rows are given as to ``Source.add``, or as a DataFrame. ``sink`` is that of ``rows``.
        """
        results = self._of_sink(sink, "assert_rows")
        if isinstance(wanted, DataFrame):
            self._compare(results, wanted, "what was wanted")
            return
        rows = collected(wanted, results.schema, zone_of(self.spark), user_line("assert_rows"))
        self._assert_same(results, rows, "what was wanted")

    def assert_same_as_spark(self, reference: Query | None = None, *, sink: str | None = None, due: str | None = None) -> None:
        """Raise an AssertionError unless the result equals that of Spark's batch engine over all rows that were added.

        - ``reference``: a function of batch DataFrames, one for each source. By default it is the query itself, which works if it calls
          only methods that Spark's DataFrames have too.
        - ``sink``: that of ``rows``.
        - ``due``: an SQL expression for the time of a result, such as ``"ts"``. By default it is the end of the time window or session
          window among the columns.

        Rows added with ``late=True`` do not count. In append mode, results whose time is after the watermark do not count either.
        """
        setup, results = self._started("assert_same_as_spark"), self._of_sink(sink, "assert_same_as_spark")
        where = user_line("assert_same_as_spark")
        if self._batches or self._unfinished:
            found = "a batch that was broken off" if self._unfinished else f"batches to process: {len(self._batches)}"
            hint = "call restart() first" if self._unfinished else "call run() first"
            raise QueryError(where=where, wanted="that all rows are processed", found=found, hint=hint)
        frames = [source.as_batch() for source in self._sources]
        latest = self._latest()
        watermark_ms = latest.watermark_ms if latest is not None else 0
        answer = expected(reference or setup.query, frames, results, watermark_ms, due, where)
        self._compare(results, answer, "Spark's batch answer")

    def _compare(self, results: CollectingSink, wanted: DataFrame, what: str) -> None:
        mine, theirs = ([f.dataType.simpleString() for f in schema.fields] for schema in (results.schema, wanted.schema))
        if mine != theirs:
            raise AssertionError(f"columns are {results.schema.simpleString()}, those of {what} {wanted.schema.simpleString()}")
        self._assert_same(results, wanted.collect(), what)

    def _assert_same(self, results: CollectingSink, wanted: Sequence[Any], what: str) -> None:
        text = f"{results.name} after batch {self._next_batch() - 1} and {what}"
        assert_same_rows(results.rows(), wanted, columns=results.schema.names, keys=results.keys or (), what=text)
