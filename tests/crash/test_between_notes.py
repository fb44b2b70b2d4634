"""A kill between two notes of Spark's; kills at random moments are the campaign's (``tests/chaos``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import BatchFailedError
from headrace.runtime.failpoints import VARIABLE
from tests.crash.batches import as_read_by, batches
from tests.crash.conftest import Undisturbed
from tests.crash.driver import start
from tests.crash.harness import Left, Program, write_input

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def test_killed_between_spark_s_notes_of_files_and_of_the_batch(
    spark: SparkSession, tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_input(tmp_path / "input", files=5, seed=5)
    program = Program("windowed", source, tmp_path / "crashed")
    monkeypatch.setenv(VARIABLE, "batch-begin@2=raise")
    with pytest.raises(BatchFailedError, match="batch-begin@2"):
        start(spark, program.kind, source, program.output, program.checkpoint, 2).awaitTermination()
    monkeypatch.delenv(VARIABLE)
    for name in ("2", ".2.crc"):
        (program.checkpoint / "offsets" / name).unlink(missing_ok=True)
    start(spark, program.kind, source, program.output, program.checkpoint, 2).awaitTermination()
    assert [len(files) for files in batches(program.checkpoint)] == [1, 1, 2, 1]
    expected = undisturbed(program.kind, as_read_by(program, tmp_path / "joined"), tmp_path / "undisturbed")
    assert not Left.of(program).difference(expected)
