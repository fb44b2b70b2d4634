"""``writeStream``: the writer of a stream, like Spark's DataStreamWriter; and ``hr.start`` for several of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from headrace.api import missing, planning
from headrace.api.editor.workbench import SessionWorkbench
from headrace.api.origin import user_line
from headrace.api.query import HeadraceQuery
from headrace.api.remote import answering
from headrace.api.replanning import Written, common_options
from headrace.api.spark_frame import SparkFrame, falls_back
from headrace.config import PREFIX, Config
from headrace.control.elastic import Elastic
from headrace.dashboard.live import shown, with_editor
from headrace.errors import QueryError, SinkError, UnsupportedError
from headrace.frontend.lower import together
from headrace.graph.nodes import Rows
from headrace.guarantees import Approach, Guarantee
from headrace.operators.kernel import OutputMode
from headrace.runtime.options import CHECKPOINT, Options
from headrace.runtime.sinks import SinkRequest, make_sink
from headrace.runtime.sinks.rows import for_each_row, is_row_writer
from headrace.runtime.start import Output, QueryPlan, RunOptions, plan_query, start_query
from headrace.spark.expressions import duration_us
from headrace.spark.gateway import checked, first_line, same_session
from headrace.spark.sinks import FILE_FORMATS, table_location
from headrace.spark.writers import sparks_writer


class StreamWriter(missing.Helpful):
    """Sets up where and how a stream is written, and starts the query; ``Stream.writeStream`` makes it.

    As with Spark's writer, every method but ``start`` and ``toTable`` returns the writer itself:

        query = (totals.writeStream.outputMode("update").format("console")
                 .option("checkpointLocation", "ckpt/").trigger(processingTime="1 second").start())
    """

    _is = "a writer"
    _instead = missing.WRITER

    def __init__(self, rows: Rows | SparkFrame) -> None:
        self._rows = rows
        self._format = str(rows.session.conf.get("spark.sql.sources.default", "parquet"))
        self._options = Options()
        self._mode = OutputMode.APPEND
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._elastic: Elastic | None = None
        self._weight = 1.0
        self._deadline: str | None = None
        self._partition_by: tuple[str, ...] = ()
        self._foreach_batch: Callable[[DataFrame, int], Any] | None = None

    def format(self, source: str) -> StreamWriter:
        """Choose the sink: ``source`` is parquet, json, csv, orc, text, memory, console, noop or any batch format of Spark's.

        The file formats are written exactly once. By default it is the setting ``spark.sql.sources.default``, parquet.
        """
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set the option ``key`` to ``value``: one of the sink's, ``checkpointLocation``, or one of Headrace's, ``headrace.*``.

        Upper and lower case of names do not matter. The value None removes an option.
        """
        if value is None:
            self._options.pop(key, None)
        else:
            self._options[key] = value
        return self

    def options(self, **options: Any) -> StreamWriter:
        """Set several options at once, given by name: ``options(path="out/", checkpointLocation="ckpt/")``."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose what is written: ``outputMode`` is ``append`` (final results), ``update`` (changed ones) or ``complete`` (all).

        The default is ``append``. Raises ``QueryError`` for another word. ``start`` refuses a mode that the query does not have.
        """
        try:
            self._mode = OutputMode(str(outputMode).lower())
        except ValueError:
            raise QueryError(where=user_line("outputMode"), wanted="append, update or complete", found=repr(outputMode)) from None
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        """Give the query the name ``queryName``. The memory sink uses it as the name of its table."""
        self._name = queryName
        return self

    def trigger(
        self, *, processingTime: str | None = None, availableNow: bool | None = None, once: bool | None = None, **other: Any
    ) -> StreamWriter:
        """Choose when batches run. Give exactly one argument.

        - ``processingTime``: the time from one batch to the next, such as ``"500 milliseconds"``. By default batches follow at once.
        - ``availableNow``: process what the sources have now, in one or several batches, then end.
        - ``once``: the same in one batch.

        Raises ``UnsupportedError`` for ``other`` triggers of Spark's, such as ``continuous``.
        """
        where = user_line("trigger")
        asked = {"processingTime": processingTime, "availableNow": availableNow, "once": once, **other}
        given = {name: value for name, value in asked.items() if value is not None}
        if len(given) != 1:
            raise QueryError(where=where, wanted="one trigger", found=str(given or "none"))
        if not {"processingTime", "availableNow", "once"} & set(given):
            raise UnsupportedError(where=where, found=f"the trigger {next(iter(given))}", supported=("processingTime", "availableNow"))
        self._trigger = given
        return self

    def elastic(self, settings: Elastic) -> StreamWriter:
        """Let the number of instances follow the load, with the policy and bounds of ``settings``.

        Example: ``elastic(hr.Elastic(policy="elastic-manager", min=1, max=8))``. After each batch the policy gets the utilisation of
        the instances. Its decisions take effect between two batches. ``query.decisions()`` and ``headrace ctl decisions CHECKPOINT`` list
        them. An operator that is changed by hand is left alone until ``query.elastic_resume()``.
        """
        if not isinstance(settings, Elastic):
            raise QueryError(where=user_line("elastic"), wanted='settings: hr.Elastic(policy="elastic-manager", ...)', found=repr(settings))
        self._elastic = settings
        return self

    def weight(self, weight: float) -> StreamWriter:
        """Choose how much this sink's results matter when rows must be dropped (``hr.shed``): ``weight`` is above 0, usually 1.

        Plans of drops maximise the sum over all sinks of weight times delivered share.
        """
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise QueryError(where=user_line("weight"), wanted="a weight above 0", found=repr(weight))
        self._weight = float(weight)
        return self

    def deadline(self, deadline: str) -> StreamWriter:
        """Choose how old rows may be when their results are delivered, such as ``deadline="2 seconds"``.

        If the query cannot keep it, rows of streams are dropped that ``hr.shed`` allows to be dropped. Batches are planned to take less
        than half of it, because rows also wait for the batch before. Of several writers of a query, the shortest deadline holds.
        """
        where = user_line("deadline")
        if not isinstance(deadline, str) or duration_us(self._rows.session, deadline, where) <= 0:
            raise QueryError(where=where, wanted='a time such as "2 seconds"', found=repr(deadline))
        self._deadline = deadline
        return self

    def guarantee(self, guarantee: str) -> StreamWriter:
        """Choose what the query promises after a loss: the option ``headrace.guarantee``.

        ``guarantee`` is ``"precise"`` (nothing is lost or doubled), ``"rollback"`` (results leave at once; after a loss some may come
        twice) or ``"gap"`` (what was lost is skipped, counted and reported by ``query.gaps()``). Raises ``QueryError`` for another word.
        """
        return self._word("guarantee", guarantee, Guarantee)

    def recovery(self, approach: str) -> StreamWriter:
        """Choose how the query recovers after a loss: the option ``headrace.recovery``.

        ``approach`` is ``"checkpoint"``, ``"peer"``, ``"active"``, ``"upstream"`` or ``"amnesia"``; docs/recovery.md says what they cost
        and which guarantees they give. Raises ``QueryError`` for another word. ``start`` refuses what contradicts the other options.
        """
        return self._word("recovery", approach, Approach)

    def _word(self, name: str, value: str, words: type[Guarantee] | type[Approach]) -> StreamWriter:
        try:
            return self.option(f"{PREFIX}{name}", words(str(value).lower()).value)
        except ValueError:
            raise QueryError(where=user_line(name), wanted=" or ".join(words), found=repr(value)) from None

    def partitionBy(self, *cols: Any) -> StreamWriter:
        """Write files into one folder for each combination of values of ``cols``, as Spark does."""
        self._partition_by = tuple(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], Any]) -> StreamWriter:
        """Call ``func(df, batch_id)`` with each batch of results, a batch DataFrame.

        After a crash the same batch may come again, with the same rows and the same id: skip an id that you have seen.
        """
        if not callable(func):
            raise QueryError(where=user_line("foreachBatch"), wanted="a function of a DataFrame and a batch id", found=repr(func))
        self._foreach_batch = func
        return self

    def foreach(self, f: Any) -> StreamWriter:
        """Call ``f`` with each row of the results, on the executors.

        ``f`` is a function of a row, or an object with ``process(row)`` and, if it likes, ``open(partition_id, epoch_id)`` and
        ``close(error)``, as in Spark. After a crash, the rows of a batch may come again.
        """
        if not is_row_writer(f):
            raise QueryError(where=user_line("foreach"), wanted="a function of a row, or an object with process(row)", found=repr(f))
        self._foreach_batch = for_each_row(f)
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> HeadraceQuery:
        """Start the query and return its handle.

        ``path`` is the folder of a file sink, as is ``option("path", ...)``. ``format``, ``outputMode``, ``partitionBy`` and ``queryName``
        do what the methods of these names do, and ``options`` are further options by name.

        File sinks and other formats need ``option("checkpointLocation", ...)``; memory, console, noop, foreach and foreachBatch get a
        temporary one without it, as in Spark. Raises ``QueryError`` or ``SinkError`` if
        something is set wrongly, and ``CheckpointError`` if the checkpoint does not fit the query or is in use.
        """
        where = user_line("start")
        self._set(format, outputMode, partitionBy, queryName, options)
        if path is not None:
            if self._options.get("path", path) != path:
                found = f"{self._options['path']!r} and {path!r}"
                raise QueryError(where=where, wanted="one path, in option('path') or in start", found=found)
            self._options["path"] = path
        run = RunOptions(self._name, self._trigger, self._elastic, where, self._deadline, isinstance(self._rows, SparkFrame))
        if not isinstance(self._rows, SparkFrame):
            return _started([self._output(where)], self._options, run, (self,))
        kind = self._format if self._foreach_batch is None else "foreachBatch"
        self._rows.check_sink(kind, str(self._mode), self._name, self._options.get(CHECKPOINT))
        try:
            plan = plan_query([self._output(where)], self._options, run)
        except UnsupportedError as refused:
            if planning.is_on() or not falls_back(self._rows.session, self._options):
                raise
            self._rows.say_fallback(refused)
            return cast(HeadraceQuery, self._on_spark().start())
        return _run(plan, (self,))

    def _set(self, format: str | None, mode: str | None, by: str | list[str] | None, name: str | None, options: dict[str, Any]) -> None:
        self.options(**options)
        if mode is not None:
            self.outputMode(mode)
        if by is not None:
            self.partitionBy(by)
        if format is not None:
            self.format(format)
        if name is not None:
            self.queryName(name)

    def _on_spark(self) -> Any:
        """Spark's own writer with the same settings."""
        assert isinstance(self._rows, SparkFrame)
        writer: Any = sparks_writer(self._rows.frame).format(self._format).outputMode(str(self._mode))
        ours = {name.lower() for name in self._options.ours()}
        for name, value in self._options.items():
            writer = writer if name.lower() in ours else writer.option(name, value)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        return writer if self._foreach_batch is None else writer.foreachBatch(self._foreach_batch)

    def _output(self, where: str) -> Output:
        frame = self._rows.frame if isinstance(self._rows, SparkFrame) else None
        rows = self._rows.lowered(str(self._mode), where, self._options) if isinstance(self._rows, SparkFrame) else self._rows
        request = SinkRequest(
            rows.session,
            self._format,
            Options(self._options),
            self._partition_by,
            self._mode,
            rows.schema,
            self._name,
            where,
            self._foreach_batch,
        )
        return Output(rows, self._mode, where, self._format, lambda config: make_sink(request, config), self._weight, frame)

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> HeadraceQuery:
        """Start the query, append its results to the table ``tableName``, and return the query's handle.

        The table is created if it does not exist. Its files are written exactly once. ``format``, ``outputMode``, ``partitionBy``,
        ``queryName`` and ``options`` are those of ``start``. Raises ``SinkError`` for a table in another format.
        """
        where = user_line("toTable")
        self._set(format, outputMode, partitionBy, queryName, options)
        session: Any = self._rows.session
        if self._format.lower() not in FILE_FORMATS:
            raise SinkError(where=where, wanted=f"a table of format {', '.join(FILE_FORMATS)}", found=repr(self._format))
        if not checked(where, lambda: session.catalog.tableExists(tableName)):
            writer = session.createDataFrame([], self._rows.schema).write.format(self._format)
            if self._partition_by:
                writer = writer.partitionBy(*self._partition_by)
            if "path" in self._options:
                writer = writer.option("path", self._options["path"])
            checked(where, lambda: writer.saveAsTable(tableName))
        try:
            provider, location = table_location(session, tableName)
        except Exception as refused:
            raise SinkError(where=where, wanted="a table of the session's catalog", found=first_line(refused)) from None
        if (provider or "").lower() != self._format.lower():
            raise SinkError(where=where, wanted=f"a table of format {self._format}", found=f"{tableName} of format {provider or 'none'}")
        self._options["path"] = location
        return self.start()


