"""``writeStream``: Spark's DataStreamWriter for a Headrace stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from headrace.api import missing, planning
from headrace.api.origin import user_line
from headrace.api.query import HeadraceQuery
from headrace.control.elastic import Elastic
from headrace.errors import QueryError, SinkError, UnsupportedError
from headrace.graph.nodes import Rows
from headrace.operators.kernel import OutputMode
from headrace.runtime.options import CHECKPOINT, Options
from headrace.runtime.sinks import SinkRequest, make_sink
from headrace.runtime.start import Output, RunOptions, plan_query, start_query
from headrace.spark.gateway import checked, first_line
from headrace.spark.sinks import FILE_FORMATS, table_location


class StreamWriter(missing.Helpful):
    """As Spark's: set format, options, output mode and trigger, then start."""

    _is = "a writer"
    _instead = missing.WRITER

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._format = str(rows.session.conf.get("spark.sql.sources.default", "parquet"))
        self._options = Options()
        self._mode = OutputMode.APPEND
        self._name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._elastic: Elastic | None = None
        self._partition_by: tuple[str, ...] = ()
        self._foreach_batch: Callable[[DataFrame, int], Any] | None = None

    def format(self, source: str) -> StreamWriter:
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        """Spark's options and ``headrace.*``; names are the same in upper and lower case. None takes an option back."""
        if value is None:
            self._options.pop(key, None)
        else:
            self._options[key] = value
        return self

    def options(self, **options: Any) -> StreamWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:
        try:
            self._mode = OutputMode(str(outputMode).lower())
        except ValueError:
            raise QueryError(where=user_line("outputMode"), wanted="append, update or complete", found=repr(outputMode)) from None
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        self._name = queryName
        return self

    def trigger(
        self, *, processingTime: str | None = None, availableNow: bool | None = None, once: bool | None = None, **other: Any
    ) -> StreamWriter:
        """``processingTime="500 milliseconds"`` or ``availableNow=True``."""
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
        """Let instances follow the load: ``elastic(hr.Elastic(policy="elastic-manager", min=1, max=8))``.

        After each batch the policy sees how busy instances were, and its decisions take effect between two batches. ``query.decisions()``
        and ``headrace ctl CHECKPOINT decisions`` tell them. Whatever is changed by hand is left alone until ``query.elastic_resume()``.
        """
        if not isinstance(settings, Elastic):
            raise QueryError(where=user_line("elastic"), wanted='settings: hr.Elastic(policy="elastic-manager", ...)', found=repr(settings))
        self._elastic = settings
        return self

    def partitionBy(self, *cols: Any) -> StreamWriter:
        self._partition_by = tuple(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], Any]) -> StreamWriter:
        """Hand each batch of results to ``func(df, batch_id)``; after a crash the same batch may come again, with the same rows and id."""
        if not callable(func):
            raise QueryError(where=user_line("foreachBatch"), wanted="a function of a DataFrame and a batch id", found=repr(func))
        self._foreach_batch = func
        return self

    def start(self, path: str | None = None) -> HeadraceQuery:
        where = user_line("start")
        if path is not None:
            if self._options.get("path", path) != path:
                found = f"{self._options['path']!r} and {path!r}"
                raise QueryError(where=where, wanted="one path, in option('path') or in start", found=found)
            self._options["path"] = path
        return _started([self._output(where)], self._options, RunOptions(self._name, self._trigger, self._elastic, where))

    def _output(self, where: str) -> Output:
        request = SinkRequest(
            self._rows.session,
            self._format,
            Options(self._options),
            self._partition_by,
            self._mode,
            self._rows.schema,
            self._name,
            where,
            self._foreach_batch,
        )
        return Output(self._rows, self._mode, where, self._format, lambda: make_sink(request))

    def toTable(self, tableName: str) -> HeadraceQuery:
        """Append to a table, created if it does not exist; its files are written exactly once."""
        where = user_line("toTable")
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
    """Start one query with several sinks: sources are read once, and every batch is committed to all sinks together.

    ``trigger`` is that of the writers' ``trigger``: ``processingTime="1 second"`` or ``availableNow=True``. Output modes, formats and
    options are each writer's own. ``elastic`` of a writer is the query's; several must agree.
    """
    where = user_line("start")
    if not writers or not all(isinstance(w, StreamWriter) for w in writers):
        raise QueryError(where=where, wanted="writers: stream.writeStream.format(...)", found=repr(writers))
    chosen = trigger and {"trigger": writers[0].trigger(**trigger)._trigger}
    paths = [w._options["path"] for w in writers if "path" in w._options]
    if len(set(paths)) < len(paths):
        raise SinkError(where=where, wanted="a path of its own for every sink", found=str(paths))
    options = _common_options(writers, checkpointLocation, where)
    triggers = [w._trigger for w in writers if w._trigger]
    used = chosen["trigger"] if chosen else (triggers[0] if triggers else {})
    if any(each != used for each in triggers):
        raise QueryError(where=where, wanted="one trigger", found=str(triggers))
    elastic = list(dict.fromkeys(w._elastic for w in writers if w._elastic is not None))
    if len(elastic) > 1:
        raise QueryError(where=where, wanted="one elastic(...) for all writers", found=", ".join(map(repr, elastic)))
    run = RunOptions(queryName, used, elastic[0] if elastic else None, where)
    return _started([w._output(where) for w in writers], options, run)


def _started(outputs: list[Output], options: Options, run: RunOptions) -> HeadraceQuery:
    plan = plan_query(outputs, options, run)
    return planning.note(plan) if planning.is_on() else HeadraceQuery(start_query(plan))


def _common_options(writers: tuple[StreamWriter, ...], location: str, where: str) -> Options:
    """The query's own options, of all writers; what one says, another must not contradict."""
    options = Options({CHECKPOINT: location})
    for writer in writers:
        given = writer._options.ours()
        if CHECKPOINT in writer._options:
            given[CHECKPOINT] = writer._options[CHECKPOINT]
        for name, value in given.items():
            if options.get(name, value) != value:
                found = f"{options[name]!r} and {value!r}"
                raise QueryError(where=f"{where}, option {name!r}", wanted="one value for the whole query", found=found)
            options[name] = value
    return options
