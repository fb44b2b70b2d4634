"""The stream that ``hr.stream`` returns, with the methods of a PySpark DataFrame.

Before a stateful operator, each method calls Spark's own on the streaming DataFrame. After it, methods are recorded as steps and applied to
the results of each batch. A step is tried at once on an empty DataFrame with the same columns, so mistakes are reported at the user's line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.api import branching, joins, missing
from headrace.api.branching import Branches
from headrace.api.grouped import GroupedStream, grouped
from headrace.api.names import checked_name, resolved_columns
from headrace.api.notebook import of_stream
from headrace.api.origin import user_line
from headrace.api.places import shed_rows
from headrace.api.sources import check_source, check_step
from headrace.api.spark_frame import SparkFrame
from headrace.api.writer import StreamWriter
from headrace.errors import QueryError, UnsupportedError
from headrace.frontend import lowered
from headrace.graph.nodes import DedupNode, Rows, StatefulNode
from headrace.graph.steps import MethodStep
from headrace.logs import logger, suppressed
from headrace.spark.gateway import checked

_log = logger(__name__)

ColumnOrName = Column | str


@dataclass(frozen=True)
class Stream(missing.Helpful):
    """A stream of rows; ``hr.stream`` makes it. It is immutable: every method returns a new stream.

    Methods mean what they mean on Spark's DataFrame. A wrong argument raises ``QueryError`` that names your line, before anything runs.
    A method that Spark has and Headrace has not raises ``MissingError`` with advice.
    """

    _is = "a stream"
    _instead = missing.STREAM

    rows: Rows
    """The part of the graph that gives the stream's rows."""

    def _advice(self, name: str) -> str:
        if name in self._instead:
            return self._instead[name]
        # Spark may be gone, and nothing but an AttributeError may come out of here.
        with suppressed(_log, "the columns are not known", Exception, level=logging.DEBUG):
            if name in self.columns:
                return f"for a column write F.col({name!r})"
        if hasattr(DataFrame, name):
            return f"Spark's DataFrame has it: call it before, hr.stream(df.{name}(...))"
        return ""

    @property
    def schema(self) -> StructType:
        """The columns and their types."""
        return self.rows.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.rows.columns

    @property
    def sparkSession(self) -> SparkSession:
        """The session of the DataFrame that the stream was made from."""
        return self.rows.session

    def _repr_html_(self) -> str:
        return of_stream("stream", self.schema)

    def printSchema(self) -> None:
        """Print the columns and their types as a tree."""
        self.rows.frame.printSchema()

    def select(self, *cols: Any) -> Stream:
        """Select columns or expressions, given as names or columns in ``cols``.

        >>> calls.select("src", (F.col("seconds") / 60).alias("minutes")).columns
        ['src', 'minutes']
        """
        return self._step("select", *cols)

    def selectExpr(self, *expr: Any) -> Stream:
        """Select SQL expressions, each given as text in ``expr``.

        >>> calls.selectExpr("src", "seconds / 60 AS minutes").columns
        ['src', 'minutes']
        """
        return self._step("selectExpr", *expr)

    def filter(self, condition: ColumnOrName) -> Stream:
        """Keep the rows for which ``condition`` is true: a column, or SQL text. ``where`` is the same.

        >>> calls.filter(F.col("seconds") > 60).columns
        ['src', 'ts', 'seconds']
        """
        return self._step("filter", condition)

    def where(self, condition: ColumnOrName) -> Stream:
        """Keep the rows for which ``condition`` is true, as ``filter`` does."""
        return self._step("filter", condition)

    def withColumn(self, colName: str, col: Column) -> Stream:
        """Add the column ``colName`` with the value of ``col``, or replace it if it exists.

        >>> calls.withColumn("minutes", F.col("seconds") / 60).columns
        ['src', 'ts', 'seconds', 'minutes']
        """
        return self._step("withColumn", colName, col)

    def withColumns(self, colsMap: dict[str, Column]) -> Stream:
        """Add or replace several columns; ``colsMap`` maps their names to their values.

        >>> calls.withColumns({"minutes": F.col("seconds") / 60, "day": F.to_date("ts")}).columns
        ['src', 'ts', 'seconds', 'minutes', 'day']
        """
        return self._step("withColumns", colsMap)

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """Rename the column ``existing`` to ``new``. Nothing happens if there is no such column.

        >>> calls.withColumnRenamed("src", "caller").columns
        ['caller', 'ts', 'seconds']
        """
        return self._step("withColumnRenamed", existing, new)

    def drop(self, *cols: Any) -> Stream:
        """Remove columns, given as names or columns in ``cols``.

        >>> calls.drop("seconds").columns
        ['src', 'ts']
        """
        return self._step("drop", *cols)

    def union(self, other: Stream) -> Stream:
        """The rows of this stream and of ``other``. Columns are matched by position; each stream may have stateful operators.

        >>> calls.union(calls.filter("seconds > 60")).columns
        ['src', 'ts', 'seconds']
        """
        return self._union("union", other, lambda a, b: a.union(b))

    def unionByName(self, other: Stream, allowMissingColumns: bool = False) -> Stream:
        """The rows of this stream and of ``other``. Columns are matched by name.

        With ``allowMissingColumns=True`` a column that one stream lacks is null in its rows.

        >>> calls.unionByName(calls.select("seconds", "src"), allowMissingColumns=True).columns
        ['src', 'ts', 'seconds']
        """
        return self._union("unionByName", other, lambda a, b: a.unionByName(b, allowMissingColumns))

    def join(
        self,
        other: Stream | DataFrame,
        on: str | Sequence[str] | None = None,
        how: str = "inner",
        *,
        within: str | timedelta | None = None,
        last: int | None = None,
        where: ColumnOrName | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
    ) -> Stream:
        """Join with another stream, or with a DataFrame that is no stream.

        Two streams, which both need a watermark: rows match if their ``on`` columns are equal and their event times differ by at most
        ``within``. The result has the key columns once, then the left columns, then the right ones.

        - ``other``: the right side.
        - ``on``: the name of the key column, or a list of names. Both sides must have them.
        - ``how``: ``inner``, ``left``, ``right`` or ``full``. A row without a match is emitted when the watermark rules out a match.
        - ``within``: the largest difference of event times, such as ``"60 seconds"`` or a ``timedelta``.
        - ``last``: instead of ``within``; a row matches the last so many rows of its key on the other side that precede it in event time.
        - ``where``: a further condition on the columns of the result. In an outer join, a row whose matches all fail it has no match.
        - ``suffixes``: what to append to column names that both sides have.

        >>> timed = calls.withWatermark("ts", "10 seconds")
        >>> timed.join(timed, on="src", within="60 seconds", where="seconds < seconds_right").columns
        ['src', 'ts', 'seconds', 'ts_right', 'seconds_right']

        With a DataFrame that is no stream, it is Spark's own join, ``inner`` or ``left``, without a bound:

        >>> tariffs = spark.createDataFrame([("ada", 0.25)], "src string, price double")
        >>> calls.join(tariffs, "src", "left").columns
        ['src', 'ts', 'seconds', 'price']
        """
        line = user_line("join")
        _check_other(other, line)
        if not isinstance(other, Stream):
            return Stream(joins.with_static(self.rows, other, on, how, {"within": within, "last": last, "where": where}, line))
        return results_of(joins.join_node(self.rows, other.rows, on, how, within, last, where, suffixes, line))

    def crossJoin(
        self,
        other: Stream,
        *,
        within: str | timedelta | None = None,
        last_per_cell: int | None = None,
        where: ColumnOrName | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
    ) -> Stream:
        """All pairs of rows of two streams whose event times differ by at most ``within``, and for which ``where`` is true.

        The work is divided into a grid of cells (option ``headrace.productGrid``); every pair meets in exactly one cell.

        - ``other``: the right side, a stream. Both streams need a watermark.
        - ``within``: the largest difference of event times, such as ``"60 seconds"`` or a ``timedelta``.
        - ``last_per_cell``: instead of ``within``; each cell keeps the last so many rows of either side. The result depends on the grid.
        - ``where``: a condition on the columns of the result: comparisons, arithmetic and mathematical functions.
        - ``suffixes``: what to append to column names that both sides have.

        >>> timed = calls.withWatermark("ts", "10 seconds")
        >>> timed.crossJoin(timed, within="1 minute", where="abs(seconds - seconds_right) < 5 and src < src_right").columns
        ['src', 'ts', 'seconds', 'src_right', 'ts_right', 'seconds_right']
        """
        line = user_line("crossJoin")
        _check_other(other, line)
        if not isinstance(other, Stream):
            hint = "use join(df, on=condition), which stays in Spark"
            raise UnsupportedError(where=line, wanted="another stream", found="a DataFrame that is no stream", hint=hint)
        return results_of(joins.product_node(self.rows, other.rows, within, last_per_cell, where, suffixes, line))

    def split(self, *, otherwise: str | None = None, **conditions: ColumnOrName) -> Branches[Stream]:
        """Split the stream into branches. Each row goes to the first branch whose condition is true.

        ``conditions`` maps names of branches to conditions: columns, or SQL text. ``otherwise`` names the branch of all other rows; without
        it they are dropped. Returns the branches by name.

        >>> parts = calls.split(long="seconds > 60", short=F.col("seconds") <= 10, otherwise="rest")
        >>> list(parts), parts.long.columns
        (['long', 'short', 'rest'], ['src', 'ts', 'seconds'])

        To write several branches, pass their writers to ``hr.start``: the source is read once, and each batch is committed to all sinks.
        """
        where = user_line("split")
        by_name = branching.branch_conditions(conditions, otherwise, where)
        base = branching.shared_rows(self.rows, where)
        return Branches((name, _filtered(base, condition, where)) for name, condition in by_name.items())

    def shed(self, *, max_loss: float, by: str | list[str] | Column = "random", weight: str | None = None) -> Stream:
        """Allow rows to be dropped when the query has more to do than it can; see ``hr.shed`` for ``max_loss``, ``by`` and ``weight``."""
        return Stream(shed_rows(self.rows, max_loss, by, weight, user_line("shed")))

    def withWatermark(self, eventTime: str, delayThreshold: str) -> Stream:
        """Declare the event-time column, and how late rows may be. Call it before anything else is built on the stream.

        The watermark is the greatest ``eventTime`` seen so far, minus ``delayThreshold``, such as ``"10 seconds"``. A window is emitted
        when the watermark passes its end. A row is late, and is dropped, if the watermark of the previous batch has passed it or all its
        windows. Spark may use the watermark of one batch earlier, and then keeps a few more rows.

        >>> calls.withWatermark("ts", "10 seconds").columns
        ['src', 'ts', 'seconds']
        """
        where = user_line("withWatermark")
        if self.rows.origin is not None:
            raise UnsupportedError(
                "the watermark belongs to the source",
                where=where,
                found="a stream that has been split, joined or aggregated",
                hint="call withWatermark on the stream that hr.stream gives, before anything else is built on it",
            )
        return Stream(Rows(checked(where, lambda: self.rows.frame.withWatermark(eventTime, delayThreshold))))

    def groupBy(self, *cols: Any) -> GroupedStream[Stream]:
        """Group by columns and at most one window, given in ``cols`` as names or columns.

        A window is ``F.window(...)``, ``F.session_window(...)`` or ``hr.count_window(...)``. Call ``agg``, ``process`` or one of the
        short forms on the result. Without columns the whole stream is one group.

        >>> per_minute = calls.withWatermark("ts", "10 seconds").groupBy("src", F.window("ts", "1 minute"))
        >>> per_minute.agg(F.avg("seconds").alias("mean")).columns
        ['src', 'window', 'mean']
        >>> totals = calls.groupBy("src").agg(F.count("*").alias("calls"), F.sum("seconds").alias("seconds"))
        >>> query = totals.writeStream.outputMode("update").format("memory").queryName("totals").trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> spark.table("totals").orderBy("src").show()
        +---+-----+-------+
        |src|calls|seconds|
        +---+-----+-------+
        |ada|    2|     90|
        |bob|    1|     10|
        +---+-----+-------+
        <BLANKLINE>
        """
        return grouped(self.rows, cols, results_of, user_line("groupBy"))

    groupby = groupBy

    def agg(self, *exprs: Any) -> Stream:
        """Aggregate the whole stream as one group; ``exprs`` are those of ``GroupedStream.agg``."""
        return self.groupBy().agg(*exprs)

    def dropDuplicates(self, subset: Iterable[str] | None = None) -> Stream:
        """Keep the first row of each combination of the columns in ``subset``, by default of all columns.

        State is kept for ever, unless the columns include an event time with a watermark.

        >>> callers = calls.select("src").dropDuplicates()
        >>> query = callers.writeStream.format("memory").queryName("callers").trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> sorted(row.src for row in spark.table("callers").collect())
        ['ada', 'bob']
        """
        where = user_line("dropDuplicates")
        return results_of(DedupNode(self.rows, resolved_columns(self.rows, self.columns if subset is None else subset, where), where))

    drop_duplicates = dropDuplicates

    def named(self, name: str) -> Stream:
        """Give a name to the stateful operator that these results come from. Call it right after that operator.

        ``name`` is the operator's id in options, commands and reports, and its state is found by it after a restart. Without a name, an
        operator is recognised by what feeds it and by what it computes. A named operator keeps its state even if these change, as
        long as the columns of its state stay the same. So give a name to every operator of a query that is to live long.

        >>> totals = calls.groupBy("src").agg(F.sum("seconds").alias("seconds")).named("totals by caller")
        >>> totals.columns
        ['src', 'seconds']
        """
        return Stream(replace(self.rows, name=checked_name(self.rows.origin, name, user_line("named"))))

    @property
    def writeStream(self) -> StreamWriter:
        """A new writer for this stream."""
        return StreamWriter(self.rows)

    def _step(self, method: str, *args: Any) -> Stream:
        step = MethodStep(method, args, (), user_line(method))
        before = self.rows.frame
        frame = checked(step.where, lambda: step.apply(before))
        check_step(before, frame, method, step.where)
        return Stream(self.rows.after(step, frame))

    def _union(self, method: str, other: Stream, both: branching.Both) -> Stream:
        where = user_line(method)
        if not isinstance(other, Stream):
            raise QueryError(where=where, wanted="another stream", found=type(other).__name__)
        return Stream(branching.union_rows(self.rows, other.rows, both, where))


