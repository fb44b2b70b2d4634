"""One lane: the query of an engine from its start to its last window, in a separate process.

    closed loop (capacity, code gets compiled) -> open loop at the offered rate -> what waits is drained -> closed loop again (capacity now)

One query runs all the time, so the second closed loop shows how the elastic query has adapted in the open loop.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr
from benchmarks.top_k import check
from benchmarks.top_k.offering import Offering, Taken
from benchmarks.top_k.outcome import ELASTIC, SPARK, Batch, Order, Outcome, Ranking
from benchmarks.top_k.query import read, sink, views
from benchmarks.top_k.views import Stream
from headrace.bench.model import ROCKSDB
from headrace.bench.runner import PROVIDER, PROVIDERS
from headrace.errors import HeadraceError
from headrace.spark.gateway import spark_home


@contextmanager
def session(order: Order) -> Iterator[SparkSession]:
    """Executors of one core each, like the machines of SEEP: scaling out adds an executor."""
    spark = hr.session(
        f"top-k, {order.name}",
        master=f"local-cluster[{order.instances_max},1,{order.heap_mb}]",
        spark__executor__memory=f"{order.heap_mb}m",
        spark__ui__enabled="false",
        spark__sql__session__timeZone="UTC",
        spark__sql__shuffle__partitions=str(order.instances_max),
        # There are more reading tasks than cores, so that a new executor, slow until its code is compiled, delays no batch.
        spark__sql__files__minPartitionNum=str(4 * order.instances_max),
        spark__sql__streaming__numRecentProgressUpdates="10000",
    )
    # Executors are released while the query runs, which Spark reports as errors.
    spark.sparkContext.setLogLevel("OFF")
    application = spark.sparkContext.applicationId
    try:
        yield spark
    finally:
        spark.stop()
        # Executors of local-cluster leave their folders in the folder of Spark itself.
        shutil.rmtree(Path(spark_home()) / "work" / str(application), ignore_errors=True)


def apart(order: Order) -> Outcome:
    """Run the lane in a separate process, so that no engine uses a JVM that another has warmed up."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_in_session, args=(order, theirs))
    process.start()
    # Only the lane holds the other end, so that its end is noticed here.
    theirs.close()
    try:
        found = ours.recv()
        process.join()
    except EOFError:
        found = "a process that has ended"
    finally:
        # After an interrupt. Spark ends with the process that started it.
        process.kill()
    if isinstance(found, str):
        raise HeadraceError(where=f"bench top-k, lane {order.name}", wanted="a query that runs to its end", found=found)
    assert isinstance(found, Outcome)
    return found


def _in_session(order: Order, told: Connection) -> None:
    """Send the outcome, or the reason of a failure as text: Spark's exceptions cannot be sent between processes."""
    try:
        with session(order) as spark:
            found: Outcome | str = run(spark, order)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    told.send(found)


def run(spark: SparkSession, order: Order) -> Outcome:
    outcome = Outcome(order.name, order.lines, order.buffer_files, order.rate)
    source, checkpoint = order.folder / "source", order.folder / "checkpoint"
    stream = Stream(source, list(order.blocks))
    query = start(spark, order, outcome, source, checkpoint)
    offering = Offering(stream, Taken(checkpoint / "sources" / "0"), order.batch_files, order.buffer_files, alive=lambda: query.isActive)
    try:
        say(order, "closed loop")
        outcome.capacity["before"] = _capacity(query, offering, order, order.closed_s)
        outcome.rate = outcome.rate or order.over * outcome.capacity["before"]
        say(order, f"capacity {outcome.capacity['before']:,.0f} lines/s; open loop, {outcome.rate:,.0f} lines/s for {order.open_s:.0f} s")
        before, outcome.began_s = len(offering.history), time.time()
        offering.open(order.open_s, outcome.rate / order.lines)
        outcome.ended_s = time.time()
        outcome.offered = offering.history[before:]
        query.processAllAvailable()
        say(order, f"{outcome.discarded():,} of {len(outcome.offered) * order.lines:,} lines discarded; closed loop again")
        outcome.capacity["after"] = _capacity(query, offering, order, order.closed_s / 3)
        last = offering.end(order.window_s)
        query.processAllAvailable()
        outcome.batches = batches(query, order)
        outcome.decisions = decisions(query, outcome.began_s) if order.name == ELASTIC else []
    finally:
        query.stop()
    outcome.late_s, outcome.taken = offering.late_s, offering.taken.batches
    files = [(each.ms, each.block) for each in offering.history if each.block is not None and each is not last]
    outcome.wrong = check.difference(outcome.rankings, check.expected(files, order.window_s))
    return outcome


