"""`headrace state` on a real checkpoint, in processes that never see PySpark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.cli import app, run

pytestmark = pytest.mark.spark

SCHEMA = "who string, ts timestamp, v long"
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)

# A module set to None cannot be imported.
WITHOUT_PYSPARK = "import sys; sys.modules['pyspark'] = None; from headrace.cli import main; main()"


def batches(spark: SparkSession, directory: Path, count: int) -> None:
    for at in range(count):
        rows = [(f"user-{k}", BEGIN + timedelta(seconds=30 * at + k), k + at) for k in range(4)]
        spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(str(directory))


@pytest.fixture(scope="module")
def sliding(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a sliding window over six batches."""
    root = tmp_path_factory.mktemp("sliding")
    batches(spark, root / "in", 6)
    query = (
        hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(root / "in")))
        .withWatermark("ts", "10 seconds")
        .groupBy("who", F.window("ts", "2 minutes", "1 minute"))
        .agg(F.avg("v").alias("mean"), F.max("v").alias("most"))
        .writeStream.format("parquet")
        .option("path", str(root / "out"))
        .option("checkpointLocation", str(root / "ckpt"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return root / "ckpt"


@pytest.fixture(scope="module")
def running(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a running aggregate over three batches."""
    root = tmp_path_factory.mktemp("running")
    batches(spark, root / "in", 3)
    query = (
        hr.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(root / "in")))
        .groupBy("who")
        .agg(F.count("*").alias("n"), F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(root / "ckpt"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return root / "ckpt"


def state(*args: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(app, ["state", *args])
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@pytest.mark.parametrize("command", [["show"], *(pytest.param(c, marks=pytest.mark.extra) for c in (["versions"], ["ls"], ["verify"]))])
def test_every_command_works_where_pyspark_cannot_be_imported(sliding: Path, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYSPARK, "state", *command, str(sliding)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((sliding / "headrace" / "leases").iterdir())


def test_state_is_exported_where_pyspark_cannot_be_imported(spark: SparkSession, running: Path, sliding: Path, tmp_path: Path) -> None:
    for number, (checkpoint, version) in enumerate(((running, []), (running, ["--version", "1"]), (sliding, []))):
        command = ["state", "export", str(checkpoint), str(tmp_path / str(number)), *version]
        done = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK, *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    newest, before, panes = (spark.read.parquet(str(tmp_path / str(number) / "aggregate")) for number in range(3))
    assert sorted(map(tuple, newest.collect())) == [(f"user-{k}", 3, 3 * k + 3) for k in range(4)]
    assert sorted(map(tuple, before.collect())) == [(f"user-{k}", 2, 2 * k + 1) for k in range(4)]
    assert panes.columns[:2] == ["who", "pane"]
    assert panes.count() > 0
    about = json.loads((tmp_path / "1" / "_export.json").read_text())
    assert (about["version"], about["stores"]) == (1, {"aggregate": {"rows": 4}})


def test_nothing_is_exported_over_other_files(running: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    code, _, err = state("export", str(running), str(tmp_path), capfd=capfd)
    assert code == 2
    assert "wanted a new or empty folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_versions_are_listed_with_what_they_hold(sliding: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = state("versions", str(sliding), capfd=capfd)
    assert code == 0
    lines = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [line[0] for line in lines] == ["0", "1", "2", "3", "4", "5"]
    # The newest event time is 8:02:33, the delay ten seconds.
    assert "2026-03-02 08:02:23" in out
    assert "2026-03-02 07:59:53" in out


def test_ls_shows_operators_layout_and_runs(sliding: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = state("ls", str(sliding), "--version", "2", capfd=capfd)
    assert code == 0
    assert "aggregate  version 2" in out
    assert "who: string" in out
    assert "h: uint64, k0: large_string, sub: int64" in out
    assert "-run.arrow" in out
    assert "2026-03-02 08:00:00 to 2026-03-02 08:00:00" in out
    assert "2026-03-02 08:01:00 to 2026-03-02 08:01:00" in out


def test_show_merges_runs_under_the_users_names(sliding: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = state("show", str(sliding), capfd=capfd)
    assert code == 0
    header = next(line for line in out.splitlines() if "who" in line)
    assert header.split() == ["who", "pane", "avg(v)", "sum", "avg(v)", "count", "max(v)"]
    # Batches 2 and 3 fall into the pane of 8:01, for each user: k + 2 and k + 3.
    row = next(line.split() for line in out.splitlines() if "user-1" in line and "08:01:00" in line)
    assert row == ["user-1", "2026-03-02", "08:01:00", "7.0", "2", "4"]
    assert "8 of 8 rows" in out


def test_show_equals_the_state_that_spark_shows(running: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = state("show", str(running), capfd=capfd)
    assert code == 0
    rows = sorted(line.split() for line in out.splitlines() if line.strip().startswith("user-"))
    assert rows == [[f"user-{k}", "3", str(3 * k + 3)] for k in range(4)]


def test_show_of_an_aggregate_without_keys(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    batches(spark, tmp_path / "in", 1)
    rows = hr.stream(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))).withWatermark("ts", "10 seconds")
    writer = rows.groupBy(F.window("ts", "1 hour")).agg(F.count("*").alias("n"), F.sum("v").alias("total")).writeStream.format("noop")
    writer.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start().awaitTermination()
    code, out, _ = state("show", str(tmp_path / "ckpt"), capfd=capfd)
    assert code == 0
    (row,) = [line.split() for line in out.splitlines() if "2026-03-02" in line]
    assert row[-2:] == ["4", "6"]


def test_show_of_nested_values_of_every_kind(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    batches(spark, tmp_path / "in", 1)
    rows = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")).withColumn("ar", F.expr("array(v, NULL, -v)"))
    rows = rows.withColumn("s", F.expr("struct(ar, map('x', array(v)) AS m)"))
    kept = hr.stream(rows).groupBy("who").agg(
        F.first("ar"), F.first("s"), F.max(F.struct("ar")), F.collect_list(F.struct("ar", "v")), F.collect_set("v"), F.collect_list("ar")
    )
    writer = kept.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(tmp_path / "ckpt"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    code, _, err = state("export", str(tmp_path / "ckpt"), str(tmp_path / "exported"), capfd=capfd)
    assert code == 0, err
    (found,) = spark.read.parquet(str(tmp_path / "exported" / "aggregate")).where("who = 'user-3'").collect()
    text = str(found.asDict(recursive=True))
    assert "[3, None, -3]" in text
    assert "'m': {'x': [3]}" in text
    assert state("show", str(tmp_path / "ckpt"), capfd=capfd)[0] == 0


def test_a_query_without_state_says_so(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    batches(spark, tmp_path / "in", 1)
    rows = hr.stream(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))).filter("v > 1")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ckpt"))
    writer.trigger(availableNow=True).start().awaitTermination()
    code, _, err = state("show", str(tmp_path / "ckpt"), capfd=capfd)
    assert (code, "this query keeps no state" in err) == (2, True)


def test_show_can_be_limited_and_asked_for_a_key_and_an_older_version(running: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "1 of 4 rows" in state("show", str(running), "--limit", "1", capfd=capfd)[1]
    _, out, _ = state("show", str(running), "--key", "who=user-3", "--version", "0", capfd=capfd)
    assert [line.split() for line in out.splitlines() if "user-" in line] == [["user-3", "1", "3"]]
    assert "no rows" in state("show", str(running), "--key", "who=nobody", capfd=capfd)[1]


def test_verify_is_content_with_an_intact_checkpoint(sliding: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = state("verify", str(sliding), "--all", capfd=capfd)
    assert code == 0
    assert "versions 0 to 5" in out
    assert "all intact" in out


def test_verify_names_every_broken_file(sliding: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sliding, tmp_path / "ckpt")
    manifest = json.loads((tmp_path / "ckpt/headrace/manifests/000000000005.json").read_text())["body"]
    first, second, *_ = sorted({ref["file"] for ref in manifest["operators"]["aggregate"]["runs"]})
    runs = tmp_path / "ckpt" / "headrace" / "runs"
    data = bytearray((runs / first).read_bytes())
    data[len(data) // 2] ^= 1
    (runs / first).write_bytes(data)
    (runs / second).write_bytes((runs / second).read_bytes()[:-8])
    code, out, _ = state("verify", str(tmp_path / "ckpt"), capfd=capfd)
    assert code == 1
    assert f"{first}: checksum" in out
    assert f"{second}: " in out
    assert "2 findings" in out


def test_verify_names_a_missing_file_and_a_broken_manifest(sliding: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sliding, tmp_path / "ckpt")
    path = tmp_path / "ckpt/headrace/manifests/000000000003.json"
    path.write_text(path.read_text().replace('"version":3', '"version":4'))
    newest = json.loads((tmp_path / "ckpt/headrace/manifests/000000000005.json").read_text())["body"]
    gone = newest["operators"]["aggregate"]["runs"][0]["file"]
    (tmp_path / "ckpt" / "headrace" / "runs" / gone).unlink()
    code, out, _ = state("verify", str(tmp_path / "ckpt"), "--all", capfd=capfd)
    assert code == 1
    assert f"{gone}: missing" in out
    assert "000000000003.json" in out
    assert "no version names" not in out, "they may be the broken manifest's"


def test_verify_notes_files_that_nobody_needs(sliding: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sliding, tmp_path / "ckpt")
    (tmp_path / "ckpt/headrace/runs/v000000000002-aggregate-i0-e1x00000000-a9-run.arrow").write_text("left by nobody")
    (tmp_path / "ckpt/headrace/leases/odd.json").write_text("{}")
    code, out, _ = state("verify", str(tmp_path / "ckpt"), "--all", capfd=capfd)
    assert code == 0
    assert "1 files of 14 bytes that no version names; the next start removes them" in out
    assert "odd.json: not a lease" in out


def test_show_of_a_broken_run_names_it(running: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(running, tmp_path / "ckpt")
    for path in (tmp_path / "ckpt" / "headrace" / "runs").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    code, _, err = state("show", str(tmp_path / "ckpt"), capfd=capfd)
    assert code == 2
    assert "-run.arrow" in err


@pytest.mark.parametrize("command", ["versions", "ls", "show", "verify"])
def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = state(command, str(tmp_path / "nowhere"), capfd=capfd)
    assert code == 2
    assert "the folder does not exist" in err


@pytest.mark.parametrize("command", ["ls", "show"])
def test_a_version_that_is_not_there_is_refused(running: Path, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = state(command, str(running), "--version", "99", capfd=capfd)
    assert code == 2
    assert "wanted version 99; found versions 0 to 2" in err


def test_a_wrong_operator_or_key_is_refused(running: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = state("show", str(running), "--operator", "join", capfd=capfd)
    assert (code, "the operators aggregate" in err) == (2, True)
    code, _, err = state("show", str(running), "--key", "name=x", capfd=capfd)
    assert (code, "with a name of who" in err) == (2, True)


def test_a_checkpoint_of_a_query_that_runs_is_readable(spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    batches(spark, tmp_path / "in", 1)
    query = (
        hr.stream(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")))
        .groupBy("who")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "ckpt"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        code, out, _ = state("show", str(tmp_path / "ckpt"), capfd=capfd)
        assert query.isActive
    finally:
        query.stop()
    assert code == 0
    assert "4 of 4 rows" in out
