"""HDFS as the durable store: Hadoop's own mini cluster, asked by WebHDFS, and Spark's logs there too."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.errors import FencedError, StorageError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.fencing import Fence
from headrace.runtime.verification import verify
from headrace.state.requests import Settings
from headrace.state.stores import open_store
from headrace.testing import QueryTest
from tests.stores.contract import keeps_its_contract
from tests.stores.hdfs import mini_hdfs
from tests.stores.jars import classpath

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.extra]


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with mini_hdfs(classpath("hdfs"), tmp_path_factory.mktemp("hdfs")) as settings:
        yield settings


@pytest.fixture
def place(hadoop: dict[str, str], request: pytest.FixtureRequest) -> str:
    return f"{hadoop['fs.defaultFS']}/tests/{request.node.name.replace('[', '-').rstrip(']')}"


@pytest.fixture
def settings(hadoop: dict[str, str]) -> Settings:
    return Settings(tuple(hadoop.items()), 20.0)


def test_hdfs_keeps_the_contract(place: str, settings: Settings, tmp_path: Path) -> None:
    keeps_its_contract(pickle.loads(pickle.dumps(open_store(place, settings))), tmp_path)


def test_errors_have_words(hadoop: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(StorageError, match="ConnectionRefusedError"):
        open_store("webhdfs://127.0.0.1:1/x", settings).get("manifests/1.json")
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
    with pytest.raises(StorageError, match=r"AccessControlException.*the right to read and write there"):
        open_store(hadoop["fs.defaultFS"] + "/forbidden", settings).put("x", b"")


def test_who_was_replaced_may_do_nothing(place: str, settings: Settings, tmp_path: Path) -> None:
    store = open_store(place, settings)
    fences = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fences.append(Fence(place, lambda name=name: tmp_path / name, store))
        fences[-1].claim()
    with pytest.raises(FencedError, match="committing"):
        fences[0].check("committing")
    fences[1].check("committing")
    for each in fences:
        each.release()


@pytest.mark.parametrize("seconds", [0, 100_000])
def test_everything_in_hdfs(
    spark: SparkSession, hadoop: dict[str, str], place: str, settings: Settings, tmp_path: Path, seconds: int
) -> None:
    """Spark's logs and the state. The query is broken off, restarted and rescaled."""
    for name, value in hadoop.items():
        if name != "fs.defaultFS":
            spark.conf.set(name, value)

    def totals(rows: Any) -> Any:
        return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))

    with QueryTest(spark, tmp_path) as t:
        t.checkpoint = place  # type: ignore[assignment]
        rows = t.source("k long, ts timestamp, v long")
        t.start(totals, mode="update", instances=2, checkpointSeconds=seconds, versionsToKeep=3)
        for number in range(6):
            rows.add(*[(at % 7, datetime(2026, 1, 1, tzinfo=UTC), at * number) for at in range(50)])
            if number in (2, 4):
                t.abort("job-done" if number == 2 else "manifest-after")
                t.restart(instances=number)
            t.run()
        t.assert_same_as_spark()
        if seconds:
            t.query.checkpoint()
    checkpoint = Checkpoint(place, settings=lambda: settings)
    checked = verify(checkpoint, checkpoint.manifests.versions())
    assert not checked.broken
    assert checked.bytes
