"""The recovery benchmark without Spark: what counts as recovered, and that a wrong result is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.recovery.bench import BENCHMARK, CALM, WITH, WITHOUT, extra, lanes
from benchmarks.recovery.figures import recoveries, steady_rate
from benchmarks.recovery.rows import Delivery, digest, first_wrong, key_of
from headrace.bench.model import OURS, ROCKSDB, Lane, LaneResult, MeasuredBatch, parse_options
from headrace.errors import HeadraceError

KEYS, FILL, ROWS = 50, 50, 20


def expected(batches: list[int]) -> list[Delivery]:
    """Deliveries of batches of these sizes, counted row by row in plain Python."""
    counts: dict[int, tuple[int, int]] = {}
    found, row = [], 0
    for at, size in enumerate(batches):
        touched = set()
        for value in range(row, row + size):
            key = value if value < KEYS else value * 1_103_515_245 % (2**31 - 1) % KEYS
            n, s = counts.get(key, (0, 0))
            counts[key] = (n + 1, s + value)
            touched.add(key)
        row += size
        results = np.array([(key, *counts[key]) for key in touched])
        found.append(Delivery(at, 1000.0 * at, digest(*results.T)))
    return found


def test_right_results_are_accepted_also_if_a_batch_comes_twice() -> None:
    seen = expected([FILL, ROWS, ROWS, ROWS])
    assert first_wrong(KEYS, (ROWS, FILL), seen) == ""
    assert first_wrong(KEYS, (ROWS, FILL), [*seen[:2], *seen[1:]]) == ""


def test_a_batch_of_the_fill_that_a_stop_cut_off_is_accepted() -> None:
    assert first_wrong(KEYS, (ROWS, FILL), expected([FILL, FILL, ROWS])) == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda seen: [seen[0], *seen[2:]], "batch 2 came after batch 0"),
        (lambda seen: [*seen[:2], replace(seen[1], digest=seen[2].digest)], "came twice"),
        (lambda seen: [*seen[:2], replace(seen[2], digest=seen[1].digest)], "batch 2 are wrong"),
    ],
)
def test_lost_doubled_and_changed_results_are_found(wrong: Any, said: str) -> None:
    assert said in first_wrong(KEYS, (ROWS, FILL), wrong(expected([FILL, ROWS, ROWS])))


def test_a_row_that_is_counted_twice_changes_the_digest() -> None:
    key, n, s = np.array([3, 7]), np.array([1, 1]), np.array([3, 7])
    assert digest(key, n, s) == digest(key[::-1], n[::-1], s[::-1])
    assert digest(key, n, s) != digest(key, n + [0, 1], s + [0, 7])
    assert digest(key, n, s) != digest(key, n, s[::-1])


def test_keys_of_the_first_rows_are_all_different() -> None:
    assert sorted(key_of(np.arange(KEYS), KEYS)) == list(range(KEYS))
    assert set(key_of(np.arange(KEYS, 40 * KEYS), KEYS)) == set(range(KEYS))


def batch(at: int, start_ms: float, duration_ms: float = 100.0) -> MeasuredBatch:
    return MeasuredBatch(at, start_ms, duration_ms, ROWS)


def lane_result(struck_ms: float | None, name: str = OURS) -> LaneResult:
    """Batches of 100 ms, and one of 900 ms that begins at 300."""
    starts = [(0, 0, 100), (1, 100, 100), (2, 200, 100), (3, 300, 900), (4, 1200, 150), (5, 1350, 100)]
    batches = [batch(at, start, took) for at, start, took in starts]
    note = {"struck_ms": struck_ms, "lost_ms": 400.0, "replaced_ms": 5350.0, "steady_ms": None, "batches": []}
    note["delivered"] = [[each.id, each.end_ms - 10] for each in batches]
    return LaneResult(Lane(name, name, {"rows": ROWS}), [batches], headrace=[{"notes": [note]}] if struck_ms is not None else [])


def test_recovered_means_the_results_of_the_first_batch_that_began_after_the_fault() -> None:
    (found,) = recoveries(lane_result(struck_ms=350.0))
    assert found.recovery_s == pytest.approx((1340 - 350) / 1000)
    assert (found.disturbed_ms, found.usual_ms, found.times_longer) == (900, 100, 9)
    assert found.lost_s == pytest.approx(0.05)
    assert found.replaced_s == pytest.approx(5.0)
    assert found.steady_s is None


def test_a_fault_between_two_batches_disturbs_the_next_one() -> None:
    late = lane_result(struck_ms=250.0)
    late.turns[0] = [each for each in late.turns[0] if each.id != 2]
    (found,) = recoveries(late)
    assert found.disturbed_ms == 900
    assert found.recovery_s == pytest.approx((1190 - 250) / 1000)


def test_a_fault_whose_turn_was_cut_short_does_not_count() -> None:
    assert recoveries(lane_result(struck_ms=1400.0)) == []


def test_the_steady_rate_leaves_out_what_the_fault_disturbed() -> None:
    assert steady_rate(lane_result(struck_ms=350.0)) == 3 * ROWS * 1000 / 300
    assert steady_rate(lane_result(struck_ms=None)) == pytest.approx(6 * ROWS * 1000 / 1450, abs=0.05)


def test_the_result_line_compares_medians_and_the_cost_of_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disturbed = {OURS: lane_result(350.0), ROCKSDB: lane_result(100.5, ROCKSDB)}
    # The lane with replicas is measured up to the fault only, so that the two differ.
    results = {**disturbed, WITH: lane_result(350.0, WITH), WITHOUT: lane_result(None, WITHOUT)}
    line = extra(results, {})
    assert (line["recovery_s"], line["ours"]) == (0.99, 0.99)
    # The fault fell into the batch that began at 100, so the one at 200 counts.
    assert line["baselines"] == {ROCKSDB: 0.19}
    assert line["ratio"] == {ROCKSDB: round(0.19 / 0.99, 3)}
    assert line["overhead"] == pytest.approx((3 / 300) / (6 / 1450), rel=0.01)
    assert (tmp_path / line["plot"]).stat().st_size > 1000


def test_only_options_that_were_given_reach_the_query() -> None:
    plain = {lane.name: lane for lane in lanes(parse_options(BENCHMARK, ["--executors=4"]))}
    assert list(plain) == [OURS, ROCKSDB]
    assert plain[OURS].params["options"] == {"headrace.instances": "4"}
    assert plain[ROCKSDB].params["options"] == {}
    assert {lane.conf["spark.sql.shuffle.partitions"] for lane in plain.values()} == {"4"}
    args = ["--replicas=1", "--checkpoint-seconds=2.5", "--baselines=none"]
    given = {lane.name: lane for lane in lanes(parse_options(BENCHMARK, args))}
    assert list(given) == [OURS, WITH, WITHOUT]
    own = given[OURS].params["options"]
    assert (own["headrace.replicas"], own["headrace.checkpointSeconds"]) == ("1", "2.5")
    assert given[WITH].params["options"] == own
    assert given[WITHOUT].params["options"] == {"headrace.instances": "3", "headrace.checkpointSeconds": "2.5"}
    assert {(given[name].changes, given[name].group) for name in (WITH, WITHOUT)} == {(False, CALM)}


def test_lanes_that_wait_for_a_hang_are_not_paused_and_have_the_timeouts_of_spark() -> None:
    hung = lanes(parse_options(BENCHMARK, ["--fault=hang"]))
    assert [lane.group for lane in hung] == [OURS, ROCKSDB]
    assert {lane.conf["spark.network.timeout"] for lane in hung} == {"120s"}
    with pytest.raises(HeadraceError, match="kill, hang, none"):
        lanes(parse_options(BENCHMARK, ["--fault=fire"]))
