"""One engine: ``python -m benchmarks.kafka.lane ENGINE ADDRESS TOPIC FOLDER BATCH``. The last line that it prints is JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import functions as F

import headrace as hr
from benchmarks.kafka.query import compare, heavy_customers
from headrace.bench.model import OURS
from headrace.bench.runner import PROVIDER
from headrace.demo.places import Topics
from headrace.spark.streaming import ROCKSDB_STORE
from headrace.testing.kafka import Broker, connector


def main() -> None:
    engine, address, topic, folder, batch = sys.argv[1:]
    spark = hr.session(
        f"bench kafka {topic}",
        spark__ui__enabled="false",
        spark__driver__memory="4g",
        spark__sql__session__timeZone="UTC",
        spark__sql__shuffle__partitions="2",
        spark__jars=connector(),
        **{PROVIDER: ROCKSDB_STORE, "spark.sql.streaming.numRecentProgressUpdates": "10000"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    topics = Topics.running(Broker(Path(folder) / "none", port=int(address.rpartition(":")[2])))
    topics.broker.create(topics.sink(topic))
    calls = topics.stream(spark, int(batch))
    query = run(topics.write(heavy_customers(hr.stream(calls) if engine == OURS else calls), topic), folder)
    taken = [{"rows": records(each["sources"][0]), "ms": each["durationMs"]["triggerExecution"]} for each in query.recentProgress]
    batches = [each for each in taken if each["rows"]]
    verdict = compare(spark, topics, topic, watermark_ms(spark, topics))
    print(
        json.dumps(
            {
                "batches": batches,
                "median_ms": median(each["ms"] for each in batches),
                "results": verdict.rows,
                "equal": verdict.equal,
                "said": str(verdict),
            }
        )
    )
    spark.stop()


def records(source: Any) -> int:
    """The records of a batch, from its offsets. An engine that reads a batch twice would count them twice."""

    def total(offsets: Any) -> int:
        parsed = json.loads(offsets) if isinstance(offsets, str) else offsets
        return sum(sum(partitions.values()) for partitions in (parsed or {}).values())

    return total(source["endOffset"]) - total(source["startOffset"])


def run(writer: Any, folder: str) -> Any:
    """Start a query, Headrace's or Spark's, and wait until it has read everything."""
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def watermark_ms(spark: Any, topics: Topics) -> int:
    """Up to where windows are closed when all is read: a minute before the newest event."""
    newest = topics.calls(spark).agg(F.unix_millis(F.max("ts"))).collect()[0][0]
    return int(newest) - 60_000


if __name__ == "__main__":
    main()
