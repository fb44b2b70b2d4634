"""Random plans on random data, run by Headrace through the front end: the results are those of Spark's batch engine."""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, note, reject, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.frontend.lower import has_state
from tests.examples import examples
from tests.integration.both import Feed, Values, assert_same_rows, values
from tests.integration.random_plans import Plan, plans

SCHEMA = "k string, n int, tags array<int>, ts timestamp"
ARROW = pa.schema([("k", pa.string()), ("n", pa.int32()), ("tags", pa.list_(pa.int32())), ("ts", pa.timestamp("us", tz="UTC"))])
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
FILE_S = 20
"""Each file covers so many seconds, after those of the file before: no row is late."""
END = BEGIN + timedelta(days=1)
"""The time of a row that closes everything. Results at about its time are not compared."""

ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "n": st.none() | st.integers(0, 6),
        "tags": st.none() | st.lists(st.integers(0, 3), max_size=2),
        "ts": st.integers(0, 10 * FILE_S - 1),
    }
)
FILES = st.lists(st.lists(ROW, min_size=1, max_size=10), min_size=2, max_size=3)


def tables(files: list[list[dict[str, Any]]]) -> list[pa.Table]:
    found = [[{**row, "ts": BEGIN + timedelta(seconds=FILE_S * at + row["ts"] / 10)} for row in rows] for at, rows in enumerate(files)]
    found.append([{"k": "end", "n": 0, "tags": [0], "ts": END}])
    return [pa.Table.from_pylist(rows, schema=ARROW) for rows in found]


def seen(frame: DataFrame) -> list[Values]:
    return values(frame.filter(F.col("ts") < F.lit(END - timedelta(hours=12))))


def run(spark: SparkSession, plan: Plan, feed: Feed, root: Path, sizes: list[int]) -> list[Values]:
    """The results of the stream. It is rescaled between two files."""
    folder = root / "in"
    frame = plan.build(feed.stream(spark, folder).withWatermark("ts", "5 seconds"))
    found: list[Values] = []
    writer = frame.writeStream.option("checkpointLocation", str(root / "ckpt")).option("headrace.instances", sizes[0])
    query = writer.foreachBatch(lambda rows, _: found.extend(seen(rows))).start()
    assert isinstance(query, hr.HeadraceQuery)
    try:
        for (file,), size in zip(feed.files, sizes, strict=False):
            query.rescale(size)
            shutil.copy(file, folder / file.name)
            query.processAllAvailable()
    finally:
        query.stop()
    return found


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.spark
@settings(
    max_examples=examples(40, at_least=3),
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
@given(plan=plans(), files=FILES, sizes=st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_random_plans(spark: SparkSession, plan: Plan, files: list[list[dict[str, Any]]], sizes: list[int]) -> None:
    note(plan.text)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        feed = Feed.of(root, SCHEMA, tables(files))
        if not has_state(plan.build(feed.stream(spark, root / "asked"))):
            reject()
        hr.enable(spark)
        try:
            found = run(spark, plan, feed, root, sizes)
        except (AnalysisException, hr.UnsupportedError) as refused:
            event(f"refused: {str(refused)[:80]}")
            note(f"refused: {refused}")
            reject()
        finally:
            hr.disable(spark)
        wanted = seen(plan.build(feed.batch(spark)))
        assert_same_rows(found, wanted, ["k", "ts", "n"], plan.text)
