"""The demo's parts that need no Spark: calls, the tariff service, logs of batches, latencies, captions, view, report."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import headrace as hr
from headrace.demo import captions, page, tariffs, view
from headrace.demo.calls import HOT_FROM, HOT_SHARE, HOT_UNTIL, TICK_S, CallMaker, CallWriter, RateCurve
from headrace.demo.check import Verdict
from headrace.demo.commits import CommitLog
from headrace.demo.folder import prepare
from headrace.demo.measure import Arrival, Done, Mark, Point, Recording, delays, hotness, latencies
from headrace.demo.places import Folders
from headrace.demo.watch import Heat
from headrace.errors import HeadraceError
from headrace.ids import SLOTS

CURVE = RateCurve(mean=1000, seconds=60)
RECORDED = Path(__file__).parent / "data" / "demo_run.json"


def test_the_same_seed_gives_the_same_calls() -> None:
    assert CallMaker(CURVE, seed=7).tick(12).equals(CallMaker(CURVE, seed=7).tick(12))


def test_another_seed_or_tick_gives_other_calls() -> None:
    made = CallMaker(CURVE, seed=7).tick(12)
    assert not made.equals(CallMaker(CURVE, seed=8).tick(12))
    assert not made.equals(CallMaker(CURVE, seed=7).tick(13))


def test_the_rate_rises_to_a_peak_and_falls_around_its_mean() -> None:
    ticks = [CURVE.rows(tick) / TICK_S for tick in range(int(CURVE.seconds / TICK_S))]
    assert np.mean(ticks) == pytest.approx(1000, rel=0.01)
    assert max(ticks) == pytest.approx(CURVE.peak, rel=0.01)
    assert max(ticks) > 5 * min(ticks)
    assert 0.15 < ticks.index(max(ticks)) / len(ticks) < 0.35


def test_a_tick_has_as_many_calls_as_the_curve_says() -> None:
    maker = CallMaker(CURVE, seed=7)
    assert [maker.tick(t).num_rows for t in range(5)] == [CURVE.rows(t) for t in range(5)]


def test_one_customer_is_hot_for_a_while() -> None:
    maker = CallMaker(CURVE, 7, 500, HOT_SHARE)

    def busiest(part: float) -> float:
        calls = maker.tick(int(part * CURVE.seconds / TICK_S)).column("src")
        return max(count["counts"].as_py() for count in pc.value_counts(calls)) / len(calls)

    assert busiest((HOT_FROM + HOT_UNTIL) / 2) > 0.8 * HOT_SHARE
    assert busiest(HOT_FROM - 0.1) < 0.5 * HOT_SHARE
    assert busiest(HOT_UNTIL + 0.1) < 0.5 * HOT_SHARE


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


def test_the_tariff_service_answers_each_client_and_ends() -> None:
    service = tariffs.TariffService()
    service.start()
    clients = [tariffs.Tariffs(service.port) for _ in range(3)]
    asked = [("customer-00042", 61), ("customer-00199", 60), ("customer-00000", 1)]
    assert [[client.price(*each) for client in clients] for each in asked] == [[tariffs.price(int(n[-2:]), s)] * 3 for n, s in asked]
    service.stop()
    with pytest.raises(OSError, match="refused"):
        tariffs.Tariffs(service.port).price("customer-00042", 60)


def logged(checkpoint: Path, version: int, files: list[int], compact: bool = False) -> None:
    """What Spark writes for a batch that read these files, each named with the entry of the source's log that took it."""
    for name in ("offsets", "commits", "sources/0"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": f"{at}.parquet", "timestamp": 1, "batchId": entry}) for at, entry in enumerate(files)]
    (checkpoint / "sources" / "0" / f"{version}{'.compact' if compact else ''}").write_text("\n".join(["v1", *lines]))
    (checkpoint / "offsets" / str(version)).write_text("v1\n{}\n" + json.dumps({"logOffset": version}))


def test_batches_are_read_from_sparks_logs_when_they_are_committed(tmp_path: Path) -> None:
    log = CommitLog(tmp_path)
    assert log.update() == []
    logged(tmp_path, 0, [0, 0])
    assert log.update() == [], "a batch without a commit is not finished"
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    # An entry that is compacted has those before it, too.
    logged(tmp_path, 1, [0, 0, 1], compact=True)
    (tmp_path / "commits" / "1").write_text("v1\n{}")
    assert [each.upto for each in log.update()] == [2, 3]


def test_records_of_kafka_are_counted_by_offsets(tmp_path: Path) -> None:
    logged(tmp_path, 0, [])
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"calls":{"0":7,"1":5}}')
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert [each.upto for each in CommitLog(tmp_path).update()] == [12]


