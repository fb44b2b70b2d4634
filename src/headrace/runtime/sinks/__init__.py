"""Sinks. A sink gets the results of each version with the version's number. After a crash it may get them again."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config import Config
from headrace.runtime.sinks.base import EXACTLY_ONCE, Sink, SinkRequest
from headrace.runtime.sinks.files import FileSink
from headrace.runtime.sinks.kafka import FORMAT, TRANSACTIONS, KafkaSink, KafkaTasksSink
from headrace.runtime.sinks.simple import AnyFormatSink, ConsoleSink, DeltaSink, ForeachBatchSink, MemorySink, NoopSink, PythonSink
from headrace.spark.sinks import FILE_FORMATS, has_format
from headrace.spark.streaming_writes import is_python_source

__all__ = ["EXACTLY_ONCE", "Sink", "SinkRequest", "make_sink"]


def make_sink(request: SinkRequest, config: Config) -> Sink:
    """The sink for a format name, checked before the query starts."""
    name = request.format.lower()
    if request.foreach_batch is not None:
        return ForeachBatchSink(request)
    if name in FILE_FORMATS:
        return FileSink(request)
    if name == FORMAT:
        return KafkaSink(request, config) if config.kafkaDelivery == TRANSACTIONS else KafkaTasksSink(request)
    simple: dict[str, Callable[[SinkRequest], Sink]] = {"memory": MemorySink, "console": ConsoleSink, "noop": NoopSink, "delta": DeltaSink}
    if name not in simple and has_format(request.session, request.format) and is_python_source(request.session, request.format):
        return PythonSink(request)
    return simple[name](request) if name in simple else AnyFormatSink(request)
