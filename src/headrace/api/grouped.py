"""Grouped streams: aggregates, and users' own operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.api import missing
from headrace.api.origin import user_line
from headrace.api.processes import State, process_node
from headrace.api.windows import as_window
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import AggregateNode, Rows, StatefulNode
from headrace.graph.user_states import spark_call
from headrace.graph.windows import CountSpec, Windows
from headrace.operators.processor import AnyProcessor
from headrace.spark import expressions
from headrace.spark.gateway import checked

Stream = TypeVar("Stream")


@dataclass(frozen=True)
class GroupedStream(missing.Helpful, Generic[Stream]):
    """A stream grouped by keys; ``Stream.groupBy`` and ``hr.groupBy`` make it.

    Each method returns its results: a stream, or after ``hr.groupBy`` a streaming DataFrame.
    """

    _is = "a grouped stream"
    _instead = missing.GROUPED

    rows: Rows
    keys: tuple[Column, ...]
    window: Windows | None
    window_at: int
    results_of: Callable[[StatefulNode], Stream]
    """A function that makes the stream of a node's results."""

    def agg(self, *exprs: Any) -> Stream:
        """Aggregate each group.

        ``exprs`` are columns made of Spark's aggregate functions, or one dict of column names to names of functions. The result has
        the keys, then the aggregates. Without a window, results change with every batch: write them in update or complete mode.
        Raises ``UnsupportedError`` for a function that is not supported; the error lists those that are.

        >>> calls.groupBy("src").agg(F.count("*").alias("calls"), (F.sum("seconds") / 60).alias("minutes")).columns
        ['src', 'calls', 'minutes']
        >>> calls.groupBy("src").agg({"seconds": "max"}).columns
        ['src', 'max(seconds)']
        """
        where = user_line("agg")
        flat = _from_dict(exprs[0], where) if len(exprs) == 1 and isinstance(exprs[0], dict) else list(exprs)
        if not flat or not all(isinstance(c, Column) for c in flat):
            raise QueryError(where=where, wanted="at least one aggregate, such as F.count('*')", found=repr(exprs))
        return self.results_of(AggregateNode(self.rows, self.keys, self.window, self.window_at, tuple(flat), where))

    def process(
        self,
        processor: AnyProcessor,
        schema: str | StructType,
        state: str | StructType | State,
        *,
        initial: DataFrame | None = None,
        orderBy: str | Sequence[str] = (),
    ) -> Stream:
        """Run a stateful operator of your own. Late rows are dropped before it sees them.

        - ``processor``: an object of a class derived from ``hr.Processor`` or ``hr.KeyProcessor``.
        - ``schema``: the columns that it emits.
        - ``state``: the typed columns that it keeps for each key, or a ``hr.State`` with maps, timers and a time to live.
        - ``initial``: a batch DataFrame of keys and values, the state to start with.
        - ``orderBy``: the columns by which the rows of a key are sorted; by default, event time if the stream has a watermark.

        A ``hr.Processor`` is called with all keys of an instance at once, as Arrow tables:

        >>> class Totals(hr.Processor):
        ...     def process(self, rows, state):
        ...         new = rows.group_by("src").aggregate([("seconds", "sum")])
        ...         old = state.get(new)
        ...         total = pc.add(new["seconds_sum"], pc.fill_null(old["total"], 0))
        ...         totals = pa.table({"src": new["src"], "total": total})
        ...         state.put(totals)
        ...         return totals
        >>> totals = calls.groupBy("src").process(Totals(), "src string, total long", state="total long")
        >>> query = totals.writeStream.format("memory").queryName("processed").trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> sorted(tuple(row) for row in spark.table("processed").collect())
        [('ada', 90), ('bob', 10)]

        A ``hr.KeyProcessor`` is called once for each key and batch, with the rows and the state of the key:

        >>> class Longest(hr.KeyProcessor):
        ...     def process(self, key, rows, state):
        ...         state.longest = max([row.seconds for row in rows] + [state.longest or 0])
        ...         yield key, state.longest
        >>> calls.groupBy("src").process(Longest(), "src string, longest long", state="longest long").columns
        ['src', 'longest']
        """
        where = user_line("process")
        if self.window is not None:
            raise UnsupportedError(
                where=where,
                found="process on a stream that is grouped by a window",
                hint="group by keys alone; the processor keeps time itself",
            )
        return self.results_of(process_node(self.rows, self.keys, processor, schema, state, initial, orderBy, where))

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: str | StructType,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> Stream:
        """Run a ``StatefulProcessor`` that was written for Spark's method of this name, as it is, on Headrace's state.

        ``statefulProcessor`` gets and gives rows. The other arguments are Spark's: ``outputStructType``, ``outputMode``, ``timeMode``,
        ``initialState`` (groups of a batch DataFrame) and ``eventTimeColumnName``.

        >>> class Totals(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.total = handle.getValueState("total", "seconds long")
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         (seconds,) = self.total.get() or (0,)
        ...         seconds += sum(row.seconds for row in rows)
        ...         self.total.update((seconds,))
        ...         yield Row(src=key[0], seconds=seconds)
        >>> totals = calls.groupBy("src").transformWithState(Totals(), "src string, seconds long", "Update", "None")
        >>> query = totals.writeStream.outputMode("update").format("memory").queryName("by_row").trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> sorted(tuple(row) for row in spark.table("by_row").collect())
        [('ada', 90), ('bob', 10)]
        """
        return self._user_state(
            "transformWithState", eventTimeColumnName, statefulProcessor, outputStructType, outputMode, timeMode, initialState
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: Any,
        outputStructType: str | StructType,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> Stream:
        """Run a ``StatefulProcessor`` that was written for Spark's method of this name, as it is, on Headrace's state.

        ``statefulProcessor`` gets and gives pandas frames. The other arguments are Spark's: ``outputStructType``, ``outputMode``,
        ``timeMode``, ``initialState`` (groups of a batch DataFrame) and ``eventTimeColumnName``.

        >>> class Counts(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.count = handle.getValueState("count", "n long")
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         n = (self.count.get() or (0,))[0] + sum(len(frame) for frame in rows)
        ...         self.count.update((n,))
        ...         yield pd.DataFrame({"src": key, "calls": n})
        >>> calls.groupBy("src").transformWithStateInPandas(Counts(), "src string, calls long", "Update", "None").columns
        ['src', 'calls']
        """
        return self._user_state(
            "transformWithStateInPandas", eventTimeColumnName, statefulProcessor, outputStructType, outputMode, timeMode, initialState
        )

    def applyInPandasWithState(
        self, func: Any, outputStructType: str | StructType, stateStructType: str | StructType, outputMode: str, timeoutConf: str
    ) -> Stream:
        """Run a function that was written for Spark's method of this name, as it is, on Headrace's state.

        ``func`` is called with a key, its pandas frames and its ``GroupState``. The other arguments are Spark's: ``outputStructType``,
        ``stateStructType``, ``outputMode`` and ``timeoutConf``.

        >>> def count(key, frames, state):
        ...     n = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        ...     state.update((n,))
        ...     yield pd.DataFrame({"src": [key[0]], "calls": [n]})
        >>> calls.groupBy("src").applyInPandasWithState(count, "src string, calls long", "n long", "update", "NoTimeout").columns
        ['src', 'calls']
        """
        return self._user_state("applyInPandasWithState", "", func, outputStructType, stateStructType, outputMode, timeoutConf)

    def _user_state(self, method: str, event_time: str, *args: Any) -> Stream:
        where = user_line(method)
        if self.window is not None:
            raise UnsupportedError(where=where, found=f"{method} on a stream that is grouped by a window", hint="group by columns")
        return self.results_of(spark_call(self.rows, lambda frame: getattr(frame.groupBy(*self.keys), method)(*args), event_time, where))

    def count(self) -> Stream:
        """The number of rows of each group, as column ``count``."""
        return self.agg(F.count("*").alias("count"))

    def sum(self, *cols: str) -> Stream:
        """The sum of each of the columns ``cols``, by name."""
        return self.agg(*[F.sum(c) for c in cols])

    def avg(self, *cols: str) -> Stream:
        """The average of each of the columns ``cols``, by name. ``mean`` is the same."""
        return self.agg(*[F.avg(c) for c in cols])

    mean = avg

    def min(self, *cols: str) -> Stream:
        """The least value of each of the columns ``cols``, by name."""
        return self.agg(*[F.min(c) for c in cols])

    def max(self, *cols: str) -> Stream:
        """The greatest value of each of the columns ``cols``, by name."""
        return self.agg(*[F.max(c) for c in cols])


def grouped(rows: Rows, cols: tuple[Any, ...], results_of: Callable[[StatefulNode], Stream], where: str) -> GroupedStream[Stream]:
    """Group rows by columns, of which at most one is a window."""
    flat = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else list(cols)
    keys: list[Column] = []
    window: Windows | None = None
    window_at = 0
    for at, each in enumerate(flat):
        column = F.col(each) if isinstance(each, str) else each
        if not isinstance(column, Column | CountSpec):
            raise QueryError(where=where, wanted="column names and columns", found=repr(each))
        found = column if isinstance(column, CountSpec) else as_window(rows.session, rows.frame, column, where)
        if found is None and isinstance(column, Column):
            keys.append(column)
        elif window is None:
            window, window_at = found, at
        else:
            raise UnsupportedError(where=where, found="two windows", hint="group by one window")
    checked(where, lambda: rows.frame.select(*keys))
    return GroupedStream(rows, tuple(keys), window, window_at, results_of)


def _from_dict(wanted: dict[str, str], where: str) -> list[Column]:
    """The aggregates that a dict asks for. As in Spark, synonyms such as avg and mean give columns with one name."""
    columns = []
    for name, function in wanted.items():
        if not isinstance(name, str) or not isinstance(function, str):
            raise QueryError(where=where, wanted="columns and names of functions, such as {'seconds': 'sum'}", found=repr({name: function}))
        column = F.col(name)
        match function.lower():
            case "avg" | "average" | "mean":
                columns.append(F.avg(column))
            case "stddev" | "std":
                columns.append(F.stddev(column))
            case "count" | "size":
                columns.append(F.count(column))
            case other:
                columns.append(F.call_function(expressions.quoted(other), column))
    return columns