def test_latency_is_from_a_calls_arrival_to_the_end_of_its_batch() -> None:
    arrivals = [Arrival(-5.0, 10), Arrival(0.0, 10), Arrival(1.0, 10), Arrival(2.0, 10)]
    found = latencies(arrivals, [Done(-1.0, 10), Done(1.5, 30), Done(2.25, 40)], 9.0)
    assert found.waited_s.tolist() == [1.5, 0.5, 0.25], "calls for warming up are left out"
    assert found.percentile(0.5) == 0.5
    assert found.behind == 0


def test_calls_that_are_not_answered_count_with_the_time_so_far() -> None:
    found = latencies([Arrival(0.0, 10), Arrival(1.0, 30)], [Done(0.5, 10)], 11.0)
    assert found.waited_s.tolist() == [0.5, 10.0]
    assert (found.behind, found.oldest_s, found.percentile(0.9)) == (30, 10.0, 10.0)
    assert latencies([Arrival(0.0, 10)], [], 3.0).oldest_s == 3.0


def test_the_delay_of_a_lane_that_stands_still_grows() -> None:
    arrivals = [Arrival(at + 0.5, 10) for at in range(6)]
    assert delays(arrivals, [], 6.0).tolist() == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5, 5.5])
    caught_up = delays(arrivals, [Done(2.9, 20), Done(3.2, 30), *(Done(at + 0.9, 10 * at + 10) for at in (3, 4, 5))], 6.0)
    assert caught_up.tolist() == pytest.approx([0.5, 1.5, 2.4, 0.7, 0.4, 0.4], abs=0.01)


def recorded() -> Recording:
    """A run of the demo on 2 cores."""
    return Recording.from_json(json.loads(RECORDED.read_text(encoding="utf-8")))


def test_in_the_recorded_run_instances_follow_the_rate() -> None:
    assert captions.follows(recorded()).yes
    assert captions.instances(recorded()).startswith("Instances followed the rate: 1 → ")


@pytest.mark.parametrize("count", [1, 4])
def test_a_flat_run_is_not_said_to_follow_the_rate(count: int) -> None:
    run = recorded()
    flat = replace(run, points=tuple(replace(point, instances=count) for point in run.points))
    assert not captions.follows(flat).yes
    always = f"{captions.many(count, 'instance')} all the time"
    assert captions.instances(flat).startswith(f"The number of instances did not follow the rate: {always}")


def test_a_run_that_goes_against_the_rate_is_not_said_to_follow_it() -> None:
    run = recorded()
    most = max(point.instances for point in run.points) + 1
    against = replace(run, points=tuple(replace(point, instances=most - point.instances) for point in run.points))
    assert not captions.follows(against).yes
    assert captions.instances(against).startswith("The number of instances did not follow the rate: ")


