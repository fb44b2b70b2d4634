"""A batch that is delivered again is the same batch, also for a sink that takes its rows as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.errors import CheckpointMismatchError
from headrace.testing import QueryTest

pytestmark = pytest.mark.spark


def query(rows: Any) -> dict[str, Any]:
    return {"plain": rows.filter("k is not null"), "counts": rows.groupBy("k").count()}


def test_a_replay_begins_where_the_batch_began(spark: SparkSession, tmp_path: Path) -> None:
    with QueryTest(spark, tmp_path) as t:
        rows = t.source("k string")
        t.start(query, {"counts": "update"})
        rows.add("k0")
        rows.add("k1")
        t.run()
        rows.add("k2")
        t.abort("manifest-after")
        offsets = t.checkpoint / "offsets"
        before = (offsets / "1").read_text()
        (offsets / "1").write_text("\n".join([*before.split("\n")[:2], (offsets / "0").read_text().split("\n")[2]]))
        (offsets / ".1.crc").unlink(missing_ok=True)
        with pytest.raises(CheckpointMismatchError, match="batch 1"):
            t.restart()
        (offsets / "1").write_text(before)
        t.restart()
        assert [t.rows("plain", batch) for batch in range(3)] == [[("k0",)], [("k1",)], [("k2",)]]
        t.assert_same_as_spark(sink="counts")