def start(*writers: StreamWriter, checkpointLocation: str, queryName: str | None = None, **trigger: Any) -> HeadraceQuery:
    """Start one query with several sinks. Sources are read once, and every batch is committed to all sinks together.

    - ``writers``: one ``stream.writeStream...`` for each sink, with its own output mode, format and options.
    - ``checkpointLocation``: the folder of the query's state and progress.
    - ``queryName``: the name of the query.
    - ``trigger``: one argument of ``StreamWriter.trigger``, such as ``processingTime="1 second"`` or ``availableNow=True``.

    ``headrace.*`` options and ``elastic`` of a writer hold for the whole query; writers must not contradict each other. Returns the
    handle of the query. Raises what ``StreamWriter.start`` raises. An example (it needs two streams of one source)::

        parts = calls.split(long="seconds > 600", otherwise="usual")
        hr.start(parts.long.writeStream.format("json").option("path", "long/"),
                 parts.usual.groupBy("src").count().writeStream.outputMode("update").foreachBatch(upsert),
                 checkpointLocation="ckpt/", processingTime="1 second")
    """
    where = user_line("start")
    if not writers or not all(isinstance(w, StreamWriter) for w in writers):
        raise QueryError(where=where, wanted="writers: stream.writeStream.format(...)", found=repr(writers))
    chosen = trigger and {"trigger": writers[0].trigger(**trigger)._trigger}
    paths = [w._options["path"] for w in writers if "path" in w._options]
    if len(set(paths)) < len(paths):
        raise SinkError(where=where, wanted="a path of its own for every sink", found=str(paths))
    options = common_options(writers, checkpointLocation, where)
    triggers = [w._trigger for w in writers if w._trigger]
    used = chosen["trigger"] if chosen else (triggers[0] if triggers else {})
    if any(each != used for each in triggers):
        raise QueryError(where=where, wanted="one trigger", found=str(triggers))
    elastic = list(dict.fromkeys(w._elastic for w in writers if w._elastic is not None))
    if len(elastic) > 1:
        raise QueryError(where=where, wanted="one elastic(...) for all writers", found=", ".join(map(repr, elastic)))
    deadlines = [w._deadline for w in writers if w._deadline is not None]
    shortest = min(deadlines, key=lambda each: duration_us(writers[0]._rows.session, each, where), default=None)
    run = RunOptions(queryName, used, elastic[0] if elastic else None, where, shortest)
    with together():
        outputs = [w._output(where) for w in writers]
    return _started(outputs, options, run, writers)


def _started(outputs: list[Output], options: Options, run: RunOptions, writers: tuple[StreamWriter, ...]) -> HeadraceQuery:
    return _run(plan_query(outputs, options, run), writers)


def _run(plan: QueryPlan, writers: tuple[StreamWriter, ...]) -> HeadraceQuery:
    written = Written(plan, tuple(copy.copy(each) for each in writers))
    if planning.is_on():
        return planning.note(written)
    engine = start_query(plan)
    query = answering(HeadraceQuery(engine, written, shown(engine.checkpoint, plan.config)))
    if plan.config.uiEditor and query.ui is not None:
        workbench_for(plan.session, plan.config)[0].offer(query, plan.session)
    return query


def workbench_for(session: SparkSession, config: Config, moves: bool = False) -> tuple[SessionWorkbench, str]:
    """The workbench of the monitor's editor, and the editor's URL.

    A program has one editor, that of the first session that wants it. With ``moves``, it becomes the editor of this session.
    """

    def fits(bench: SessionWorkbench) -> bool:
        return not moves or same_session(bench.session, session)

    return with_editor(config, lambda: SessionWorkbench(session, StreamWriter, start), fits)
