"""The driver is killed while a query is being replaced. A restart with the old or the new program has the right state, or is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.chaos.processes import kill_session
from headrace.errors import CheckpointMismatchError
from headrace.runtime.failpoints import ONCE, VARIABLE
from tests.crash.harness import KILLED, ROOT, RUN_SECONDS_MAX
from tests.crash.replaced import NEW, OLD, SCHEMA, counts, offer, results, start, sums

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow]

BEFORE = ("replace-stopped@2", "backfill@1", "manifest-before@3")
"""Points before the version of the change: the checkpoint is still the old query's."""
AFTER = ("manifest-after@3", "deliver-after@3")
"""Points behind it: the checkpoint is the new query's."""


def killed_at(point: str, folder: Path) -> None:
    """Run the program until it is killed at this point."""
    folder.mkdir()
    marks = folder / "marks"
    marks.mkdir()
    environment = os.environ | {VARIABLE: point, ONCE: str(marks)}
    command = [sys.executable, "-m", "tests.crash.replaced", str(folder)]
    with open(folder / "program.log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(RUN_SECONDS_MAX)
        finally:
            kill_session(process)
    assert code == KILLED, (folder / "program.log").read_text()[-4000:]


def answer(spark: SparkSession, folder: Path, name: str) -> dict[str, int]:
    """Spark's batch answer over all rows."""
    batch = spark.read.schema(SCHEMA).json(str(folder / "in"))
    kind = {"sums": sums, "counts": counts}[name]
    return {row[0]: row[1] for row in kind(batch).collect()}


@pytest.mark.parametrize("point", [BEFORE[2], *(pytest.param(point, marks=pytest.mark.extra) for point in (*BEFORE[:2], *AFTER))])
def test_a_driver_is_killed_while_its_query_is_replaced(point: str, spark: SparkSession, tmp_path: Path) -> None:
    folder, saved = tmp_path / "query", tmp_path / "saved"
    killed_at(point, folder)
    shutil.copytree(folder, saved)
    # The old program goes on as if nothing had been tried, or is told that the query has changed.
    offer(folder, 3)
    if point in AFTER:
        with pytest.raises(CheckpointMismatchError, match="missing: counts"):
            start(spark, folder, OLD)
    else:
        query = start(spark, folder, OLD)
        query.processAllAvailable()
        query.stop()
        assert results(folder, "sums") == answer(spark, folder, "sums")
        assert not results(folder, "counts")
    # The new program: its change is made now, or was made already.
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)
    offer(folder, 3)
    if point in BEFORE:
        with pytest.raises(CheckpointMismatchError, match="new: counts"):
            start(spark, folder, NEW)
    query = start(spark, folder, NEW, **({"headrace.operatorChanges": "backfill"} if point in BEFORE else {}))
    query.processAllAvailable()
    query.stop()
    for name in ("sums", "counts"):
        assert results(folder, name) == answer(spark, folder, name), name
