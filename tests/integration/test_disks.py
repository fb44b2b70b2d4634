"""Disks that are full, read-only or not there: errors that name the place and the remedy, and a restart that goes on exactly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.errors import CheckpointError, StorageError

pytestmark = pytest.mark.spark

ROWS = 40_000
FREE_BYTES = 200_000
"""What is left on the full disk: Spark's logs fit, a batch's state does not."""


def start(spark: SparkSession, source: Path, checkpoint: Path | str, rows: list[Any] | None = None) -> HeadraceQuery:
    def take(frame: Any, version: int) -> None:
        if rows is not None:
            rows.append((version, sorted(tuple(row) for row in frame.collect())))

    stream = hr.stream(spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).parquet(str(source)))
    writer = stream.groupBy("k").count().writeStream.outputMode("update").foreachBatch(take)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def offer(source: Path, number: int) -> None:
    source.mkdir(exist_ok=True)
    pq.write_table(pa.table({"k": pa.array(range(number * ROWS // 2, number * ROWS // 2 + ROWS))}), source / f"{number}.parquet")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, with a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_the_query_and_loses_nothing(spark: SparkSession, small_disk: Path, tmp_path: Path) -> None:
    source, got = tmp_path / "in", list[Any]()
    offer(source, 0)
    start(spark, source, small_disk / "ckpt", got).awaitTermination()
    offer(source, 1)
    free = os.statvfs(small_disk)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - FREE_BYTES))
    query = start(spark, source, small_disk / "ckpt", got)
    with pytest.raises(StorageError) as caught:
        query.awaitTermination()
    assert caught.value.path.startswith(str(small_disk / "ckpt" / "headrace" / "runs"))
    assert "No space left on device" in caught.value.found
    assert "free some space" in caught.value.hint
    assert query.exception() is caught.value
    assert len(got) == 1, "nothing was delivered"
    ballast.unlink()
    start(spark, source, small_disk / "ckpt", got).awaitTermination()
    expected = spark.read.parquet(str(source)).groupBy("k").count().collect()
    last = {key: count for _, rows in got for key, count in rows}
    assert [version for version, _ in got] == [0, 1]
    assert last == {row["k"]: row["count"] for row in expected}


def test_a_disk_that_is_full_to_the_last_byte_ends_the_query(spark: SparkSession, small_disk: Path, tmp_path: Path) -> None:
    """Not even Spark can write its own logs."""
    source = tmp_path / "in"
    offer(source, 0)
    start(spark, source, small_disk / "ckpt").awaitTermination()
    offer(source, 1)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize))
    with pytest.raises(StorageError, match=r"No space left on device .*free some space"):
        start(spark, source, small_disk / "ckpt").awaitTermination()


def test_a_read_only_disk_is_refused_at_the_start(spark: SparkSession, small_disk: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    offer(source, 0)
    start(spark, source, small_disk / "ckpt").awaitTermination()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for place in (small_disk / "ckpt", small_disk / "new"):
        with pytest.raises(StorageError, match=r"Read-only file system .*mount the disk so that it can be written") as caught:
            start(spark, source, place)
        assert caught.value.path.startswith(str(place))


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("{file}", "folders|a file is in the way"),
        ("{file}/below/it", "folders"),
        ("{root}/" + "x" * 300, "give a shorter path"),
        ("", "found an empty string"),
        ("ftp://host/x", "the scheme 'ftp'"),
    ],
)
def test_a_location_that_cannot_be_is_refused_at_the_start(spark: SparkSession, tmp_path: Path, location: str, said: str) -> None:
    (tmp_path / "file").write_text("in the way")
    given = location.format(file=tmp_path / "file", root=tmp_path)
    offer(tmp_path / "in", 0)
    with pytest.raises(CheckpointError, match=said) as caught:
        start(spark, tmp_path / "in", given)
    assert given[:100] in str(caught.value)


def test_missing_parents_are_made(spark: SparkSession, tmp_path: Path) -> None:
    offer(tmp_path / "in", 0)
    start(spark, tmp_path / "in", tmp_path / "a" / "b" / "ckpt").awaitTermination()
    assert (tmp_path / "a" / "b" / "ckpt" / "headrace" / "query.json").exists()
