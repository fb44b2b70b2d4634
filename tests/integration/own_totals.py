"""Running totals as users' own operators in both forms, and rows for them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

import headrace as hr

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, part int, ts timestamp, v long"


def rows(seed: int, count: int, begin_s: float = 0, length_s: float = 60, keys: int = 20) -> pa.Table:
    random = np.random.default_rng(seed)
    names = [None if k == 0 else f"key {k}" for k in random.integers(0, keys, count)]
    times = sorted(random.integers(int(begin_s * 1000), int((begin_s + length_s) * 1000), count).tolist())
    return pa.table(
        {
            "k": pa.array(names, pa.string()),
            "part": pa.array(random.integers(0, 2, count), pa.int32()),
            "ts": pa.array([START + timedelta(milliseconds=t) for t in times], pa.timestamp("us", tz="UTC")),
            "v": pa.array(random.integers(-100, 100, count), pa.int64()),
        }
    )


class Totals(hr.Processor):
    """Count and sum of each key, all keys at once."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        new = rows.group_by(["k", "part"]).aggregate([("v", "count"), ("v", "sum")])
        old = state.get(new)
        count = pc.add(new["v_count"], pc.fill_null(old["count"], 0))
        total = pc.add(new["v_sum"], pc.fill_null(old["total"], 0))
        totals = pa.table({"k": new["k"], "part": new["part"], "count": count, "total": total})
        state.put(totals)
        return totals


class TotalsPerKey(hr.KeyProcessor):
    """The same, key by key."""

    def process(self, key: Any, rows: Any, state: Any) -> Any:
        state.count = (state.count or 0) + len(rows)
        state.total = (state.total or 0) + sum(row.v for row in rows)
        yield key.k, key.part, state.count, state.total


OUT = "k string, part int, count long, total long"
KEPT = "count long, total long"


def totals(processor: Any) -> Any:
    return lambda s: s.groupBy("k", "part").process(processor, OUT, state=KEPT)


def per_key(process: Any) -> Any:
    return type("Mine", (hr.KeyProcessor,), {"process": lambda self, key, rows, state: process(key, rows, state)})()
