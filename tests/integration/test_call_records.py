"""StreamCloud's call records: the generator is what it says, and two of the queries against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import headrace as hr
from benchmarks.call_records.check import expected_by_district
from benchmarks.call_records.query import BY_DISTRICT, aggregate, durations
from benchmarks.call_records.records import AWAY_ONE_IN, CONNECTION_CENTS, LASTS_S_MAX, calls

pytestmark = pytest.mark.spark

ROWS, DISTRICTS = 2_000, 12
PARAMS = {"seed": 7, "numbers": 300, "districts": DISTRICTS, "rows": 500, "step_s": 30, "fill_s": 60}


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, one after the other in time too."""
    path = tmp_path_factory.mktemp("calls") / "records"
    numbers = spark.range(ROWS).withColumnRenamed("id", "value")
    for part in range(3):
        of_part = numbers.filter(f"value div {ROWS // 3 + 1} = {part}").coalesce(1)
        calls(of_part, PARAMS).write.mode("append").parquet(str(path))
    return path


def records(spark: SparkSession, **other: int) -> DataFrame:
    return calls(spark.range(ROWS).withColumnRenamed("id", "value"), {**PARAMS, **other})


def written(spark: SparkSession, query: Any, folder: Path, place: Path) -> list[Row]:
    """What Headrace appends, over the records a file at a time."""
    schema = spark.read.parquet(str(folder)).schema
    stream = hr.stream(spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder)))
    writer = query(stream, PARAMS).writeStream.format("parquet").option("path", str(place / "out"))
    writer.option("headrace.instances", 2).option("checkpointLocation", str(place / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    return spark.read.parquet(str(place / "out")).collect()


def by_district(found: list[Row], closed_s: float) -> dict[tuple[int, int], tuple[int, float]]:
    """Calls and their mean duration by district and begin of the window, for windows that have closed: one call after the other."""
    lasted: dict[tuple[int, int], list[int]] = defaultdict(list)
    for call in found:
        newest = int(call.ts.timestamp()) // 10 * 10
        for begin in range(newest - 50, newest + 1, 10):
            if begin + 60 <= closed_s:
                lasted[call.district, begin].append(round((call.end - call.start).total_seconds()))
    return {key: (len(each), sum(each) / len(each)) for key, each in lasted.items()}


def as_found(rows: list[Row]) -> dict[tuple[int, int], tuple[int, float]]:
    found = {(r.district, int(r.window.start.timestamp())): (r.calls, r.avg_duration) for r in rows}
    assert len(found) == len(rows), "no window comes twice"
    return found


@pytest.mark.extra
def test_the_aggregate_by_district_is_that_of_plain_python(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    found = records(spark).collect()
    watermark_s = max(call.ts.timestamp() for call in found) - BY_DISTRICT.delay_s
    wanted = by_district(found, watermark_s)
    assert len(wanted) > 100, "the case has many windows"
    assert as_found(written(spark, aggregate, folder, tmp_path)) == wanted
    # So is the answer that runs are checked against.
    assert as_found(expected_by_district(records(spark), int(watermark_s)).collect()) == wanted


def test_the_map_is_that_of_plain_python(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    wanted = Counter((c.src, c.start, c.end, round((c.end - c.start).total_seconds())) for c in records(spark).collect())
    assert Counter((c.src, c.start, c.end, c.duration) for c in written(spark, durations, folder, tmp_path)) == wanted


def test_records_are_what_the_generator_says(spark: SparkSession) -> None:
    found = records(spark).collect()
    assert found == records(spark).collect()
    assert found != records(spark, seed=8).collect()
    lasted = [(call.end - call.start).total_seconds() for call in found]
    assert all(s == int(s) and 1 <= s <= LASTS_S_MAX for s in lasted)
    assert 100 < sum(lasted) / ROWS < 300, "a mean of 40 s, and a fifth of 760 s"
    assert all(call.src != call.dst and call.ts == call.start for call in found)
    assert [call.ts for call in found] == sorted(call.ts for call in found)
    assert (found[PARAMS["rows"]].ts - found[0].ts).total_seconds() == 60, "the first batch covers a whole window"
    assert (found[-1].ts - found[PARAMS["rows"]].ts).total_seconds() == pytest.approx(90, abs=1)
    by_area = Counter(call.district for call in found)
    assert set(by_area) <= set(range(DISTRICTS))
    assert sum(by_area[d] for d in range(DISTRICTS // 4)) > 0.4 * ROWS, "half of the people live in a quarter of the districts"
    places: dict[int, list[Row]] = defaultdict(list)
    homes: dict[str, Counter[int]] = defaultdict(Counter)
    for call in found:
        places[call.district].append(call)
        homes[call.src][call.district] += 1
    assert all(max(c.lat for c in each) - min(c.lat for c in each) < 0.1 for each in places.values())
    at_home = sum(each.most_common(1)[0][1] for each in homes.values()) / ROWS
    assert 1 - 2 / AWAY_ONE_IN < at_home < 1, "some calls are made away from home"
    assert all(CONNECTION_CENTS < c.price_cents <= CONNECTION_CENTS + s * 34 / 60 + 1 for c, s in zip(found, lasted, strict=True))
