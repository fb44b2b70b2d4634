"""A program that replaces its query while it runs, to be killed on the way: ``python -m tests.crash.replaced FOLDER``.

The old query has sums, the new one also counts, and windows that read history. Both write what is told of each key to files of their own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from tests.crash.driver import session

SCHEMA = "k string, v int"


def offer(folder: Path, number: int) -> None:
    """One file, which is one batch."""
    (folder / "in").mkdir(exist_ok=True)
    hidden = folder / "in" / f".{number}"
    hidden.write_text("\n".join(json.dumps({"k": f"k{each % 5}", "v": each}) for each in range(number * 7, number * 7 + 9)))
    hidden.rename(folder / "in" / f"{number:04d}.json")


def rows(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))


def sums(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("s"))


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy((F.col("v") % 3).cast("string").alias("third")).agg(F.count("*").alias("n"))


def writers(spark: SparkSession, folder: Path, kinds: tuple[Callable[[DataFrame], DataFrame], ...]) -> list[Any]:
    """The writers of a query with these operators. The state of one version is one file, so a batch that comes again replaces itself."""
    source = rows(spark, folder)

    def told(name: str) -> Callable[[DataFrame, int], None]:
        def keep(frame: DataFrame, version: int) -> None:
            (folder / f"{name}-{version:04d}.json").write_text(json.dumps([list(row) for row in frame.collect()]))

        return keep

    named = [(kind.__name__, hr.named(kind(source), kind.__name__)) for kind in kinds]
    return [hr.writeStream(frame).outputMode("update").foreachBatch(told(name)) for name, frame in named]


OLD, NEW = (sums,), (counts, sums)


def start(spark: SparkSession, folder: Path, kinds: tuple[Callable[[DataFrame], DataFrame], ...], **options: Any) -> hr.HeadraceQuery:
    given = [each.options(**options) for each in writers(spark, folder, kinds)]
    return hr.start(*given, checkpointLocation=str(folder / "checkpoint"))


def results(folder: Path, name: str) -> dict[str, int]:
    """What was told of each key last."""
    found: dict[str, int] = {}
    for path in sorted(folder.glob(f"{name}-*.json")):
        found.update(json.loads(path.read_text()))
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    spark = session()
    for number in range(3):
        offer(folder, number)
    query = start(spark, folder, OLD)
    query.processAllAvailable()
    query.replace(*writers(spark, folder, NEW), backfill=True)
    query.stop()


if __name__ == "__main__":
    main()
