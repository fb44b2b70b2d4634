"""A running query is changed from another terminal, and only by its owner."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import stat
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.cli import app, run

pytestmark = pytest.mark.spark


@dataclass
class Said:
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def ctl(checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """The command, by its own path through the endpoint; only the process is this one."""
    monkeypatch.setenv("COLUMNS", "200")

    def command(*args: str, location: Path = checkpoint) -> Said:
        capsys.readouterr()
        code = run(app, ["ctl", args[0], str(location), *args[1:]])
        return Said(code, *capsys.readouterr())

    return command


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


@pytest.fixture
def query(spark: SparkSession, checkpoint: Path) -> Iterator[hr.HeadraceQuery]:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    counted = hr.stream(rows).groupBy((F.col("value") % 7).alias("k")).count()
    writer = counted.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(checkpoint))
    started = writer.option("headrace.instances", 2).trigger(processingTime="300 milliseconds").start()
    yield started
    started.stop()


def test_another_terminal_changes_a_running_query(query: hr.HeadraceQuery, checkpoint: Path, ctl: Callable[..., Said]) -> None:
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "ctl", "rescale", str(checkpoint), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert query.routing()["aggregate"].instances == 3
    assert "aggregate: 2 → 3 instances, " in done.stdout
    assert ", nothing fetched\n" in done.stdout
    assert ctl("move", "0-9,4095", "--to", "1").returncode == 0
    owners = query.routing()["aggregate"].table()
    assert owners[:10].tolist() == [1] * 10
    assert owners[4095] == 1
    for args, message in [
        (("rescale", "2", "-o", "jion"), "wanted an operator of the query: aggregate; found 'jion'"),
        (("move", "x", "--to", "1"), "slots such as 7"),
        (("move", "5", "--to", "9"), "an instance of aggregate, 0 to 2"),
    ]:
        refused = ctl(*args)
        assert refused.returncode == 2
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr
    while query.lastProgress is None:
        query.awaitTermination(1)
    shown = ctl("status")
    assert "100 rows" in shown.stdout, shown.stdout + shown.stderr
    assert json.loads(ctl("status", "--json").stdout)["headrace"]["rows"] == 100
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_top_shows_a_running_query_in_80_by_24_until_q_is_pressed(query: hr.HeadraceQuery, checkpoint: Path) -> None:
    while query.lastProgress is None:
        query.awaitTermination(0.1)
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "top", str(checkpoint), "--seconds", "0.2"]
    terminal, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as top:
        os.close(theirs)
        shown = ""
        while "aggregate 1" not in shown:
            shown += os.read(terminal, 10_000).decode(errors="replace")
        query.rescale(3)
        while "scale out 2 → 3" not in shown or "aggregate 2" not in shown:
            shown += os.read(terminal, 10_000).decode(errors="replace")
        os.write(terminal, b"q")
        with contextlib.suppress(OSError):
            while os.read(terminal, 10_000):
                pass
        assert top.wait(60) == 0
    os.close(terminal)
    for part in ("rows/s", "latency", "left behind", "state", "q or Ctrl-C leaves"):
        assert part in shown


def test_only_the_owner_s_token_opens_it(query: hr.HeadraceQuery, checkpoint: Path) -> None:
    path = checkpoint / "headrace" / "control.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    about = json.loads(path.read_text())
    before = query.routing()
    for token, body, code in [
        ("wrong", '{"do": "rescale", "instances": 4}', 403),
        ("", "{}", 403),
        (about["token"], "no json", 400),
        (about["token"], "[1]", 400),
        (about["token"], '{"do": "rescale", "instances": "4"}', 400),
        (about["token"], '{"do": "rescale", "instances": 4, "operator": ["x"]}', 400),
        (about["token"], '{"do": "move", "slots": [["a", "b"]], "to": 0}', 400),
    ]:
        connection = http.client.HTTPConnection("127.0.0.1", about["port"], timeout=10)
        connection.request("POST", "/", body, {"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == code
        connection.close()
    assert query.routing() == before


def test_a_query_that_has_ended_is_said_to_have_ended(
    query: hr.HeadraceQuery, checkpoint: Path, tmp_path: Path, ctl: Callable[..., Said]
) -> None:
    query.stop()
    assert not (checkpoint / "headrace" / "control.json").exists()
    refused = ctl("rescale", "3")
    assert refused.returncode == 2
    assert "wanted a query that runs on this checkpoint; found none" in refused.stderr
    # A process that was killed leaves its file behind.
    (checkpoint / "headrace" / "control.json").write_text('{"port": 1, "token": "x", "process": 4194304}')
    assert "does not answer" in ctl("rescale", "3").stderr
    (checkpoint / "headrace" / "control.json").write_text("{")
    assert "restart the query" in ctl("rescale", "3").stderr
    assert "checkpoint of a Headrace query" in ctl("rescale", "3", location=tmp_path / "nowhere").stderr
