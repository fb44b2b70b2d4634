"""The stream: what ``hr.stream`` gives, with the methods of a PySpark DataFrame.

Before a stateful operator, each method is Spark's own on the streaming DataFrame. After it, methods are kept as steps, tried at once on
an empty DataFrame of the same columns (so that a mistake is reported at the user's line), and applied to the results.
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
from headrace.api.grouped import GroupedStream, grouped
from headrace.api.names import checked_name, resolved_columns
from headrace.api.origin import user_line
from headrace.api.sources import check_source, check_step
from headrace.api.writer import StreamWriter
from headrace.compile.nodes import compile_node
from headrace.config import Config
from headrace.errors import MissingError, QueryError, UnsupportedError
from headrace.graph.nodes import DedupNode, Rows, StatefulNode
from headrace.graph.steps import Method
from headrace.logs import logger, suppressed
from headrace.operators.kernel import OutputMode
from headrace.spark.gateway import checked

_log = logger(__name__)

ColumnOrName = Column | str


@dataclass(frozen=True)
class Stream(missing.Helpful):
    """A stream of rows. Immutable: every method gives a new one."""

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
        return self.rows.schema

    @property
    def columns(self) -> list[str]:
        return self.rows.columns

    @property
    def sparkSession(self) -> SparkSession:
        return self.rows.session

    def printSchema(self) -> None:
        self.rows.frame.printSchema()

    def select(self, *cols: Any) -> Stream:
        """Columns or expressions, as in Spark.

        >>> calls.select("src", (F.col("seconds") / 60).alias("minutes")).columns
        ['src', 'minutes']
        """
        return self._step("select", *cols)

    def selectExpr(self, *expr: Any) -> Stream:
        """SQL expressions, as in Spark.

        >>> calls.selectExpr("src", "seconds / 60 AS minutes").columns
        ['src', 'minutes']
        """
        return self._step("selectExpr", *expr)

    def filter(self, condition: ColumnOrName) -> Stream:
        """Rows for which a condition holds; ``where`` is the same.

        >>> calls.filter(F.col("seconds") > 60).columns
        ['src', 'ts', 'seconds']
        """
        return self._step("filter", condition)

    def where(self, condition: ColumnOrName) -> Stream:
        return self._step("filter", condition)

    def withColumn(self, colName: str, col: Column) -> Stream:
        """Add or replace a column.

        >>> calls.withColumn("minutes", F.col("seconds") / 60).columns
        ['src', 'ts', 'seconds', 'minutes']
        """
        return self._step("withColumn", colName, col)

    def withColumns(self, colsMap: dict[str, Column]) -> Stream:
        return self._step("withColumns", colsMap)

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        return self._step("withColumnRenamed", existing, new)

    def drop(self, *cols: Any) -> Stream:
        """Leave columns out.

        >>> calls.drop("seconds").columns
        ['src', 'ts']
        """
        return self._step("drop", *cols)

    def union(self, other: Stream) -> Stream:
        """Rows of both, by position, as in Spark.

        >>> calls.union(calls.filter("seconds > 60")).columns
        ['src', 'ts', 'seconds']
        """
        return self._union("union", other, lambda a, b: a.union(b))

    def unionByName(self, other: Stream, allowMissingColumns: bool = False) -> Stream:
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
        """Pairs of rows with equal ``on`` columns whose event times differ by at most ``within``. Both streams need a watermark.

        The result has the key columns once, then the left columns, then the right ones; names that both have get a suffix. ``where``
        is a further condition, on the columns of the result. It belongs to the join: in an outer join (``how`` as in Spark) a row whose
        partners all fail it has none. A row without a partner is emitted when the watermark says that none can come.
        With ``last=100`` instead of ``within`` a row meets the last 100 rows before it of its key on the other side, by event time.

        >>> timed = calls.withWatermark("ts", "10 seconds")
        >>> timed.join(timed, on="src", within="60 seconds", where="seconds < seconds_right").columns
        ['src', 'ts', 'seconds', 'ts_right', 'seconds_right']

        With a DataFrame that is no stream it is Spark's own join:

        >>> tariffs = spark.createDataFrame([("ada", 0.25)], "src string, price double")
        >>> calls.join(tariffs, "src", "left").columns
        ['src', 'ts', 'seconds', 'price']
        """
        line = user_line("join")
        _check_other(other, line)
        if not isinstance(other, Stream):
            return Stream(joins.with_static(self.rows, other, on, how, {"within": within, "last": last, "where": where}, line))
        return _of(joins.join_node(self.rows, other.rows, on, how, within, last, where, suffixes, line))

    def crossJoin(
        self,
        other: Stream,
        *,
        within: str | timedelta | None = None,
        last_per_cell: int | None = None,
        where: ColumnOrName | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
    ) -> Stream:
        """All pairs of rows whose event times differ by at most ``within``, and for which ``where`` holds.

        The condition may be anything over the columns of the result that can be evaluated on many pairs at once: comparisons, arithmetic,
        mathematical functions. Work is cut into a grid of cells (option ``headrace.productGrid``), and every pair meets in one of them.
        With ``last_per_cell=100`` instead of ``within`` each cell keeps a window of its own, of the last 100 rows of either side that it
        got: the result then depends on the grid.

        >>> timed = calls.withWatermark("ts", "10 seconds")
        >>> timed.crossJoin(timed, within="1 minute", where="abs(seconds - seconds_right) < 5 and src < src_right").columns
        ['src', 'ts', 'seconds', 'src_right', 'ts_right', 'seconds_right']
        """
        line = user_line("crossJoin")
        _check_other(other, line)
        if not isinstance(other, Stream):
            hint = "use join(df, on=condition), which stays in Spark"
            raise UnsupportedError(where=line, wanted="another stream", found="a DataFrame that is no stream", hint=hint)
        return _of(joins.product_node(self.rows, other.rows, within, last_per_cell, where, suffixes, line))

    def split(self, *, otherwise: str | None = None, **conditions: ColumnOrName) -> Branches:
        """Several streams out of one: each row goes to the first branch whose condition holds, or to ``otherwise``, or nowhere.

        >>> parts = calls.split(long="seconds > 60", short=F.col("seconds") <= 10, otherwise="rest")
        >>> list(parts), parts.long.columns
        (['long', 'short', 'rest'], ['src', 'ts', 'seconds'])

        Give the writers of several branches to ``hr.start``: the source is read once, and all sinks are committed together.
        """
        where = user_line("split")
        by_name = branching.branch_conditions(conditions, otherwise, where)
        base = branching.shared(self.rows, where)
        return Branches((name, _filtered(base, condition, where)) for name, condition in by_name.items())

    def withWatermark(self, eventTime: str, delayThreshold: str) -> Stream:
        """How late rows may be, as in Spark: a window is emitted once no row for it is expected any more.

        A row is late if the watermark had passed it, or all its windows, when the batch before it ended. Spark goes by the batch
        before that one if batches follow each other without a pause, and so may keep a few rows more.

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
        """Columns and at most one ``F.window(...)``.

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
        return grouped(self.rows, cols, _of, user_line("groupBy"))

    groupby = groupBy

    def agg(self, *exprs: Any) -> Stream:
        """Aggregate the whole stream."""
        return self.groupBy().agg(*exprs)

    def dropDuplicates(self, subset: Iterable[str] | None = None) -> Stream:
        """The first row of each combination of the columns (all by default). State is kept for ever, unless the columns include an
        event time with a watermark.

        >>> callers = calls.select("src").dropDuplicates()
        >>> query = callers.writeStream.format("memory").queryName("callers").trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> sorted(row.src for row in spark.table("callers").collect())
        ['ada', 'bob']
        """
        where = user_line("dropDuplicates")
        return _of(DedupNode(self.rows, resolved_columns(self.rows, self.columns if subset is None else subset, where), where))

    drop_duplicates = dropDuplicates

    def named(self, name: str) -> Stream:
        """Give the stateful operator whose results these are a name: its id everywhere, and how its state is found after a restart.

        Without one, an operator is recognised by what feeds it and what it computes. A name keeps its state also when that changes,
        as long as the state's columns stay the same: give one to every operator of a query that is to live long.

        >>> totals = calls.groupBy("src").agg(F.sum("seconds").alias("seconds")).named("totals by caller")
        >>> totals.columns
        ['src', 'seconds']
        """
        return Stream(replace(self.rows, name=checked_name(self.rows.origin, name, user_line("named"))))

    @property
    def writeStream(self) -> StreamWriter:
        return StreamWriter(self.rows)

    def _step(self, method: str, *args: Any) -> Stream:
        step = Method(method, args, (), user_line(method))
        before = self.rows.frame
        frame = checked(step.where, lambda: step.apply(before))
        check_step(before, frame, method, step.where)
        return Stream(self.rows.after(step, frame))

    def _union(self, method: str, other: Stream, both: branching.Both) -> Stream:
        where = user_line(method)
        if not isinstance(other, Stream):
            raise QueryError(where=where, wanted="another stream", found=type(other).__name__)
        return Stream(branching.union_rows(self.rows, other.rows, both, where))


class Branches(dict[str, Stream]):
    """The streams of a split, by name; also as attributes."""

    def __getattr__(self, name: str) -> Stream:
        try:
            return self[name]
        except KeyError:
            if name.startswith("_"):
                raise AttributeError(name) from None
            raise MissingError(where=user_line(name), wanted=f"a branch: {', '.join(self)}", found=repr(name)) from None


def _of(node: StatefulNode) -> Stream:
    """The stream of a node's results. The node is compiled at once, so that a mistake is reported at the user's line."""
    if not all(each.append_only for each in node.inputs):
        raise UnsupportedError(
            "its results change with every batch, so what is computed from them would have to be taken back",
            where=node.where,
            found="a stateful operator on the results of an aggregate without a window",
            hint="group the first aggregate by F.window(...) with a watermark, so that each of its results is final",
        )
    plan = compile_node(node, Config())
    empty = node.inputs[0].session.createDataFrame([], plan.schema)
    return Stream(Rows(empty, node, append_only=OutputMode.APPEND in plan.modes))


def _check_other(other: Any, where: str) -> None:
    if isinstance(other, DataFrame) and other.isStreaming:
        raise QueryError(where=where, wanted="a stream", found="a streaming DataFrame", hint="wrap it: hr.stream(...)")
    if not isinstance(other, DataFrame | Stream):
        raise QueryError(where=where, wanted="another stream or a DataFrame", found=type(other).__name__)


def _filtered(rows: Rows, condition: Column, where: str) -> Stream:
    step = Method("filter", (condition,), (), where)
    return Stream(rows.after(step, checked(where, lambda: step.apply(rows.frame))))


def stream(frame: DataFrame) -> Stream:
    """Wrap a streaming DataFrame; the rest is the PySpark you know."""
    check_source(frame, user_line("stream"))
    return Stream(Rows(frame))
