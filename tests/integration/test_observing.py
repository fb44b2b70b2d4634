"""What tools see of a running query: Prometheus, OpenTelemetry, Spark's listeners, Spark's UI and notebooks."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener  # type: ignore[attr-defined]

import headrace as hr
from headrace.dashboard import live
from headrace.errors import QueryError
from headrace.ids import OperatorId, RoutingEpoch
from headrace.runtime.elastic import RoutingChange
from tests.unit.dashboard.recorded import Client

pytestmark = pytest.mark.spark

BATCHES, ROWS = 3, 100
NAME = "sales <b>&amp;"
"""A name that must be escaped in pages."""


class Listener(StreamingQueryListener):
    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.terminated = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        self.progress.append(event.progress)

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self.terminated.set()


class Seen:
    """What was seen of a query of a few batches."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.listener, self.spans = spark, Listener(), exporter()
        source = folder / "in"
        source.mkdir()
        for number in range(BATCHES):
            rows = "".join(json.dumps({"k": k % 7, "v": k}) + "\n" for k in range(number * ROWS, (number + 1) * ROWS))
            (source / f"{number}.json").write_text(rows)
        whole = hr.listener(self.listener)
        spark.streams.addListener(whole)
        try:
            self.stream = hr.stream(spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).json(str(source)))
            totals = self.stream.groupBy("k").agg(F.sum("v").alias("total"))
            writer = totals.writeStream.outputMode("update").foreachBatch(self.take).queryName(NAME)
            writer = writer.option("checkpointLocation", str(folder / "ckpt")).option("headrace.instances", 2)
            self.query = writer.option("headrace.metricsPort", 0).option("headrace.traces", True).option("headrace.ui", True).start()
            self.query.processAllAvailable()
            with urllib.request.urlopen(str(self.query.metrics_url), timeout=10) as answer:
                self.kind, self.metrics = answer.headers["Content-Type"], answer.read().decode()
            self.monitor = Client(live._server).bearer().send("GET", "/metrics") if live._server else None
            self.page = self.query._repr_html_()
            state = self.query.state()
            self.state_page = state._repr_html_()
            self.query.stop()
            assert self.listener.terminated.wait(60)
        finally:
            spark.streams.removeListener(whole)

    def take(self, frame: DataFrame, version: int) -> None:
        with trace.get_tracer("mine").start_as_current_span("store"):
            frame.collect()


def exporter() -> InMemorySpanExporter:
    """Spans of this process in memory. A program sets one provider."""
    found = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        trace.set_tracer_provider(provider := TracerProvider())
    provider.add_span_processor(SimpleSpanProcessor(found))
    return found


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    found = Seen(spark, tmp_path_factory.mktemp("observing"))
    yield found
    found.query.stop()


def test_prometheus_reads_metrics_that_add_up(seen: Seen) -> None:
    assert seen.kind.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(seen.metrics)}
    assert len(families) == seen.metrics.count("# TYPE"), "a family must come once"

    def value(name: str, **labels: str) -> float:
        family = families[name.removesuffix("_total").removesuffix("_count")]
        return sum(each.value for each in family.samples if each.name == name and labels.items() <= each.labels.items())

    assert value("headrace_rows_total", query=NAME) == BATCHES * ROWS
    assert value("headrace_instance_rows_total", operator="aggregate") > 0
    assert value("headrace_batch_duration_seconds_count") == BATCHES
    assert value("headrace_state_rows", operator="aggregate") == 7
    assert value("headrace_instances", operator="aggregate") == 2
    assert value("headrace_version") == BATCHES - 1
    assert value("headrace_state_bytes") > 0
    assert value("headrace_phase_seconds_total", phase="deliver") > 0
    for family in families.values():
        assert family.name.startswith("headrace_")
        assert family.documentation.endswith(".")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        assert not family.name.endswith(("_ms", "_kb", "_millis"))
    assert seen.query.metrics_url is not None
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(seen.query.metrics_url, timeout=10)


def test_the_monitor_has_the_same_metrics_for_whoever_has_the_token(seen: Seen) -> None:
    assert seen.monitor is not None
    status, headers, text = seen.monitor
    assert (status, headers["content-type"]) == (200, seen.kind)
    of_query = [line for line in text.splitlines() if 'query="sales' in line]
    assert of_query == [line for line in seen.metrics.splitlines() if not line.startswith("#")]
    assert live._server is not None
    assert Client(live._server).send("GET", "/metrics")[0] == 401


def test_metrics_that_are_asked_for_late_begin_with_the_batches_that_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    rows = hr.stream(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
    writer = rows.groupBy("value").count().writeStream.outputMode("update").format("noop").queryName("late")
    query = writer.option("checkpointLocation", str(tmp_path / "late")).option("headrace.ui", True).start()

    def scraped() -> tuple[float, float]:
        assert live._server is not None
        status, _, text = Client(live._server).bearer().send("GET", "/metrics")
        assert status == 200, text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if 'query="late"' in line)
        return float(values['headrace_rows_total{query="late"}']), float(values['headrace_version{query="late"}'])

    try:
        while (query.lastProgress or {}).get("batchId", 0) < 2:
            query.awaitTermination(0.1)
        for _ in range(2):
            total, version = scraped()
            assert total == 10 * (version + 1)
            while (query.lastProgress or {}).get("batchId", 0) < version + 2:
                query.awaitTermination(0.1)
    finally:
        query.stop()
    assert live._server is not None
    assert 'query="late"' not in Client(live._server).bearer().send("GET", "/metrics")[2]