def results_of(node: StatefulNode) -> Stream:
    """The stream of a node's results. Compiles the node at once, so that a mistake is reported at the user's line."""
    return Stream(lowered.results_of(node))


def _check_other(other: Any, where: str) -> None:
    if isinstance(other, DataFrame) and other.isStreaming:
        raise QueryError(where=where, wanted="a stream", found="a streaming DataFrame", hint="wrap it: hr.stream(...)")
    if not isinstance(other, DataFrame | Stream):
        raise QueryError(where=where, wanted="another stream or a DataFrame", found=type(other).__name__)


def _filtered(rows: Rows, condition: Column, where: str) -> Stream:
    step = MethodStep("filter", (condition,), (), where)
    return Stream(rows.after(step, checked(where, lambda: step.apply(rows.frame))))


def stream(frame: DataFrame) -> Stream:
    """Wrap ``frame``, a streaming DataFrame; the rest is the PySpark you know. Its stateful operators become Headrace's too.

    Sources that can be read again after a crash, such as files or Kafka, lose nothing. Others, such as a socket, lose rows with the
    driver, and the start says so. The DataFrame may have any steps, also joins with static DataFrames. Raises ``SourceError``
    if it is no streaming DataFrame, ``UnsupportedError`` if Headrace lacks one of its operators, and ``SessionError`` for
    Spark Connect and unsupported versions of Spark.

    >>> hr.stream(spark.readStream.format("rate").load()).columns
    ['timestamp', 'value']
    """
    where = user_line("stream")
    check_source(frame, where)
    return Stream(SparkFrame(frame).rows(where))
