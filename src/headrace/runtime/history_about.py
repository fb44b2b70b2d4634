"""What a query is, as plain data for its history: graph, plans, sinks, policy and promises."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyspark

from headrace.compile.dataflow import Dataflow
from headrace.compile.described import described
from headrace.control.elastic import Elastic
from headrace.guarantees import Safety
from headrace.ids import OperatorId
from headrace.runtime.history_files import Line
from headrace.runtime.sinks import Sink
from headrace.runtime.spark_query import SparkQuery
from headrace.state.routing import Routing

FORMAT = 1


def about_query(
    flow: Dataflow, sinks: Sequence[Sink], spark: SparkQuery, routing: Mapping[OperatorId, Routing], elastic: Elastic | None, safety: Safety
) -> Line:
    """The content of ``history/query.json``."""
    handle, context = spark.handle, flow.session.sparkContext
    formats = [sink.request.format if sink.request.foreach_batch is None else "foreachBatch" for sink in sinks]
    return {
        "format": FORMAT,
        "name": handle.name,
        "id": str(handle.id),
        "runId": str(handle.runId),
        "application": {"name": context.appName, "id": context.applicationId, "master": context.master},
        "startedS": round(time.time(), 3),
        "spark": pyspark.__version__,
        "graph": described(flow, routing, formats, [sink.guarantee for sink in sinks]),
        "operators": {str(op.id): _operator(op.plan.description.shown, list(op.plan.operator.stores)) for op in flow.ops},
        "sinks": [{"format": name, "place": sink.place, "guarantee": sink.guarantee} for name, sink in zip(formats, sinks, strict=True)],
        "policy": None if elastic is None else elastic.to_json(),
        "safety": list(safety.lines()),
    }


def _operator(shown: Mapping[str, Any], stores: Sequence[str]) -> dict[str, Any]:
    return {"operator": shown.get("operator"), "keys": shown.get("keys", []), "stores": list(stores)}