def test_two_queries_share_a_port_and_a_taken_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def start(name: str, port: int) -> hr.HeadraceQuery:
        rows = hr.stream(spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load())
        writer = rows.groupBy("value").count().writeStream.outputMode("update").format("noop").queryName(name)
        return writer.option("checkpointLocation", str(tmp_path / name)).option("headrace.metricsPort", port).start()

    first = start("first", 0)
    port = int(str(first.metrics_url).split(":")[2].split("/")[0])
    second = start("second", port)
    try:
        for query in (first, second):
            while query.lastProgress is None:
                query.awaitTermination(0.1)
        text = urllib.request.urlopen(str(second.metrics_url), timeout=10).read().decode()
        assert second.metrics_url == first.metrics_url
        assert text.count("# TYPE headrace_version gauge") == 1
        assert {'headrace_version{query="first"}', 'headrace_version{query="second"}'} <= {line.split(" ")[0] for line in text.splitlines()}
    finally:
        first.stop()
        second.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(QueryError, match=r"a free port on 127\.0\.0\.1"):
        start("third", taken.getsockname()[1])
    start("third", 0).stop()


def test_each_batch_is_a_trace_with_its_phases_and_the_user_s_spans(seen: Seen) -> None:
    spans = seen.spans.get_finished_spans()
    batches = [each for each in spans if each.name == "headrace.batch"]
    assert [dict(each.attributes or {})["headrace.version"] for each in batches] == list(range(BATCHES))
    assert [dict(each.attributes or {})["headrace.rows"] for each in batches] == [ROWS] * BATCHES
    for batch in batches:
        below = [each for each in spans if each.parent is not None and each.parent.span_id == batch.context.span_id]
        names = [each.name for each in below]
        assert {"headrace.plan", "headrace.job", "headrace.deliver", "store"} <= set(names)
        assert all(begins(batch) <= begins(each) <= ends(each) <= ends(batch) for each in below)


def begins(span: ReadableSpan) -> int:
    assert span.start_time is not None
    # Phases are measured by another clock than the span: by a millisecond they may differ.
    return span.start_time // 10_000_000


def ends(span: ReadableSpan) -> int:
    assert span.end_time is not None
    return span.end_time // 10_000_000


def test_spark_s_listeners_get_the_whole_progress(seen: Seen) -> None:
    mine = [each for each in seen.listener.progress if each.name == NAME and each.numInputRows]
    assert [each.batchId for each in mine] == list(range(BATCHES))
    last = mine[-1]
    assert last["headrace"]["rows"] == ROWS
    assert last.stateOperators[0].operatorName == "aggregate"
    assert last.stateOperators[0].numRowsTotal == 7
    assert json.loads(last.json)["headrace"]["version"] == BATCHES - 1


def test_spark_s_ui_names_query_version_and_operator(seen: Seen) -> None:
    store = seen.spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    texts = (jobs.apply(at).description() for at in range(jobs.size()))
    found = {str(text.get()) for text in texts if text.isDefined()}
    for version in range(BATCHES):
        assert f"{NAME} · version {version} · aggregate × 2" in found
        assert any(text.startswith(f"{NAME} · version {version} · foreachBatch sink") for text in found)


def test_notebooks_show_pages_in_which_names_are_text(seen: Seen) -> None:
    for page in (seen.page, seen.stream._repr_html_(), seen.state_page):
        assert "<b>" not in page
        assert page.count("<table") == page.count("</table>") >= 1
    assert "sales &lt;b&gt;&amp;amp;" in seen.page
    assert "aggregate" in seen.page
    assert "<td>k</td>" in seen.stream._repr_html_()
    assert "<th>k</th>" in seen.state_page
    assert seen.state_page.count("<tr>") == 8


def test_the_dashboard_for_grafana_shows_metrics_that_there_are(seen: Seen) -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "deploy" / "grafana-dashboard.json").read_text())
    text = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    shown = set(re.findall(r"headrace_\w+", text))
    described = re.findall(r"# TYPE (\w+) (\w+)", seen.metrics)
    known = {f"{name}_bucket" if kind == "histogram" else name for name, kind in described}
    assert shown <= known, shown - known
    forgotten = (
        known
        - shown
        - {"headrace_version", "headrace_slots_moved_total", "headrace_state_fetched_bytes_total", "headrace_instance_rows_total"}
    )
    assert not forgotten
    assert all(panel["description"].endswith(".") for panel in dashboard["panels"])


def test_every_field_of_the_progress_is_documented(seen: Seen) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "progress.md").read_text()
    _, whole, *parts = re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]
    last = seen.query.recentProgress[-1]["headrace"]

    def documented(section: str) -> set[str]:
        firsts = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
        return {name.removesuffix("[]") for name in re.findall(r"`([^`]+)`", firsts)}

    assert documented(whole) == set(last)
    by_name = {part.split("\n")[0].strip("`[]"): documented(part) for part in parts}
    assert by_name["latencyMs"] == set(last["latencyMs"])
    assert by_name["backlog"] == set(last["backlog"])
    assert by_name["instances"] == set(last["instances"][0])
    change = RoutingChange(OperatorId("a"), RoutingEpoch(1), 1, 2, 3, "merge", "why", 0.0)
    assert by_name["changes"] == set(change.to_json())
