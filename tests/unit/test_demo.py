"""The demo's parts that need no Spark: calls, latencies, folder, view."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import headrace as hr
from headrace.demo import page, view
from headrace.demo.calls import DISORDER_MAX_S, SPEED, TICK_S, Arrival, CallMaker, CallWriter, RateCurve, event_time_ms
from headrace.demo.folder import prepare
from headrace.demo.measure import PHASES, BatchSample, InstanceSample, latencies, read_progress
from headrace.demo.places import Folders
from headrace.errors import HeadraceError

CURVE = RateCurve(mean=1000, seconds=60)


def test_the_same_seed_gives_the_same_calls() -> None:
    assert CallMaker(CURVE, seed=7).tick(12).equals(CallMaker(CURVE, seed=7).tick(12))


def test_another_seed_or_tick_gives_other_calls() -> None:
    made = CallMaker(CURVE, seed=7).tick(12)
    assert not made.equals(CallMaker(CURVE, seed=8).tick(12))
    assert not made.equals(CallMaker(CURVE, seed=7).tick(13))


def test_the_rate_rises_and_falls_around_its_mean_and_has_a_burst() -> None:
    ticks = [CURVE.rows(tick) / TICK_S for tick in range(int(CURVE.seconds / TICK_S))]
    calm = [r for tick, r in enumerate(ticks) if abs(tick * TICK_S / CURVE.seconds - CURVE.burst_at) > 0.1]
    assert min(ticks) == pytest.approx(400, rel=0.02)
    assert max(calm) == pytest.approx(1600, rel=0.02)
    assert max(ticks) > 1800
    assert 1000 < np.mean(ticks) < 1150


def test_a_tick_has_as_many_calls_as_the_curve_says() -> None:
    maker = CallMaker(CURVE, seed=7)
    assert [maker.tick(t).num_rows for t in range(5)] == [CURVE.rows(t) for t in range(5)]


def test_calls_are_out_of_order_but_never_later_than_the_watermark_allows() -> None:
    maker = CallMaker(RateCurve(mean=20_000, seconds=60), seed=7)
    for tick in range(0, 50, 7):
        times = maker.tick(tick).column("ts").cast("int64").to_numpy() / 1e6
        assert (np.diff(times) < 0).any()
        assert times.min() >= event_time_ms(tick * TICK_S) / 1000 - DISORDER_MAX_S - 1e-3
        assert times.max() <= event_time_ms((tick + 1) * TICK_S) / 1000


def test_some_customers_call_much_more_than_others() -> None:
    counts = pc.value_counts(CallMaker(RateCurve(mean=100_000, seconds=60), seed=7).tick(3).column("src"))
    sizes = sorted((c["counts"].as_py() for c in counts), reverse=True)
    assert sizes[0] > 20 * np.median(sizes)


def test_calls_end_after_they_start() -> None:
    calls = CallMaker(CURVE, seed=7).tick(3)
    assert pc.all(pc.less(calls.column("start"), calls.column("end"))).as_py()


def test_the_writer_shows_only_whole_files(tmp_path: Path) -> None:
    writer = CallWriter(CallMaker(CURVE, seed=7), Folders(tmp_path, tmp_path).prepare, seconds=1.0)
    writer.write(0)
    writer.start()
    while writer.running:
        for path in tmp_path.glob("calls-*.parquet"):
            pq.read_metadata(path)
    assert writer.error is None
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"calls-{tick:06d}.parquet" for tick in range(5)]
    assert writer.rows == sum(pq.read_metadata(tmp_path / name).num_rows for name in names)


def sample(version: int, begin_s: float, end_s: float, rows: int) -> BatchSample:
    phases = dict(zip(PHASES, (20.0, 9990.0, 1234.0, 15.0, 12_345.0, 999.0), strict=True))
    return BatchSample(version, begin_s, end_s, rows, 5, phases, 1000, 10_000, 3, 1_772_440_000_000, (InstanceSample(0, rows, 0.01, 1000),))


def test_latency_is_from_a_rows_arrival_to_the_end_of_its_batch() -> None:
    arrivals = [Arrival(0.0, 10), Arrival(1.0, 10), Arrival(2.0, 10)]
    found = latencies(arrivals, [sample(0, 1.1, 1.5, 20), sample(1, 2.1, 2.25, 10)])
    assert found[0].ms.tolist() == [1500, 500]
    assert found[1].ms.tolist() == [250]
    assert found[0].percentile(0.5) == 500
    assert found[0].percentile(0.99) == 1500


def test_a_file_split_over_two_batches_has_both_latencies() -> None:
    found = latencies([Arrival(0.0, 10)], [sample(0, 0, 1, 4), sample(1, 1, 3, 6)])
    assert [(v, x.ms.tolist(), x.rows.tolist()) for v, x in found.items()] == [(0, [1000], [4]), (1, [3000], [6])]


def test_rows_not_yet_taken_have_no_latency() -> None:
    assert latencies([Arrival(0.0, 10), Arrival(0.1, 10)], [sample(0, 0, 1, 10)]).keys() == {0}
    assert latencies([Arrival(0.0, 10)], []) == {}


def test_rows_for_warming_up_are_left_out() -> None:
    found = latencies([Arrival(0.0, 10), Arrival(5.0, 10)], [sample(0, 0, 4, 10), sample(1, 5, 6, 10)], skip_rows=10)
    assert found.keys() == {1}


def test_a_batch_that_spark_has_not_reported_is_not_read_yet() -> None:
    assert read_progress({"headrace": {"version": 1}}) is None


def test_an_earlier_demo_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "demo")
    (folder.calls / "calls-000000.parquet").write_text("old")
    folder.report.write_text("old")
    (folder.path / "notes.txt").write_text("mine")
    again = prepare(tmp_path / "demo")
    assert not any(again.calls.iterdir())
    assert not again.report.exists()
    assert (again.path / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_no_demos_is_refused(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    with pytest.raises(HeadraceError, match="nothing was changed"):
        prepare(tmp_path)
    assert (tmp_path / "calls").is_dir()


def snapshot(instances: int = 2) -> view.Snapshot:
    last = sample(3, 0.0, 0.4, 9000)
    last = BatchSample(**{**vars(last), "instances": tuple(InstanceSample(i, 4500 + i, 0.1, 40_000) for i in range(instances))})
    rates = tuple(CURVE.at(s) for s in range(30))
    return view.Snapshot("running", 30, 60, rates, 20_000, 19_000, 8000, 4000, 400, 900, 1500, 75, last)


@pytest.mark.parametrize(("width", "height", "instances"), list(itertools.product((80, 100, 160), (24, 30), (1, 2, 16, 64))))
def test_the_view_fits_the_terminal(width: int, height: int, instances: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view.render(snapshot(instances), width, height))
    lines = out.getvalue().splitlines()
    assert len(lines) < height
    assert max(len(line) for line in lines) <= width
    assert "…" not in out.getvalue()


def recorded(counts: list[int], rows: list[int]) -> list[BatchSample]:
    """A run of the demo: per batch of two seconds, how many instances it had and how many rows it took."""
    made = [sample(at, 2.0 * at, 2.0 * at + 2, taken) for at, taken in enumerate(rows)]
    each = zip(made, counts, strict=True)
    return [replace(s, instances=tuple(InstanceSample(i, s.rows // n, 0.01, 1000) for i in range(n))) for s, n in each]


SETTINGS = hr.Elastic(policy="elastic-manager", min=1, max=4, lower=0.2, target=0.3, upper=0.4, period_s=3.0)


def notes(samples: list[BatchSample], utilisation: list[float]) -> dict[str, str]:
    seen = [(2.0 * at, u) for at, u in enumerate(utilisation)]
    return {plot.title: plot.note for plot in page.elastic_plots(samples, seen, SETTINGS, 0.0, 60.0)}


def test_a_run_without_changes_claims_none() -> None:
    found = notes(recorded([1, 1, 1], [2000, 8000, 4000]), [0.1, 0.5, 0.3])
    assert found["Instances"] == "1 instance all the time, while batches processed 1,000 to 4,000 rows/s."
    assert "of 3 looks 1 below the lower limit and 1 above the upper one; least 0.100, most 0.500." in found["Utilisation of instances"]
    assert page.decision_rows((), 0.0) == [("none", "the policy saw nothing")]


def test_a_run_with_changes_says_which() -> None:
    found = notes(recorded([1, 3, 3, 2], [2000, 8000, 6000, 4000]), [0.25])
    assert found["Instances"] == (
        "1 to 3 instances, 2 changes, while batches processed 1,000 to 4,000 rows/s; "
        "on average 1,000 rows/s with 1, 2,000 rows/s with 2, 3,500 rows/s with 3."
    )
    assert "of 1 look 0 below the lower limit and 0 above the upper one" in found["Utilisation of instances"]


def test_a_run_that_saw_nothing_says_so() -> None:
    found = notes([], [])
    assert found["Instances"] == "No batch was measured."
    assert "too short" in found["Utilisation of instances"]


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [1, 2, 4, 1], [4, 4, 4, 4]])
def test_no_text_of_the_report_says_that_instances_follow_anything(counts: list[int]) -> None:
    samples = recorded(counts, [2000] * 4)
    arrivals = [Arrival(2.0 * at, 2000) for at in range(4)]
    made = [*page.elastic_plots(samples, [], SETTINGS, 0.0, 8.0), *page.plots(samples, arrivals, latencies(arrivals, samples), 0.0)]
    text = " ".join(f"{plot.title} {plot.note}" for plot in made).lower()
    for claim in ("follow", "follows", "keeps", "always", "never"):
        assert claim not in text.split()


def test_the_plain_line_says_the_same() -> None:
    text = view.line(snapshot())
    for part in ("in  20,000/s", "processed  19,000/s", "400 ms/900 ms/1.5 s", "1,000 rows 10.0 kB 3 runs", "watermark"):
        assert part in text
    assert SPEED == 60
