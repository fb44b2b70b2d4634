"""A kill at a random moment, while the routing changes too; ``make chaos`` does it for as long as one likes."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.runtime.failpoints import VARIABLE
from tests.crash.batches import as_read_by, batches
from tests.crash.conftest import Undisturbed
from tests.crash.driver import start
from tests.crash.faults import kill_at_random
from tests.crash.harness import Left, Program, write_input

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

KILLS = 1


def test_killed_at_random_moments(tmp_path: Path, undisturbed: Undisturbed) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or int.from_bytes(os.urandom(3)))
    print(f"seed {seed}: repeat with HEADRACE_SEED={seed}")
    random = Random(seed)
    # The graph of many operators takes several times as long; ``make chaos`` kills it too.
    kind = random.choice(("windowed", "dedup", "running"))
    source = write_input(tmp_path / "input", files=9, seed=seed)
    program = Program(kind, source, tmp_path / "crashed", changes=seed)
    for _ in range(KILLS):
        print(kill_at_random(program, random, random.randint(1, 3)))
    program.finish(2)
    difference = Left.of(program).difference(undisturbed(kind, as_read_by(program, tmp_path / "joined"), tmp_path / "undisturbed"))
    assert not difference, f"seed {seed}: {difference}"


def test_killed_between_spark_s_notes_of_files_and_of_the_batch(
    spark: SparkSession, tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_input(tmp_path / "input", files=5, seed=5)
    program = Program("windowed", source, tmp_path / "crashed")
    monkeypatch.setenv(VARIABLE, "batch-begin@2=raise")
    with pytest.raises(StreamingQueryException, match="batch-begin@2"):
        start(spark, program.kind, source, program.output, program.checkpoint, 2).awaitTermination()
    monkeypatch.delenv(VARIABLE)
    for name in ("2", ".2.crc"):
        (program.checkpoint / "offsets" / name).unlink(missing_ok=True)
    start(spark, program.kind, source, program.output, program.checkpoint, 2).awaitTermination()
    assert [len(files) for files in batches(program)] == [1, 1, 2, 1]
    expected = undisturbed(program.kind, as_read_by(program, tmp_path / "joined"), tmp_path / "undisturbed")
    assert not Left.of(program).difference(expected)
