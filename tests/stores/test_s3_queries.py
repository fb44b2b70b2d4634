"""Queries whose state is in S3 alone: a local server, reached through a proxy. Spark's own logs are in a folder here.

All results are compared with Spark's batch answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.store.proxy import Fault, Proxy, Request
from benchmarks.store.server import KEY, SECRET
from headrace.cli import app, run
from headrace.errors import CheckpointMismatchError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.places import Places
from headrace.runtime.verification import verify
from headrace.testing import QueryTest
from tests.stores.conftest import settings_of

pytestmark = pytest.mark.spark

ROWS = "k long, ts timestamp, v long"
NEVER = 100_000


@pytest.fixture
def t(s3_spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(s3_spark, tmp_path) as made:
        yield made


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def some_rows(seed: int, begin_s: int, count: int = 60) -> list[tuple[int, datetime, int]]:
    random = Random(seed)
    return [(random.randrange(30), at(begin_s + random.random() * 40), random.randrange(100)) for _ in range(count)]


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def windows_of_windows(rows: Any) -> Any:
    minutes = rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "20 seconds")).agg(F.sum("v").alias("s"))
    return minutes.groupBy(F.window("window", "1 minute")).agg(F.max("s").alias("m"), F.count("*").alias("n"))


def checkpoint_of(t: QueryTest, proxy: Proxy) -> Checkpoint:
    return Checkpoint(str(t.checkpoint), settings=lambda: settings_of(proxy.port))


@pytest.mark.parametrize(
    ("query", "mode", "seconds"),
    [
        (totals, "update", 0),
        pytest.param(totals, "update", NEVER, marks=pytest.mark.extra),
        pytest.param(windows_of_windows, "append", 0, marks=pytest.mark.extra),
        pytest.param(windows_of_windows, "append", NEVER, marks=pytest.mark.extra),
    ],
)
def test_restarts_rescales_and_faults(t: QueryTest, proxy: Proxy, place: str, query: Callable[..., Any], mode: str, seconds: int) -> None:
    """Requests are refused now and then, answers are lost, and lists lag."""
    random = Random(5)

    def faulty(request: Request) -> Fault | None:
        draw = random.random()
        return Fault(busy=True) if draw < 0.02 else Fault(silent=True) if draw < 0.04 else None

    proxy.rule, proxy.lag_s = faulty, 2.0
    rows = t.source(ROWS)
    t.start(query, mode=mode, instances=2, stateLocation=place, checkpointSeconds=seconds, versionsToKeep=3)
    for number in range(3):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    if seconds:
        assert t.query.checkpoint() == 2
    t.rescale(3)
    rows.add(*some_rows(3, 90))
    t.run()
    for at_batch, point in ((4, "job-done"), (5, "manifest-after"), (6, "deliver-after")):
        rows.add(*some_rows(at_batch, 30 * at_batch))
        t.abort(point)
        t.restart(instances=at_batch - 3)
        t.run()
    rows.add(*some_rows(7, 210))
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()
    assert t.rows()
    if query is totals:
        expected = {row.k: row.n for row in t.query.state().collect()}
        assert sum(expected.values()) == 8 * 60 + 1
    t.stop()
    found = checkpoint_of(t, proxy)
    assert found.location == str(t.checkpoint)
    assert not list((t.checkpoint / "headrace").glob("[!e]*")), "only the note that says where the state is"
    proxy.lag_s = 0
    checked = verify(found, found.manifests.versions())
    assert not checked.broken
    assert checked.bytes


def test_another_place_is_refused(t: QueryTest, proxy: Proxy, place: str) -> None:
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=1, stateLocation=place)
    rows.add(*some_rows(1, 0))
    t.run()
    t.stop()
    assert Places.of(str(t.checkpoint), "", lambda: settings_of(proxy.port)).state == place
    with pytest.raises(CheckpointMismatchError, match=f"found that it is at {place}"):
        Places.of(str(t.checkpoint), place + "/other", lambda: settings_of(proxy.port))


@pytest.mark.extra
def test_commands_find_the_state(
    t: QueryTest, proxy: Proxy, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run without Spark, so they take address and credentials from the environment."""
    known = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}", "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "200")
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=2, stateLocation=place)
    rows.add(*some_rows(1, 0))
    t.run()

    def said(*words: str) -> str:
        capsys.readouterr()
        assert run(app, list(words)) == 0
        return capsys.readouterr().out

    # The state is found from the place of Spark's logs, and by its own address.
    for location in (str(t.checkpoint), place):
        assert " 0 " in said("state", "versions", location)
        assert "values  n, s" in said("state", "ls", location)
        keys = len(t.state())
        assert f"{keys} of {keys} rows" in said("state", "show", location, "--limit", "40")
    assert "all intact" in said("state", "verify", str(t.checkpoint))
    assert "aggregate" in said("ctl", str(t.checkpoint), "rescale", "3")
    rows.add(*some_rows(2, 40))
    t.run()
    assert t.query.lastProgress is not None
    assert len(t.query.lastProgress["headrace"]["instances"]) == 3
    assert SECRET not in str(t.query.recentProgress)
    t.assert_same_as_spark()