def test_a_run_that_only_grows_is_not_said_to_follow_the_rate() -> None:
    run = recorded()
    growing = replace(run, points=tuple(replace(point, instances=1 + at * 5 // len(run.points)) for at, point in enumerate(run.points)))
    assert not captions.follows(growing).yes


def test_in_the_recorded_run_the_static_lane_waits_longer() -> None:
    run = recorded()
    static, elastic = (latencies(run.arrivals, done, run.seconds) for done in (run.static, run.elastic))
    assert (static.percentile(0.5) or 0) > 2 * (elastic.percentile(0.5) or 0)


def test_the_figures_of_both_lanes_are_beside_each_other() -> None:
    run = recorded()
    found = captions.compared(run, 1)
    assert [name for name, _, _ in found][:3] == ["latency, median", "latency, longest, until the kill", "latency, longest"]
    assert found[-1] == ("partitions, instances", "1", "1 to 5")
    flat = replace(run, points=tuple(replace(point, instances=2) for point in run.points))
    assert captions.compared(flat, 1)[-1] == ("partitions, instances", "1", "2")
    assert captions.compared(Recording(2.0), 1)[0] == ("latency, median", "-", "-")


def test_a_recording_is_read_back_as_it_was() -> None:
    run = recorded()
    assert Recording.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_captions_say_what_did_not_happen() -> None:
    run = replace(recorded(), marks=())
    assert captions.hot(run) == "No hot key was seen."
    assert captions.kill(run) == "Nothing was killed."
    killed = replace(run, marks=(Mark(38.0, "kill", ""),))
    assert "had not finished a batch again" in captions.kill(killed)
    assert "did not come back" in captions.latency(killed, 1)
    nothing = Recording(60.0)
    assert captions.instances(nothing) == "No batch was recorded."
    assert captions.rate(nothing, 250.0, 1)
    assert captions.behind(nothing).startswith("When the last call came, 0 calls waited")


def point(at_s: float, hot: float, owner: float) -> Point:
    return Point(at_s, 3, 0.6, 77, hot, owner, 100)


def test_a_hot_slot_is_alone_when_its_instance_has_hardly_any_other_rows() -> None:
    found = hotness([point(9, 0.05, 0.3), point(21, 0.3, 0.55), point(24, 0.33, 0.36), point(40, 0.05, 0.06)], 20.0)
    assert found is not None
    assert (found.slot, found.share, found.before, found.alone_s) == (77, 0.33, 0.55, 24)
    crowded = hotness([point(21, 0.3, 0.55), point(24, 0.3, 0.5)], 20.0)
    assert crowded is not None
    assert crowded.alone_s is None
    assert hotness([], 20.0) is None


@pytest.mark.parametrize("fault", [{"lost": 1}, {"doubled": 1}, {"wrong": 1}, {"bills_wrong": 1}, {"rows": 0}])
def test_any_difference_is_none_that_is_called_equal(fault: dict[str, int]) -> None:
    same = Verdict(100, 0, 0, 0, 10)
    assert same.equal
    assert str(same) == "equal to Spark's batch answer: 100 rows, 0 lost, 0 doubled, and the bills of 10 customers in the state"
    other = replace(same, **fault)  # type: ignore[arg-type]
    assert not other.equal
    assert not str(other).startswith("equal")
    assert Verdict.from_json(json.loads(json.dumps(other.to_json()))) == other


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


def snapshot(marks: int = 9, *, down: bool = False) -> view.Snapshot:
    many = tuple(Mark(4.0 * at, "change", f"{at} → {at + 1} instances: Utilisation {at}50.0% > 90%") for at in range(marks))
    heat = Heat(np.arange(SLOTS) % 7.0, np.arange(SLOTS) * 12 // SLOTS)
    lanes = view.LaneView(tuple(float(at) for at in range(42)), 12_345), view.LaneView((1.2,) * 42, 321)
    rates = tuple(CURVE.at(at) for at in range(42))
    counts = tuple(float(1 + at % 12) for at in range(42))
    monitor = "http://127.0.0.1:65535/?token=" + "x" * 32
    return view.Snapshot("running", 41.6, 60, rates, *lanes, 1, CURVE.peak, 12.0, counts, heat, many, monitor, down)


@pytest.mark.parametrize(("width", "height", "marks"), list(itertools.product((80, 100, 200), (24, 30, 50), (0, 3, 40))))
def test_the_view_fits_the_terminal(width: int, height: int, marks: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view.render(snapshot(marks, down=marks == 3), width, height))
    lines = out.getvalue().splitlines()
    assert len(lines) < height
    assert max(len(line) for line in lines) <= width
    assert "…" not in out.getvalue()


def test_the_view_begins_with_nothing_to_show() -> None:
    out = io.StringIO()
    empty = view.Snapshot("starting both lanes", 0.0, 60.0, (), view.LaneView((), 0), view.LaneView((), 0), 1, 450.0, 6.0)
    Console(file=out, width=80, height=24, force_terminal=True).print(view.render(empty, 80, 24))
    assert "starting both lanes" in out.getvalue()


def test_the_plain_line_says_the_same() -> None:
    text = view.line(snapshot())
    for part in ("42 s", "calls/s", "plain Spark: latency   41 s", "12,345 wait", "Headrace: latency  1.2 s", "6 instances"):
        assert part in text
    assert view.line(snapshot(down=True)).endswith("down")


ELASTIC = hr.Elastic(policy="elastic-manager", min=1, max=6, period_s=2.0, cooldown_s=4.0)


def test_the_report_has_both_lanes_and_loads_nothing() -> None:
    maker = CallMaker(RateCurve(200, 60), 7, 500, HOT_SHARE)
    text = page.report(recorded(), Verdict(100, 0, 0, 0, 10), "plain Spark's lane is not done", 1, ELASTIC, maker)
    assert text.count("<svg") == text.count("</svg>") == 6
    for part in ("Instances followed the rate", "plain Spark", "kill -9", "hot key", "applyInPandasWithState", "0 lost, 0 doubled"):
        assert part in text
    # Self-contained: names of XML vocabularies are the only addresses in it.
    for loaded in ("src=", "<link", "<script"):
        assert loaded not in text


def test_the_report_of_a_short_run_is_made_too() -> None:
    maker = CallMaker(RateCurve(200, 60), 7, 500, HOT_SHARE)
    text = page.report(Recording(2.0), Verdict(0, 0, 0), "nothing", 1, ELASTIC, maker)
    assert text.count("<svg") == 6
    assert "Instances followed" not in text
