"""Spark's streaming writes to a data source that was written in Python (``pyspark.sql.datasource``): ``streamWriter``, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.ids import Version
from headrace.spark.gateway import class_name, java_frame, java_session, jvm_of, none, seq
from headrace.spark.plans import empty_frame

PYTHON_SOURCE = "PythonDataSourceV2"
_V2 = "org.apache.spark.sql.execution.datasources.v2"
MEMBERS = {
    "org.apache.spark.sql.connector.write": {"LogicalWriteInfoImpl": "new/5", "WriteBuilder": "build", "Write": "toStreaming"},
    "org.apache.spark.sql.execution.datasources": {"DataSource": "lookupDataSourceV2/2"},
    _V2: {"DataSourceV2Utils": "getTableFromProvider/3", "WriteToDataSourceV2": "new/4"},
    f"{_V2}.python": {PYTHON_SOURCE: "getTable/3"},
    "org.apache.spark.sql.execution.streaming.sources": {"MicroBatchWrite": "new/2"},
}
"""What this module relies on in Spark, as in ``contract.MEMBERS``."""


def _provider(session: SparkSession, name: str) -> object | None:
    """What Spark finds under the name of a format, if it was written for Spark's newer interface."""
    sources = jvm_of(session).org.apache.spark.sql.execution.datasources
    found = sources.DataSource.lookupDataSourceV2(name, java_session(session).sessionState().conf())
    return found.get() if found.isDefined() else None


def is_python_source(session: SparkSession, name: str) -> bool:
    """True if the format is a data source written in Python."""
    found = _provider(session, name)
    return found is not None and class_name(found) == PYTHON_SOURCE


class StreamingWrite:
    """The writer of one query. Spark makes the program's ``streamWriter`` once, and commits each batch with its number."""

    def __init__(self, session: SparkSession, name: str, schema: StructType, options: Mapping[str, str], query: str, replace: bool) -> None:
        self._session = session
        sql = jvm_of(session).org.apache.spark.sql
        java_schema = java_frame(empty_frame(session, schema)).schema()
        given = jvm_of(session).java.util.HashMap()
        for key, value in options.items():
            given.put(key, value)
        java_options = sql.util.CaseInsensitiveStringMap(given)
        some = jvm_of(session).scala.Some(java_schema)
        table = sql.execution.datasources.v2.DataSourceV2Utils.getTableFromProvider(_provider(session, name), java_options, some)
        nothing = jvm_of(session).java.util.Optional.empty()
        info = sql.connector.write.LogicalWriteInfoImpl(query, java_schema, java_options, nothing, nothing)
        builder = table.newWriteBuilder(info)
        self._write = (builder.truncate() if replace else builder).build().toStreaming()

    def write(self, version: Version, rows: DataFrame) -> None:
        """Write the rows of a version. The writer's ``commit`` gets its number; if a task fails, ``abort`` does."""
        sql = jvm_of(self._session).org.apache.spark.sql
        session = rows.sparkSession
        batch = sql.execution.streaming.sources.MicroBatchWrite(version, self._write)
        analyzed = java_frame(rows).queryExecution().analyzed()
        plan = sql.execution.datasources.v2.WriteToDataSourceV2(none(session), batch, analyzed, seq(session, []))
        sql.classic.Dataset.ofRows(java_session(session), plan).collect()