def start(spark: SparkSession, order: Order, outcome: Outcome, source: Path, checkpoint: Path) -> Any:
    """The query: the same code for every engine."""
    # The state store of plain Spark; Headrace ignores it.
    spark.conf.set(PROVIDER, PROVIDERS[ROCKSDB])
    lines = read(spark, str(source), order.batch_files)
    counted = views(lines if order.name == SPARK else hr.stream(lines), order.window_s)

    def told(start_ms: int, ranking: Ranking) -> None:
        best = ", ".join(f"{language} {count:,}" for language, count in ranking[:3])
        say(order, f"window from {start_ms // 1000} s on: {best}, ...")

    writer = counted.writeStream.foreachBatch(sink(outcome.rankings, told)).option("checkpointLocation", str(checkpoint))
    if order.name != SPARK:
        writer = writer.option("headrace.instances", 1).option("headrace.readyExecutors", 0)
    if order.name == ELASTIC:
        writer = writer.elastic(
            hr.Elastic(policy=order.policy, max=order.instances_max, period_s=order.period_s, cooldown_s=2 * order.period_s)
        )
    return writer.start()


def _capacity(query: Any, offering: Offering, order: Order, seconds: float) -> float:
    """Lines per second in the last third of a closed loop, since the JVM compiles code for a minute or two."""
    offering.closed(2 / 3 * seconds)
    # The first batch of a query may take longer than the loop.
    query.processAllAvailable()
    warm_s = time.time()
    offering.closed(seconds / 3)
    query.processAllAvailable()
    done = [batch for batch in batches(query, order) if batch.begin_s >= warm_s]
    if not done:
        raise HeadraceError(
            where=f"bench top-k --closed {order.closed_s:g}", wanted="time for some batches", found="none", hint="give it more seconds"
        )
    return sum(batch.rows for batch in done) / (done[-1].end_s - done[0].begin_s)


def batches(query: Any, order: Order) -> list[Batch]:
    """The batches, from Spark's progress, in the same way for all engines."""
    found = []
    for progress in (json.loads(each.json) for each in query.recentProgress):
        # Spark's progress comes shortly after the batch has ended.
        if progress.get("numInputRows"):
            begin_s = _clock(progress["timestamp"])
            end_s = begin_s + progress["durationMs"]["triggerExecution"] / 1000
            # The source has its own batch numbers, because Spark also runs batches without rows.
            id_ = int(progress["sources"][0]["endOffset"]["logOffset"])
            found.append(Batch(id_, begin_s, end_s, progress["numInputRows"], _instances(progress, order)))
    return found


def _instances(progress: dict[str, Any], order: Order) -> int:
    if order.name == SPARK:
        return order.instances_max
    return len(progress["headrace"]["instances"])


def _clock(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def decisions(query: Any, began_s: float) -> list[str]:
    return [
        f"{each.at_s - began_s:.0f} s: {each.instances_before} -> {each.instances} {each.outcome}, {each.times}x: {each.why}"
        for each in query.decisions()
    ]


def say(order: Order, what: str) -> None:
    print(f"top-k, {order.name}: {what}", flush=True)
