"""The options of the call-records benchmark, and its figures, computed from made-up lanes."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.call_records import figures
from benchmarks.call_records.bench import BENCHMARK, WORKS, lanes
from headrace.bench.model import MEMORY, OURS, ROCKSDB, Lane, LaneResult, MeasuredBatch, parse_options
from headrace.errors import HeadraceError


def asked(*args: str) -> list[Lane]:
    return lanes(parse_options(BENCHMARK, args))


def ran(lane: Lane, ms: float, cpu_s: float) -> LaneResult:
    """Two batches of so many milliseconds and CPU seconds each."""
    batches = [MeasuredBatch(at, at * ms, ms, lane.rows) for at in range(2)]
    return LaneResult(lane, [batches], cpu=[(2 * cpu_s, 2 * lane.rows)])


def results(query: str, cpu_s: dict[str, float], *args: str) -> dict[str, LaneResult]:
    """By the last word of the lane's name: CPU seconds of a batch, which takes a second."""
    return {lane.name: ran(lane, 1000, cpu_s[lane.name.split()[-1]]) for lane in asked("--query", query, *args)}


def test_every_query_has_a_lane_of_spark_and_one_for_each_number_of_instances() -> None:
    found = asked("--instances", "4,1")
    assert [lane.group for lane in found] == [query for query in WORKS for _ in range(3)]
    names = [lane.name for lane in found if lane.group == "product"]
    assert names == ["product spark-memory", "product 1", "product 4"]
    assert [lane.engine for lane in found if lane.group == "join"] == [ROCKSDB, OURS, OURS]
    spark, one, _ = (lane for lane in found if lane.group == "product")
    assert spark.rows < one.rows, "a batch of Spark's product would take minutes"
    assert {lane.params["partitions"] for lane in found if lane.group == "map" and lane.engine == OURS} == {1, 4}


def test_a_part_can_be_chosen() -> None:
    found = asked("--query", "join,map", "--instances", "2", "--baselines", f"{MEMORY},{ROCKSDB}", "--rows", "join=500", "--numbers", "70")
    assert [lane.name for lane in found] == [f"{q} {e}" for q in ("join", "map") for e in (MEMORY, ROCKSDB, 2)]
    assert {lane.rows for lane in found if lane.group == "join"} == {500}
    assert {lane.rows for lane in found if lane.group == "map"} == {WORKS["map"].rows}
    assert {lane.params["numbers"] for lane in found} == {70}
    assert all(lane.engine == OURS for lane in asked("--baselines", "none"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--query", "map,sort"], "sort"),
        (["--query", ","], "aggregate,map"),
        (["--instances", "1,zwei"], "1,zwei"),
        (["--instances", "0"], "above 0"),
        (["--instances", "none"], "1,2,4"),
        (["--baselines", "flink"], "spark-rocksdb"),
        (["--rows", "sort=3"], "join=1000"),
        (["--rows", "join=0"], "join=1000"),
        (["--numbers", "many"], "join=1000"),
    ],
)
def test_a_wrong_option_is_refused(args: list[str], said: str) -> None:
    with pytest.raises(HeadraceError, match=said):
        asked(*args)


def test_what_a_cpu_second_does_tells_whether_instances_cost_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures.machine, "cores", lambda: 2)  # type: ignore[attr-defined]
    seen = results("aggregate", {MEMORY: 2.0, "1": 0.5, "2": 0.5, "4": 1.0}, "--rows", "1000")
    found = figures.by_query(seen)["aggregate"]
    assert found["unit"] == "rows"
    assert [each["per_cpu_s"] for each in found["instances"].values()] == [2000, 2000, 1000]
    assert [each["efficiency"] for each in found["instances"].values()] == [1.0, 1.0, 0.5]
    assert [each["speed_up"] for each in found["instances"].values()] == [1.0, 1.0, 1.0]
    assert found["instances"]["4"]["cores_used"] == 1.0
    assert found["at_instances"] == 2, "as many as cores"
    assert (found["ratio"], found["ratio_per_cpu_s"]) == (1.0, 4.0)


def test_comparisons_are_counted_where_the_paper_does() -> None:
    seen = results("product,join", dict.fromkeys((MEMORY, ROCKSDB, "1"), 1.0), "--rows", "600", "--numbers", "100", "--instances", "1")
    found = figures.by_query(seen)
    # 600 rows in 30 s: each meets 1,200 within 60 s as the left one, and as the right one. Of the join, 600 in 10 s, and 1 in 100.
    assert found["product"]["instances"]["1"]["per_cpu_s"] == 600 * 2_400
    assert found["join"]["instances"]["1"]["per_cpu_s"] == 600 * 7_200 / 100
    fewer = {name: replace(r, lane=replace(r.lane, params={**r.lane.params, "rows": 300})) for name, r in seen.items()}
    assert figures.by_query(fewer)["product"]["instances"]["1"]["per_cpu_s"] == 600 * 1_200, "rows that are half as dense"


def test_the_headline_is_the_geometric_mean() -> None:
    seen = results("map,aggregate", {MEMORY: 2.0, "1": 1.0}, "--rows", "1000", "--instances", "1")
    spark = next(lane for lane in seen.values() if lane.lane.name == f"map {MEMORY}")
    seen[spark.lane.name] = ran(spark.lane, 1000, 8.0)
    line = figures.headline(figures.by_query(seen))
    assert line["ours"] == 1000
    assert line["ratio"] == {"spark": 4.0}
    assert line["baselines"] == {"spark": 250.0}


def test_a_lane_that_died_has_no_figures_and_the_others_keep_theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    seen = results("map,aggregate", {MEMORY: 2.0, "1": 1.0}, "--rows", "1000", "--instances", "1")
    seen[f"map {MEMORY}"].failed = "out of memory"
    said = figures.by_query(seen)
    assert said["map"]["ratio"] is None
    assert figures.headline(said)["ratio"] == {"spark": 2.0}
    shown = io.StringIO()
    Console(width=160, file=shown).print(figures.table(said))
    assert "2.00x" in shown.getvalue()
    paths = figures.draw(said)
    assert [Path(path).name for path in paths] == [f"call-records-{name}.svg" for name in ("scaling", "map", "aggregate")]
    assert all("<svg" in Path(path).read_text(encoding="utf-8") for path in paths)
    assert "rows a CPU second" in Path(paths[1]).read_text(encoding="utf-8")
