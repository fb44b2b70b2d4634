"""Prometheus' metrics of the queries of this program, served at ``/metrics`` on a port of the user's choice (``headrace.metricsPort``).

    batch ends --observe--> QueryMetrics (a registry per query) --merged at each scrape--> MetricsServer --HTTP--> Prometheus

Counters count since the query's start, as Prometheus expects. When a query ends, its metrics are gone; the last query closes the server.
The monitor serves the same at its own ``/metrics``. There, nothing is counted before the first scrape (`ProgressLog.metrics`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.metrics_core import Metric

from headrace.errors import QueryError
from headrace.runtime.progress import BatchProgress

SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Buckets of durations and latencies."""
QUERY, OPERATOR, INSTANCE = ("query",), ("query", "operator"), ("query", "operator", "instance")


class QueryMetrics:
    """The metrics of one query."""

    def __init__(self, query: str) -> None:
        self._query = query
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"namespace": "headrace", "registry": self.registry}
        self._batch_s = Histogram("batch_duration_seconds", "How long batches took.", QUERY, buckets=SECONDS, **make)
        self._latency_s = Histogram(
            "latency_seconds", "The greatest age of a row, since it arrived, when a batch's results were delivered.", QUERY,
            buckets=SECONDS, **make,
        )  # fmt: skip
        self._phase_s = Counter("phase_seconds", "Time that batches spent in each phase.", (*QUERY, "phase"), **make)
        self._rows = Counter("rows", "Rows read from sources, with those that were shed.", QUERY, **make)
        self._results = Counter("results", "Result rows.", QUERY, **make)
        self._late = Counter("late_rows", "Rows that came too late for their windows.", OPERATOR, **make)
        self._shed = Counter("shed_rows", "Rows that were dropped to keep the deadline.", (*QUERY, "place"), **make)
        self._version = Gauge("version", "The newest version, which is Spark's batch id.", QUERY, **make)
        self._ended = Gauge("last_batch_timestamp_seconds", "When the newest batch ended.", QUERY, **make)
        self._watermark = Gauge("watermark_timestamp_seconds", "The watermark, if the query has one.", QUERY, **make)
        self._left = Gauge("backlog_rows", "Rows that had arrived before the batch began, and still waited when it ended.", QUERY, **make)
        self._files = Gauge("backlog_files", "Files that wait in the folders of file sources.", QUERY, **make)
        self._state_rows = Gauge("state_rows", "Rows of state.", OPERATOR, **make)
        self._state_bytes = Gauge("state_bytes", "Bytes of state.", OPERATOR, **make)
        self._instances = Gauge("instances", "The number of instances.", OPERATOR, **make)
        self._busy_s = Counter("instance_busy_seconds", "Time that an instance worked; its rate is its utilisation.", INSTANCE, **make)
        self._instance_rows = Counter("instance_rows", "Rows that an instance took in.", INSTANCE, **make)
        self._changes = Counter("routing_changes", "Changes of the routing.", OPERATOR, **make)
        self._moved = Counter("slots_moved", "Slots that went to other instances.", OPERATOR, **make)
        self._fetched = Counter("state_fetched_bytes", "State that was brought to new homes.", OPERATOR, **make)
        self._decisions = Counter("decisions", "Decisions of the policy, by outcome.", (*QUERY, "outcome"), **make)
        self._lost = Counter("step_interruptions", "Steps that ran again because executors were lost or hung.", QUERY, **make)
        self._rebuilt = Counter("versions_rebuilt", "Versions that were computed again after a loss.", QUERY, **make)

    def observe(self, progress: BatchProgress) -> None:
        """Add a batch."""
        q = self._query
        begin_s, end_s, previous_s = progress.times_s
        self._batch_s.labels(q).observe(end_s - begin_s)
        self._latency_s.labels(q).observe(end_s - previous_s)
        for phase, ms in progress.phases_ms.items():
            self._phase_s.labels(q, phase).inc(ms / 1000)
        self._rows.labels(q).inc(progress.rows)
        self._results.labels(q).inc(progress.rows_out())
        dropped = {} if progress.shed is None else progress.shed.to_json()
        for name, place in (dropped.get("places") or {}).items():
            self._shed.labels(q, name).inc(place["shed"])
        self._version.labels(q).set(progress.version)
        self._ended.labels(q).set(end_s)
        if progress.event_time():
            self._watermark.labels(q).set(progress.manifest.watermark_ms / 1000)
        for gauge, known in ((self._left, progress.backlog.rows_left), (self._files, progress.backlog.files)):
            if known is not None:
                gauge.labels(q).set(known)
        self._observe_operators(progress)
        for change in progress.changes:
            self._changes.labels(q, change.operator).inc()
            self._moved.labels(q, change.operator).inc(change.slots_moved)
            self._fetched.labels(q, change.operator).inc(change.fetched_bytes)
        for entry in progress.decisions:
            self._decisions.labels(q, str(entry.outcome)).inc()
        self._lost.labels(q).inc(len(progress.interruptions))
        self._rebuilt.labels(q).inc(progress.rebuilt)

    def _observe_operators(self, progress: BatchProgress) -> None:
        q = self._query
        for each in progress.operators():
            self._state_rows.labels(q, each["operatorName"]).set(each["numRowsTotal"])
            self._state_bytes.labels(q, each["operatorName"]).set(each["memoryUsedBytes"])
        for name, routing in progress.routing.items():
            self._instances.labels(q, name).set(routing.instances)
        for name, reports in progress.reports.items():
            self._late.labels(q, name).inc(sum(report.rows_late for report in reports))
            for report in reports:
                labels = q, name, str(report.instance)
                self._busy_s.labels(*labels).inc(report.wall_s)
                self._instance_rows.labels(*labels).inc(report.rows)


