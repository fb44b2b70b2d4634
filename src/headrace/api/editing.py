"""``hr.editor``: the monitor's query editor, before any query runs."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from headrace.api.origin import user_line
from headrace.api.sources import check_source
from headrace.api.writer import workbench_for
from headrace.config import PREFIX, Config
from headrace.errors import QueryError, SessionError
from headrace.runtime.session import check_session
from headrace.spark.gateway import is_connect


def editor(spark: SparkSession, **streams: DataFrame) -> str:
    """Open the monitor's query editor, and return its URL.

    - ``spark``: the session. Its setting ``headrace.ui.editor`` must be ``true``, because the editor runs code in this program.
    - ``streams``: streaming DataFrames by the names that texts in the editor shall have for them. They become temporary views of the
      session. All streaming temporary views are streams of the editor, also those that the program makes itself.

    A program has one editor. A call with another session makes it that session's; queries of the one before go on, but the editor cannot
    replace them any more. A query that is started with ``headrace.ui`` and ``headrace.ui.editor`` has the editor in its monitor without
    this call.
    """
    where = user_line("editor")
    if is_connect(spark) or not isinstance(spark, SparkSession):
        raise SessionError(where=where, wanted="a classic Spark session", found=type(spark).__name__)
    check_session(spark)
    config = Config.read({name: value for name, value in spark.conf.getAll.items() if name.lower().startswith(PREFIX)})
    if not config.uiEditor:
        hint = f"the editor runs code in this program; if you want that, spark.conf.set('{PREFIX}ui.editor', 'true')"
        raise QueryError(where=where, wanted=f"the setting {PREFIX}ui.editor", found="an editor that is off", hint=hint)
    for name, frame in streams.items():
        check_source(frame, f"{where}, {name}")
    for name, frame in streams.items():
        if not name.isidentifier():
            raise QueryError(where=where, wanted="names of streams that a text can use: letters, digits and _", found=repr(name))
        frame.createOrReplaceTempView(name)
    return workbench_for(spark, config, moves=True)[1]
