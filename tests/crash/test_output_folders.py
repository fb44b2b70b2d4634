"""Output folders and checkpoints of different moments: what a folder's log would skip, or lacks, is refused, never lost in silence."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import SinkError

pytestmark = pytest.mark.spark

ROWS = 3
COMPACTED_EVERY = 10
"""How often Spark compacts the log of an output folder."""


class Case:
    """A query that writes every row of its source once, to one folder or several."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        (folder / "in").mkdir()

    def offer(self, files: int) -> None:
        """Each file is one batch."""
        for number in range(self.files, self.files + files):
            (self.folder / "in" / f"{number:03d}.json").write_text("".join(f'{{"k": {number}, "v": {v}}}\n' for v in range(ROWS)))
        self.files += files

    def run(self, *outputs: str, checkpoint: str = "checkpoint") -> None:
        read = self.spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1)
        rows = hr.stream(read.json(str(self.folder / "in"))).dropDuplicates()
        writers = [rows.writeStream.format("parquet").option("path", str(self.folder / each)) for each in outputs]
        hr.start(*writers, checkpointLocation=str(self.folder / checkpoint), availableNow=True).awaitTermination()

    def check(self, output: str, files: Sequence[int]) -> None:
        """The folder has the rows of these files, once."""
        found = Counter(row.k for row in self.spark.read.parquet(str(self.folder / output)).collect())
        assert found == dict.fromkeys(files, ROWS)

    def copy(self, name: str) -> None:
        shutil.copytree(self.folder / name, self.folder / f"{name} of yesterday")

    def restore(self, name: str) -> None:
        shutil.rmtree(self.folder / name)
        shutil.move(self.folder / f"{name} of yesterday", self.folder / name)


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Case:
    return Case(spark, tmp_path)


def test_a_checkpoint_of_yesterday_does_not_go_on_with_the_output_of_today(case: Case) -> None:
    """The folder's log would take new rows for batches that it has, and skip them."""
    case.offer(2)
    case.run("out")
    case.copy("checkpoint")
    case.copy("out")
    case.offer(2)
    case.run("out")
    case.restore("checkpoint")
    with pytest.raises(SinkError, match=r"skip batches up to 3 .* from one moment"):
        case.run("out")
    case.restore("out")
    case.offer(1)
    case.run("out")
    case.check("out", range(5))


def test_an_output_of_yesterday_does_not_go_on_with_the_checkpoint_of_today(case: Case) -> None:
    case.offer(2)
    case.run("out")
    case.copy("out")
    case.offer(2)
    case.run("out")
    case.restore("out")
    with pytest.raises(SinkError, match=r"batches 2 to 3 would be missing .* from one moment"):
        case.run("out")


def test_the_folder_of_a_query_that_has_run_longer_is_refused(case: Case) -> None:
    case.offer(1)
    case.run("mine")
    case.offer(1)
    case.run("theirs", checkpoint="other")
    with pytest.raises(SinkError, match="skip batches up to 1"):
        case.run("theirs")
    case.run("mine")
    case.check("mine", range(2))


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(1, id="before the first compaction"),
        pytest.param(2 * COMPACTED_EVERY + 1, id="behind the second", marks=pytest.mark.extra),
    ],
)
def test_a_new_output_folder_of_a_query_that_has_run_before(case: Case, before: int) -> None:
    """It can be read at once, and its log can be compacted."""
    case.offer(before)
    case.run("out")
    case.offer(1)
    case.run("out", "new")
    case.check("new", [before])
    case.offer(2 * COMPACTED_EVERY)
    case.run("new", "out")
    case.offer(1)
    case.run("new")
    case.check("new", range(before, case.files))
    case.check("out", range(case.files - 1))