@dataclass(eq=False)
class Merged:
    """The metrics of several queries, each family once."""

    queries: list[QueryMetrics] = field(default_factory=list)

    def collect(self) -> Iterable[Metric]:
        """Called at each scrape."""
        families: dict[str, Metric] = {}
        for query in list(self.queries):
            for family in query.registry.collect():
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        return families.values()


@dataclass(eq=False)
class MetricsServer:
    """Serves the metrics of all queries that asked for one port."""

    address: str
    wanted: int
    """The port that was asked for; 0 stands for any."""
    shown: Merged = field(default_factory=Merged)
    port: int = 0

    def __post_init__(self) -> None:
        registry = CollectorRegistry()
        registry.register(self.shown)
        try:
            self._server, _ = start_http_server(self.wanted, self.address, registry)
        except (OSError, OverflowError) as refused:
            wanted, found = f"a free port on {self.address}", f"{self.wanted} ({refused})"
            raise QueryError(where="option 'headrace.metricsPort'", wanted=wanted, found=found, hint="0 takes any that is free") from None
        self.port = int(self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


_servers: list[MetricsServer] = []
_lock = threading.Lock()


@dataclass
class Served:
    """The metrics of a query, and the server that shows them until `close`."""

    metrics: QueryMetrics
    server: MetricsServer

    @classmethod
    def begin(cls, query: str, address: str, port: int) -> Served:
        """Serve the metrics of a query. Raises QueryError if the port is taken by another program."""
        with _lock:
            known = [each for each in _servers if each.address == address and port in (each.port, each.wanted)]
            server = known[0] if known else MetricsServer(address, port)
            if not known:
                _servers.append(server)
            metrics = QueryMetrics(query)
            server.shown.queries.append(metrics)
        return cls(metrics, server)

    def close(self, *_: Any) -> None:
        with _lock:
            self.server.shown.queries.remove(self.metrics)
            if self.server.shown.queries:
                return
            _servers.remove(self.server)
        # Waits for the thread of the server.
        self.server.close()
