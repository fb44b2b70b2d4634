"""Headrace: elastic, fault-tolerant, stateful streaming on Apache Spark, from plain PySpark code.

    import headrace as hr

    spark = hr.session("my query")
    calls = hr.stream(spark.readStream.schema(schema).parquet("calls/"))
    query = calls.groupBy("caller").count().writeStream.outputMode("update").format("console").start()

The names in ``__all__`` are the public API; all other names may change without notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import (
    BatchFailedError,
    CheckpointError,
    CheckpointMismatchError,
    ClusterError,
    CorruptStateError,
    FencedError,
    HeadraceError,
    InvariantError,
    MissingError,
    ProcessorError,
    QueryError,
    SessionError,
    SinkError,
    SourceError,
    StateSchemaError,
    StorageError,
    UnsupportedError,
    VersionNotFoundError,
)

if TYPE_CHECKING:
    from headrace.api.editing import editor
    from headrace.api.enabling import disable, enable, explain, writeStream
    from headrace.api.frames import crossJoin, groupBy, join, split
    from headrace.api.grouped import GroupedStream
    from headrace.api.listening import listener
    from headrace.api.measure import measure
    from headrace.api.naming import named
    from headrace.api.processes import State
    from headrace.api.query import HeadraceQuery
    from headrace.api.replacement import Replacement
    from headrace.api.shedding import coverage, shed
    from headrace.api.stream import Stream, stream
    from headrace.api.upsert import upsert
    from headrace.api.windows import count_window
    from headrace.api.writer import start
    from headrace.control.elastic import Elastic
    from headrace.operators.keyed_state import KeyedState
    from headrace.operators.processor import KeyProcessor, Processor
    from headrace.runtime.session import session

__all__ = [
    "BatchFailedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "ClusterError",
    "CorruptStateError",
    "Elastic",
    "FencedError",
    "GroupedStream",
    "HeadraceError",
    "HeadraceQuery",
    "InvariantError",
    "KeyProcessor",
    "KeyedState",
    "MissingError",
    "Processor",
    "ProcessorError",
    "QueryError",
    "Replacement",
    "SessionError",
    "SinkError",
    "SourceError",
    "State",
    "StateSchemaError",
    "StorageError",
    "Stream",
    "UnsupportedError",
    "VersionNotFoundError",
    "count_window",
    "coverage",
    "crossJoin",
    "disable",
    "editor",
    "enable",
    "explain",
    "groupBy",
    "join",
    "listener",
    "measure",
    "named",
    "session",
    "shed",
    "split",
    "start",
    "stream",
    "upsert",
    "writeStream",
]
__version__ = "0.1.0"

_HOMES = {
    "Elastic": "headrace.control.elastic",
    "GroupedStream": "headrace.api.grouped",
    "HeadraceQuery": "headrace.api.query",
    "KeyProcessor": "headrace.operators.processor",
    "KeyedState": "headrace.operators.keyed_state",
    "Processor": "headrace.operators.processor",
    "Replacement": "headrace.api.replacement",
    "State": "headrace.api.processes",
    "Stream": "headrace.api.stream",
    "count_window": "headrace.api.windows",
    "coverage": "headrace.api.shedding",
    "crossJoin": "headrace.api.frames",
    "disable": "headrace.api.enabling",
    "editor": "headrace.api.editing",
    "enable": "headrace.api.enabling",
    "explain": "headrace.api.enabling",
    "groupBy": "headrace.api.frames",
    "join": "headrace.api.frames",
    "listener": "headrace.api.listening",
    "measure": "headrace.api.measure",
    "named": "headrace.api.naming",
    "session": "headrace.runtime.session",
    "shed": "headrace.api.shedding",
    "split": "headrace.api.frames",
    "start": "headrace.api.writer",
    "stream": "headrace.api.stream",
    "upsert": "headrace.api.upsert",
    "writeStream": "headrace.api.enabling",
}


def __getattr__(name: str) -> Any:
    # Importing PySpark takes most of a second, so names are imported on first use. The command line starts without it.
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}; it has {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
