"""``hr.enable``: stateful queries of unmodified PySpark programs run on Headrace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.api.origin import user_line
from headrace.api.planning import planning
from headrace.api.query import HeadraceQuery
from headrace.api.sources import check_source
from headrace.api.spark_frame import SparkFrame, falls_back, option_of
from headrace.api.writer import StreamWriter
from headrace.config import PREFIX
from headrace.errors import MissingError, SessionError, UnsupportedError
from headrace.frontend.lower import has_state
from headrace.runtime.options import Options
from headrace.runtime.progress_log import merged_progress
from headrace.runtime.session import check_session
from headrace.spark.gateway import is_connect
from headrace.spark.listeners import enrich_added
from headrace.spark.writers import Written, ask_before_start

_ENABLED = f"{PREFIX}enabled"


def enable(spark: SparkSession) -> SparkSession:
    """From now on, stateful queries that a program starts with Spark's own ``df.writeStream`` run on Headrace.

    This holds for the session ``spark`` alone, which is returned. A query is stateful if its DataFrame aggregates, joins two streams or
    drops duplicates, whether it was built by methods or by ``spark.sql``; other queries stay Spark's. On a writer,
    ``option("headrace.enabled", "false")`` leaves that query to Spark too. ``start`` and ``toTable`` return a ``HeadraceQuery``,
    which has the methods of Spark's. Listeners that are added from now on get the whole progress, as with ``hr.listener``. ``disable``
    leaves queries to Spark again. Raises ``SessionError`` for a session of Spark Connect.

    >>> _ = hr.enable(spark)
    >>> frame = spark.readStream.schema(calls.schema).parquet(folder)
    >>> totals = frame.groupBy("src").agg(F.sum("seconds").alias("seconds"))
    >>> query = totals.writeStream.outputMode("complete").format("memory").queryName("unmodified").trigger(availableNow=True).start()
    >>> query.awaitTermination()
    >>> type(query).__name__, sorted(tuple(row) for row in spark.table("unmodified").collect())
    ('HeadraceQuery', [('ada', 90), ('bob', 10)])
    >>> _ = hr.disable(spark)
    """
    _check(spark, "enable")
    check_session(spark)
    ask_before_start(_take, _is_enabled)
    enrich_added(merged_progress)
    spark.conf.set(_ENABLED, "true")
    return spark


def disable(spark: SparkSession) -> SparkSession:
    """Undo ``enable``: queries that are started in the session ``spark`` from now on are Spark's. Returns the session."""
    _check(spark, "disable")
    spark.conf.unset(_ENABLED)
    return spark


def _check(spark: Any, name: str) -> None:
    if is_connect(spark) or not isinstance(spark, SparkSession):
        raise SessionError(
            where=user_line(name),
            wanted="a classic Spark session",
            found="one of Spark Connect" if is_connect(spark) else type(spark).__name__,
            hint="start the session with a master (hr.session, or SparkSession.builder.master(...)), not with remote(...)",
        )


def writeStream(frame: DataFrame) -> StreamWriter:
    """The writer of a query that runs ``frame`` on Headrace: any streaming DataFrame, built by methods or by ``spark.sql``.

    The session is not changed. The writer has the methods of Spark's. What Spark refuses is refused with Spark's own error, and what
    only Headrace lacks raises ``UnsupportedError``, unless ``option("headrace.fallback", "spark")`` lets Spark run it.

    >>> rows = spark.readStream.schema(calls.schema).parquet(folder)
    >>> rows.createOrReplaceTempView("calls_so_far")
    >>> longest = spark.sql("SELECT src, max(seconds) AS longest FROM calls_so_far GROUP BY src HAVING count(*) > 1")
    >>> query = hr.writeStream(longest).outputMode("update").format("memory").queryName("longest").trigger(availableNow=True).start()
    >>> query.awaitTermination()
    >>> spark.table("longest").collect()
    [Row(src='ada', longest=60)]
    """
    check_source(frame, user_line("writeStream"))
    return StreamWriter(SparkFrame(frame))


def explain(frame: DataFrame, outputMode: str | None = None) -> None:
    """Print which parts of a streaming DataFrame run on Headrace's operators, and which on Spark's.

    - ``frame``: the DataFrame.
    - ``outputMode``: the output mode of the query; by default append, or complete if only that is possible.

    Raises Spark's error if Spark refuses the DataFrame. If only Headrace lacks something, it prints what.
    """
    where = user_line("explain")
    check_source(frame, where)
    if not has_state(frame):
        print("Spark runs all of it: there is no stateful operator.")
        return
    modes = [outputMode] if outputMode else ["append", "update", "complete"]
    for at, mode in enumerate(modes):
        try:
            with planning():
                writer = StreamWriter(SparkFrame(frame)).format("noop").outputMode(mode)
                query = writer.start()
            query.explain()
            return
        except UnsupportedError as refused:
            print(f"Headrace cannot run it: {refused}")
            return
        except Exception:
            if at == len(modes) - 1:
                raise


_EVERYTHING: ContextVar[bool] = ContextVar("headrace-everything", default=False)


@contextlib.contextmanager
def as_if_enabled() -> Iterator[None]:
    """Inside, stateful queries are treated as if the program had called ``enable`` on its sessions."""
    token = _EVERYTHING.set(True)
    ask_before_start(_take, _is_enabled)
    try:
        yield
    finally:
        _EVERYTHING.reset(token)


def _is_enabled(frame: DataFrame) -> bool:
    return _EVERYTHING.get() or option_of(frame.sparkSession, {}, "enabled") == "true"


def _take(written: Written, method: str, argument: Any) -> HeadraceQuery | None:
    """Start a query on Headrace, if it is one for Headrace."""
    frame, session = written.frame, written.frame.sparkSession
    options = Options()
    for name, args, named in written.calls:
        if name == "option":
            options[str(args[0] if args else named["key"])] = args[1] if len(args) > 1 else named["value"]
        elif name == "options":
            options.update({key: value for key, value in named.items() if value is not None})
    wanted = "true" if _EVERYTHING.get() else option_of(session, options, "enabled")
    if wanted != "true" or not has_state(frame):
        return None
    writer = StreamWriter(SparkFrame(frame))
    try:
        for name, args, named in written.calls:
            getattr(writer, name)(*args, **named)
    except (UnsupportedError, MissingError) as refused:
        if not falls_back(session, options):
            raise
        SparkFrame(frame).say_fallback(UnsupportedError(str(refused)))
        return None
    return writer.start(argument) if method == "start" else writer.toTable(argument)
