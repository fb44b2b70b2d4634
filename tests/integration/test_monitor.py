"""The monitor of a real query: what it says is what the query did, while it runs, when it is changed, and after its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.dashboard import live
from headrace.runtime.history_files import HistoryReader
from headrace.sim.replay import batches_of
from tests.unit.dashboard.recorded import Client, served

pytestmark = pytest.mark.spark

NAME = "<script>alert(1)</script>"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


def started(spark: SparkSession, checkpoint: Path, **options: Any) -> hr.HeadraceQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    counted = hr.stream(rows).groupBy((F.col("value") % 7).alias("k")).count()
    writer = counted.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint)).queryName(NAME)
    return writer.options(**{"headrace.instances": 2, "headrace.ui": True} | options).trigger(processingTime="200 milliseconds").start()


@pytest.fixture
def query(spark: SparkSession, checkpoint: Path) -> Iterator[hr.HeadraceQuery]:
    running = started(spark, checkpoint)
    yield running
    running.stop()


def until(found: Callable[[], Any], seconds_max: float = 60.0) -> Any:
    """What is found, as soon as it is true."""
    deadline = time.monotonic() + seconds_max
    while not (value := found()):
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)
    return value


def asking(query: hr.HeadraceQuery) -> tuple[Client, str]:
    """A client with the token, and the path of the query."""
    server = live._server
    assert server is not None
    assert query.ui is not None
    address, _, place = query.ui.partition("#/")
    assert address == server.url
    return Client(server).bearer(), f"/api/queries/{place}"


def test_a_running_query_is_shown_and_changed(query: hr.HeadraceQuery, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, path = asking(query)
    summary = until(lambda: client.get(path)["summary"]["rate"] and client.get(path)["summary"])
    assert (summary["name"], summary["state"], summary["instances"]) == (NAME, "running", {"aggregate": 2})
    assert summary["share"] == 1.0
    about = client.get(path)["about"]
    kinds = [(node["kind"], node["runs"]) for node in about["graph"]["nodes"]]
    assert kinds == [("source", "JVM"), ("stateful", "Python"), ("sink", "JVM")]
    assert "Python over Arrow" in about["graph"]["nodes"][1]["plan"]
    # The series are the progress of the batches.
    series = until(lambda: len(client.get(f"{path}/series")["series"]["v"]) > 3 and client.get(f"{path}/series"))["series"]
    version = series["v"][2]
    told = next(each["headrace"] for each in query.recentProgress if each["headrace"]["version"] == version)
    assert series["ms"][2] == told["batchMs"]
    assert series["operators"]["aggregate"]["instances"][2] == 2
    batch = client.get(f"{path}/batches/{version}")
    assert (batch["rows"], batch["phasesMs"]) == (100, told["phasesMs"])
    assert batch["durationMs"]["triggerExecution"] > 0
    # A dry run changes nothing, and says what the change then does.
    write = {"Content-Type": "application/json", "Origin": client.origin}
    before = query.routing()
    planned = json.loads(client.send("POST", f"{path}/preview", {"do": "rescale", "instances": 3}, **write)[2])["preview"]["aggregate"]
    assert query.routing() == before
    assert (planned["instancesBefore"], planned["instances"]) == (2, 3)
    assert sum(planned["shares"]) == pytest.approx(1, abs=0.01)
    assert client.send("POST", f"{path}/do", {"do": "rescale", "instances": 3}, **write)[0] == 200
    assert query.routing()["aggregate"].instances == 3
    change = until(lambda: [each for each in client.get(f"{path}/series")["events"] if each["kind"] == "change"])[0]
    assert (change["instancesBefore"], change["instances"]) == (2, 3)
    status, _, refusal = client.send("POST", f"{path}/do", {"do": "move", "slots": [[0, 1]], "to": 9}, **write)
    assert status == 400
    assert "an instance of aggregate, 0 to 2" in json.loads(refusal)["error"]
    assert client.send("POST", f"{path}/do", {"do": "status"}, **write)[0] == 400
    assert set(client.get(f"{path}/now")["routing"]) == {"aggregate"}


def test_state_at_kept_versions_is_that_of_the_query(query: hr.HeadraceQuery) -> None:
    client, path = asking(query)
    until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 4)
    query.stop()
    versions = [each["version"] for each in client.get(f"{path}/versions")["versions"]]
    newest = versions[-1]
    wanted = {row.k: row["count"] for row in query.state(version=newest).collect()}
    found = client.get(f"{path}/table?store=aggregate&version={newest}")
    assert {row[0]: row[-1] for row in found["rows"]} == wanted
    assert (found["total"], found["complete"], found["columns"][0]["name"]) == (7, True, "k")
    one = client.get(f'{path}/table?store=aggregate&version={newest}&where={{"k":"3"}}')
    assert [(row[0], row[-1]) for row in one["rows"]] == [(3, wanted[3])]
    pages = [client.get(f"{path}/table?store=aggregate&offset={at}&limit=3")["rows"] for at in (0, 3, 6)]
    assert [len(each) for each in pages] == [3, 3, 1]
    assert sorted(row[0] for rows in pages for row in rows) == list(range(7))
    before = {row.k: row["count"] for row in query.state(version=newest - 1).collect()}
    answer = client.get(f"{path}/difference?store=aggregate&before={newest - 1}&after={newest}")
    assert (answer["came"], answer["gone"], answer["changed"], answer["complete"]) == (0, 0, 7, True)
    told = {each["key"][0]: (each["before"][-1], each["after"][-1]) for each in answer["rows"]}
    assert told == {k: (before[k], wanted[k]) for k in wanted}
    assert client.get(f"{path}/difference?store=aggregate&before={newest}&after={newest}")["same"] == 7
    widest = client.get(f"{path}/difference?store=aggregate")
    assert (widest["before"], widest["after"]) == (versions[0], newest)
    (store,) = client.get(f"{path}/stores")["stores"]
    assert (store["keys"], store["depthMax"] >= 1) == (["k"], True)
    slots = client.get(f"{path}/slots")
    assert [sum(hi - lo for lo, hi in ranges) for ranges in slots["ranges"]] == [2048, 2048]
    assert sum(slots["rows"]) == 100 * slots["batches"]
    for wrong, message in [
        ("table?store=nothing", "an operator's state: aggregate"),
        (f"table?store=aggregate&version={newest + 99}", "wanted version"),
        ('table?store=aggregate&where={"k":"x"}', "a value of type int64"),
        ('table?store=aggregate&where={"j":"1"}', "a column of k"),
        ("table?store=aggregate&where=[1]", "an object of columns and texts"),
        ("table?store=aggregate&offset=-1", "a whole number"),
        (f"difference?store=aggregate&before={newest + 99}", "wanted version"),
        ("slots?operator=x", "an operator: aggregate"),
    ]:
        status, _, text = client.send("GET", f"{path}/{wrong}")
        assert status == 400, wrong
        assert message in json.loads(text)["error"]


def test_what_if_replays_the_history(query: hr.HeadraceQuery) -> None:
    client, path = asking(query)
    until(lambda: len(client.get(f"{path}/series")["series"]["v"]) > 12)
    settings = {"policy": "elastic-manager", "min": 1, "max": 4, "period_s": 0.3, "cooldown_s": 0.1}
    settings |= {"lower": 0.9, "upper": 0.99, "target": 0.95}
    write = {"Content-Type": "application/json", "Origin": client.origin}
    found = json.loads(client.send("POST", f"{path}/whatif", settings, **write)[2])
    assert found["operators"]["aggregate"]["was"][-1] == 2
    assert found["operators"]["aggregate"]["would"][-1] == 1, "it would have scaled in"
    assert any(each["outcome"] == "performed" and each["what"] == "scale in" for each in found["decisions"])
    assert found["instanceSeconds"]["would"] < found["instanceSeconds"]["was"]
    refused: list[tuple[dict[str, Any], str]] = [({"policy": "no"}, "a policy of elastic-manager"), ({"speed": 1}, "settings of hr.E")]
    for wrong, message in [*refused, ({"min": 0}, "min")]:
        status, _, text = client.send("POST", f"{path}/whatif", wrong, **write)
        assert (status, message in json.loads(text)["error"]) == (400, True), text
    assert client.get(f"{path}/faults")["executors"] is None


def test_after_its_end_the_history_says_all_that_happened(spark: SparkSession, checkpoint: Path) -> None:
    query = started(spark, checkpoint, **{"headrace.ui": False})
    assert query.ui is None
    until(lambda: query.lastProgress and query.lastProgress["batchId"] >= 3)
    query.rescale(1)
    until(lambda: any(each["headrace"]["changes"] for each in query.recentProgress))
    query.stop()
    told = {each["headrace"]["version"]: each["headrace"] for each in query.recentProgress}
    reader = HistoryReader(checkpoint / "headrace" / "history")
    assert {each["v"]: each["rows"] for each in reader.points()} == {version: each["rows"] for version, each in told.items()}
    whole = {each["headrace"]["version"]: each["headrace"] for each in reader.batches()}
    assert whole.keys() == told.keys()
    assert all(whole[version]["instances"] == json.loads(json.dumps(told[version]["instances"])) for version in told)
    assert len(batches_of(reader.batches())) == len(told)
    assert [each["kind"] for each in reader.events()] == ["start", "change", "end"]
    server = served(checkpoint)
    try:
        (summary,) = Client(server).bearer().get("/api/queries")["queries"]
        assert (summary["state"], summary["name"]) == ("ended", NAME)
        assert Client(server).bearer().get(f"/api/queries/{summary['id']}/now") == {}
    finally:
        server.stop()


def test_a_query_without_history_runs_as_well(spark: SparkSession, checkpoint: Path) -> None:
    query = started(spark, checkpoint, **{"headrace.history": False, "headrace.ui": False})
    until(lambda: query.lastProgress is not None)
    query.stop()
    assert not (checkpoint / "headrace" / "history").exists()


def test_a_port_that_is_taken_leaves_the_query_without_a_monitor(
    spark: SparkSession, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = served()
    monkeypatch.setattr(live, "_server", None)
    try:
        query = started(spark, checkpoint, **{"headrace.uiPort": other.port})
        assert query.ui is None
        query.stop()
        assert f"no monitor: monitor: wanted to listen on 127.0.0.1:{other.port}" in capsys.readouterr().err
    finally:
        other.stop()
