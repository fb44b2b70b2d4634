"""What users' stateful code on Headrace relies on in Spark, beyond its public API. The contract (``spark/contract.py``) checks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession

from headrace.spark.gateway import java_session
from headrace.spark.streaming import FILE_SOURCE, LISTED, SEEN, UNREAD

MEMBERS: Mapping[str, Mapping[str, str]] = {
    "org.apache.spark.api.python": {"PythonFunction": "command broadcastVars"},
    "org.apache.spark.sql.catalyst.expressions": {"PythonUDF": "func"},
    "org.apache.spark.sql.catalyst.plans.logical": {
        "TransformWithStateInPySpark": "functionExpr groupingAttributesLen outputAttrs outputMode userFacingDataType child "
        "hasInitialState initialState initGroupingAttrsLen",
        "FlatMapGroupsInPandasWithState": "functionExpr groupingAttributes outputAttrs stateType outputMode timeout child",
        "UpdateEventTimeWatermarkColumn": "eventTime child",
    },
}
_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
FIELDS: Mapping[str, str] = {
    f"{_RUNTIME}.{FILE_SOURCE}": f"{UNREAD} {LISTED} {SEEN}",
    f"{_RUNTIME}.{FILE_SOURCE}$NewFileEntry": "path timestamp",
}
"""By class: private fields that are read."""
PYTHON: Mapping[str, str] = {
    "pyspark.core.broadcast": "_broadcastRegistry Broadcast(path)",
    "pyspark.sql.pandas.types": "_create_converter_to_pandas(nullable,timezone,struct_in_pandas,error_on_duplicated_field_names) "
    "_create_converter_from_pandas(timezone,error_on_duplicated_field_names)",
    "pyspark.sql.streaming.state": "GroupState._value GroupState._defined GroupState._updated GroupState._removed "
    "GroupState._timeout_timestamp GroupState(optionalValue,batchProcessingTimeMs,eventTimeWatermarkMs,timeoutConf,hasTimedOut,"
    "watermarkPresent,defined,updated,removed,timeoutTimestamp,keyAsUnsafe,valueSchema)",
    "pyspark.sql.streaming.stateful_processor": "StatefulProcessorHandle TimerValues ExpiredTimerInfo",
    "pyspark.sql.streaming.stateful_processor_util": "TransformWithStateInPandasUdfUtils._stateful_processor "
    "TransformWithStateInPandasUdfUtils._time_mode",
}
"""By module: names of PySpark."""


def missing_fields(session: SparkSession) -> Iterator[str]:
    """The fields in ``FIELDS`` that this Spark does not have."""
    loader = java_session(session).getClass().getClassLoader()
    for name, fields in FIELDS.items():
        declared = {str(each.getName()) for each in loader.loadClass(name).getDeclaredFields()}
        yield from (f"{name}.{field}" for field in fields.split() if field not in declared)
