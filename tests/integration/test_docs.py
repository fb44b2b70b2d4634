"""The pages that teach are true: their Python and their commands are run in order, and print what the pages say."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

import headrace as hr
from headrace.cli import app, run
from headrace.dashboard.security import token_of

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sh|text|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATHS = re.compile(r"""(?P<before>["' ])(?P<path>(sales|ckpt2?|calls|heavy|in)/[^"' ]*)""")
ELSEWHERE = ("headrace cluster", "headrace --install-completion", "headrace version")
"""Commands that other tests run, or that change the user's shell."""


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page with their languages, in order."""
    return BLOCK.findall((ROOT / page).read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[Path]:
    """The working directory. Queries that a page leaves running are stopped."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for query in spark.streams.active:
        query.stop()


def placed(text: str, folder: Path) -> str:
    """A block whose relative paths lie in the folder: Spark's JVM has a working directory of its own."""
    return PATHS.sub(rf"\g<before>{folder}/\g<path>", text)


def commands(text: str, folder: Path) -> list[list[str]]:
    """The words of our commands in a block."""
    lines = [placed(line.split("#")[0].strip(), folder) for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("headrace ") and not line.startswith(ELSEWHERE)]


def test_the_first_hour_is_as_the_page_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "start"}
    printed, ran = "", 0
    for language, text in blocks("docs/start.md"):
        if language == "text":
            assert printed.strip() == text.strip()
            continue
        if language == "python":
            exec(compile(placed(text, folder), "start.md", "exec"), names)
        else:
            for words in commands(text, folder):
                assert run(app, words) == 0, (words, capsys.readouterr())
                ran += 1
        printed = capsys.readouterr().out
        if "rescale" in text:
            assert "aggregate: 2 → 4 instances, " in printed
            assert ", nothing fetched" in printed
    assert ran == 5
    assert not names["query"].isActive


def test_the_first_program_of_the_readme_runs(folder: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("ada", f"2026-01-01 12:{minute:02}:00", 700) for minute in (0, 30)] + [("bob", "2026-01-01 16:00:00", 5)]
    spark.createDataFrame(rows, "src string, ts string, seconds long").selectExpr("src", "ts::timestamp ts", "seconds").write.parquet(
        str(folder / "calls")
    )
    names: dict[str, Any] = {}
    try:
        exec(placed(blocks("README.md")[0][1], folder), names)
        names["query"].processAllAvailable()
    finally:
        if "query" in names:
            names["query"].stop()
    heavy = spark.read.parquet(str(folder / "heavy"))
    assert {row.src for row in heavy.collect()} == {"ada"}
    assert "== Headrace plan ==" in capsys.readouterr().out


def test_what_the_page_on_watching_shows_works(
    folder: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners: list[Any] = []
    manager = type(spark.streams)
    monkeypatch.setattr(manager, "addListener", lambda self, listener: listeners.append(listener))
    Path("in").mkdir()
    Path("in/0.json").write_text('{"k": 1}\n')
    totals = hr.stream(spark.readStream.schema("k long").json(str(folder / "in"))).groupBy("k").count()
    names: dict[str, Any] = {"totals": totals, "spark": spark, "hr": hr}
    for language, text in blocks("docs/monitoring.md"):
        if language == "sh":
            subprocess.run(["bash", "-c", text], check=True)
            assert len(token_of("monitor.token")) == 32
            continue
        if language == "yaml":
            (job,) = yaml.safe_load(text)["scrape_configs"]
            assert (job["authorization"]["credentials_file"], job["static_configs"]) == ("monitor.token", [{"targets": ["127.0.0.1:4040"]}])
            continue
        assert language == "python"
        # A fixed port may be taken on the machine that tests.
        exec(placed(text, folder).replace("9108", "0"), names)
        if "metrics_url" in text:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics\n", capsys.readouterr().out)
        if (query := names.pop("query", None)) is not None:
            query.processAllAvailable()
            query.stop()
    assert [type(each).__name__ for each in listeners] == ["Enriched"]


@pytest.mark.extra
@pytest.mark.slow
def test_the_cluster_of_the_first_hour_starts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = [text for language, text in blocks("docs/start.md") if language == "sh" and "cluster up" in text]
    for line in text.splitlines():
        assert run(app, shlex.split(line)[1:]) == 0, capsys.readouterr()
