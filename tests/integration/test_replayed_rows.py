"""A batch that is delivered again is the same batch, also for a sink that takes its rows as they come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import BatchFailedError, CheckpointMismatchError
from headrace.runtime.failpoints import VARIABLE

pytestmark = pytest.mark.spark


def test_a_replay_begins_where_the_batch_began(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    told: list[tuple[int, list[str]]] = []
    for number in range(3):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"k": f"k{number}"}))

    def run() -> None:
        rows = hr.stream(spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in")))
        plain = rows.filter("k is not null").writeStream.foreachBatch(
            lambda rows, batch: told.append((batch, [r.k for r in rows.collect()]))
        )
        counts = rows.groupBy("k").count().writeStream.outputMode("update").foreachBatch(lambda rows, batch: None)
        hr.start(plain, counts, checkpointLocation=str(tmp_path / "checkpoint"), availableNow=True).awaitTermination()

    monkeypatch.setenv(VARIABLE, "manifest-after@2=raise")
    with pytest.raises(BatchFailedError):
        run()
    monkeypatch.delenv(VARIABLE)
    offsets = tmp_path / "checkpoint" / "offsets"
    before = (offsets / "1").read_text()
    (offsets / "1").write_text("\n".join([*before.split("\n")[:2], (offsets / "0").read_text().split("\n")[2]]))
    (offsets / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointMismatchError, match="batch 1"):
        run()
    (offsets / "1").write_text(before)
    run()
    assert sorted(told) == [(0, told[0][1]), (1, told[1][1]), (2, told[2][1])]
    assert sorted(rows for _, rows in told) == [["k0"], ["k1"], ["k2"]]
