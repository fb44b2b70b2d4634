"""The process with plain Spark: it cuts the input into parts, and computes Spark's batch answer over those that the query has had."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.chaos.life import serve
from headrace.chaos.loading import Target
from headrace.chaos.recorder import write_rows
from headrace.chaos.sources import Parts, SourceRequest, rows_of
from headrace.errors import QueryError
from headrace.testing.reference import expected
from headrace.testing.results import CollectingSink

MASTER = "local[2]"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that starts sooner, and uses less of the machine for compiling and collecting garbage."""


class Answer:
    """Spark without Headrace."""

    def __init__(self, spark: SparkSession, target: Target, work: Path) -> None:
        self.spark, self.target, self.work = spark, target, work

    def prepare(self, batches: int, rows_max: int, order_by: str) -> dict[str, Any]:
        """Cut the rows of each source into parts, one for each batch. Returns rows a batch, by source."""
        found: dict[str, int] = {}

        def opened(at: int, request: SourceRequest) -> DataFrame:
            parts = Parts.of(self.work, at)
            table = rows_of(self.spark, request, batches * rows_max, order_by)
            parts.write(table, batches, rows_max)
            found[request.path] = min(rows_max, table.num_rows // batches)
            return self.spark.read.parquet(*parts.between(0, batches))

        names = list(self.target.answer(self.spark, opened))
        if not found:
            raise QueryError(where="chaos", wanted="a query that reads files with spark.readStream", found="none")
        return {"rows": found, "sinks": names}

    def answer(
        self, first: int, fed: int, watermark_ms: int, sinks: list[dict[str, Any]], due: dict[str, str], folder: str
    ) -> dict[str, int]:
        """Write the answer for each sink over the parts from ``first`` up to ``fed``. Returns the number of rows, by sink."""
        made = self.target.answer(self.spark, lambda at, _: self.spark.read.parquet(*Parts.of(self.work, at).between(first, fed)))
        found = {}
        for sink in sinks:
            name = sink["name"]
            frame = made.get(name, made.get("") if len(sinks) == 1 else None)
            if frame is None:
                raise QueryError(where="chaos", wanted=f"an answer for the sink {name!r}", found=", ".join(made))
            results = CollectingSink(name, sink["mode"], frame.schema, None)
            kept = expected(lambda *_, frame=frame: frame, [], results, watermark_ms, due.get(name) or due.get(""), "chaos")
            table = kept.select(*[kept[column] for column in sink["columns"]]).toArrow()
            write_rows(Path(folder) / f"{name}.arrow", table)
            found[name] = table.num_rows
        return found


def plain_session(settings: dict[str, str]) -> SparkSession:
    """Spark without any setting of Headrace's."""
    builder = SparkSession.builder.master(MASTER).appName("headrace chaos: the answer")
    own = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        # The parts are many small files: two tasks read them all, and the driver lists them.
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
    }
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("request", help="JSON: settings, target, work")
    given = json.loads(arguments.parse_args(sys.argv[1:]).request)
    serve(lambda: Answer(plain_session(given["settings"]), Target.parse(**given["target"]), Path(given["work"])))


if __name__ == "__main__":
    main()
