"""The parts of the benchmark harness that need no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from headrace.bench import direct, discover, report, stats, turns
from headrace.bench.live import LiveView
from headrace.bench.model import (
    MEMORY,
    OURS,
    ROCKSDB,
    Benchmark,
    DirectResult,
    Figure,
    Lane,
    LaneResult,
    MeasuredBatch,
    Verdict,
    engines_of,
    parse_options,
    preload,
)
from headrace.bench.process import CpuMeter, LaneFailed, descendants
from headrace.bench.run import BenchSettings, run_benchmark
from headrace.errors import HeadraceError


def nothing(lanes: list[Lane]) -> Benchmark:
    return Benchmark("nothing", "does nothing", {"keys": 10, "deep": False, "baselines": ROCKSDB}, lambda options: lanes)


class FakeLane:
    """A lane with batches of 100 rows and ``ms`` milliseconds of simulated time; it fails after ``lives`` batches."""

    def __init__(self, lane: Lane, ms: float, lives: int = 10**9, equal: bool = True) -> None:
        self.lane, self.ms, self.lives, self.equal = lane, ms, lives, equal
        self.clock_ms, self.id, self.log = 0.0, 0, ["open"]

    def next_batch(self, idle: Callable[[], None] = lambda: None) -> MeasuredBatch:
        self.lives -= 1
        if self.lives < 0:
            raise LaneFailed("java.lang.OutOfMemoryError: Java heap space")
        batch = MeasuredBatch(self.id, self.clock_ms, self.ms, self.lane.rows)
        self.id, self.clock_ms = self.id + 1, self.clock_ms + self.ms
        return batch

    def finish(self, idle: Callable[[], None] = lambda: None) -> tuple[Verdict, list[dict[str, Any]]]:
        self.log.append("finish")
        return Verdict(self.equal, "a", "a" if self.equal else "b", 1), []

    def pause(self) -> None:
        self.log.append("pause")

    def resume(self) -> None:
        # The current batch began earlier.
        self.clock_ms = time.time() * 1000 - 1
        self.log.append("resume")

    def cpu_s(self) -> float:
        return 0.0

    def kill(self) -> None:
        self.log.append("kill")


def run(fakes: list[FakeLane], seconds: float = 0.3, times: int = 3) -> dict[str, LaneResult]:
    view = LiveView("test", [fake.lane.name for fake in fakes], Console(stderr=True, quiet=True))
    opened = {fake.lane.name: fake for fake in fakes}
    return turns.run([fake.lane for fake in fakes], lambda lane: opened[lane.name], seconds, times, view)


def lane(name: str = OURS) -> Lane:
    return Lane(name, name, {"rows": 100}, warmup_batches=2)


def test_turns_alternate_and_share_the_seconds() -> None:
    ours, spark = FakeLane(lane(), 10), FakeLane(lane(ROCKSDB), 25)
    results = run([ours, spark])
    assert ours.log == ["open", "pause", *["resume", "pause"] * 3, "finish", "kill"]
    assert [len(turn) for turn in results[OURS].turns] == [10, 10, 10]
    assert stats.rate_total(results[OURS]) == 10_000
    assert stats.rate_total(results[ROCKSDB]) == 4_000


def test_a_lane_is_warm_when_its_batches_stop_getting_quicker() -> None:
    def batches(durations: list[float]) -> int:
        warm = turns.WarmUp(batches_min=2, span_s=1)
        for taken, duration in enumerate(durations):
            if warm.done:
                return taken
            warm.add(duration)
        raise AssertionError("never warm")

    assert batches([500.0] * 99) == 6, "two spans without a gain over the first"
    quicker = [500.0] * 2 + [250.0] * 4 + [100.0] * 99
    assert batches(quicker) == 2 + 4 + 20 + 10, "two spans more than the first of the quickest"
    assert batches([1000 * 0.9**n for n in range(999)]) < 150, "it does not go on for ever"
    assert batches([2500.0] * 9) == 2, "long batches need no more than the time and their least number"


def test_the_batch_that_a_pause_cut_in_two_does_not_count() -> None:
    results = run([FakeLane(lane(), 10)], times=2)
    first = results[OURS].turns[0][0]
    assert first.id > 0
    assert all(batch.duration_ms == 10 for batch in results[OURS].batches)


def test_after_a_long_pause_the_batch_that_starts_workers_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(FakeLane):
        """A CPU second a batch, and five more for the first whole one after a pause."""

        used_s, since = 0.0, 9

        def resume(self) -> None:
            super().resume()
            self.since = 0

        def next_batch(self, idle: Callable[[], None] = lambda: None) -> MeasuredBatch:
            self.since += 1
            self.used_s += 6 if self.since == 2 else 1
            return super().next_batch(idle)

        def cpu_s(self) -> float:
            return self.used_s

    def per_batch() -> list[float]:
        return [cpu_s * 100 / rows for cpu_s, rows in run([Busy(lane(), 10)], times=2)[OURS].cpu]

    assert all(cpu_s > 1.2 for cpu_s in per_batch()), "a short pause leaves workers alone, and all that is used counts"
    monkeypatch.setattr(turns, "IDLE_MS_MAX", -1)
    assert per_batch() == [1.0, 1.0]


def test_with_one_turn_lanes_run_one_after_another() -> None:
    fakes = [FakeLane(lane(), 10), FakeLane(lane(ROCKSDB), 25)]
    for fake in fakes:
        # All batches lie after the warm-up.
        fake.clock_ms = time.time() * 1000 + 1000
    results = run(fakes, times=1)
    assert [fake.log for fake in fakes] == [["open", "finish", "kill"]] * 2
    assert stats.rate_total(results[OURS]) == 10_000
    assert all(result.equal for result in results.values())


def test_groups_run_one_after_another_and_their_lanes_in_turns() -> None:
    order: list[str] = []

    class Noted(FakeLane):
        def resume(self) -> None:
            super().resume()
            order.append(self.lane.name)

    lanes = [replace(lane(name), group=name[0]) for name in ("a1", "a2", "b1")]
    run([Noted(each, 10) for each in lanes], times=2)
    assert order == ["a1", "a2", "a1", "a2", "b1", "b1"]


def test_a_lane_with_long_batches_leaves_turns_out() -> None:
    results = run([FakeLane(lane(), 10), FakeLane(lane(ROCKSDB), 250)])
    assert [len(turn) for turn in results[ROCKSDB].turns] == [1, 1]
    assert results[ROCKSDB].measured_ms == 500


def test_a_lane_that_is_changed_in_each_turn_has_all_its_turns() -> None:
    class Changed(FakeLane):
        """Changing takes as long as all turns together."""

        def change(self) -> None:
            self.log.append("change")
            self.clock_ms += 300

    changed = replace(lane(), changes=True, changes_each_turn=True)
    fakes = [Changed(changed, 10), FakeLane(lane(ROCKSDB), 10)]
    results = run(fakes)
    assert [what for what in fakes[0].log if what != "open"] == ["pause", *["resume", "change", "pause"] * 3, "finish", "kill"]
    assert all(len(turn) > turns.BATCHES_AFTER for turn in results[OURS].turns)
    assert "change" not in fakes[1].log


def test_a_baseline_that_dies_is_null_with_its_reason() -> None:
    fakes = [FakeLane(lane(), 10), FakeLane(lane(ROCKSDB), 10), FakeLane(lane(MEMORY), 10, lives=0)]
    results = run(fakes)
    line = report.result_line(nothing([]), {}, results, {})
    assert line["baselines"][MEMORY] is None
    assert line["ratio"] == {ROCKSDB: 1.0, MEMORY: None}
    assert "OutOfMemoryError" in line["reasons"][MEMORY]
    assert line["equal"] is True
    assert "kill" in fakes[2].log


def test_ours_that_dies_is_not_equal() -> None:
    line = report.result_line(nothing([]), {}, run([FakeLane(lane(), 10, lives=0), FakeLane(lane(ROCKSDB), 10)]), {})
    assert line["ours"] is None
    assert line["equal"] is False


def test_a_different_result_is_said() -> None:
    line = report.result_line(nothing([]), {}, run([FakeLane(lane(), 10), FakeLane(lane(ROCKSDB), 10, equal=False)]), {})
    assert line["equal"] is False
    assert line["lanes"][ROCKSDB]["expected"] == "b"


def test_periods_stay_within_a_turn() -> None:
    turn = [MeasuredBatch(i, 100.0 * i, 90, 1) for i in range(3)]
    later = [MeasuredBatch(i, 100_000 + 50.0 * i, 40, 1) for i in range(2)]
    assert stats.periods_ms(LaneResult(lane(), [turn, later])) == [100, 100, 50]


def test_preloading_touches_every_key() -> None:
    assert preload(100_000, 1_000_000) == {"preload_rows": 1_000_000, "preload_batches": 1}
    assert preload(5_000_001, 1_000_000) == {"preload_rows": 1_000_000, "preload_batches": 6}
    assert preload(100_000, 5_000) == {"preload_rows": 100_000, "preload_batches": 1}


def test_options_are_read_by_the_type_of_their_default() -> None:
    read = parse_options(nothing([]), ["--keys", "5_000", "--deep", "--baselines=none"])
    assert read == {"keys": 5000, "deep": True, "baselines": "none"}
    assert engines_of(read) == [OURS]


def test_an_option_that_is_0_by_default_can_be_given_as_0() -> None:
    benchmark = replace(nothing([]), options={"replicas": 0})
    assert parse_options(benchmark, ["--replicas", "0"]) == {"replicas": 0}
    with pytest.raises(HeadraceError, match="from 0"):
        parse_options(benchmark, ["--replicas=-1"])


@pytest.mark.parametrize(("alternates", "used"), [(True, 7), (False, 1)])
def test_a_benchmark_may_decide_how_many_turns_there_are(monkeypatch: pytest.MonkeyPatch, alternates: bool, used: int) -> None:
    mine = replace(nothing([lane()]), turns=lambda options: int(options["keys"]), alternates=alternates)
    monkeypatch.setattr(discover, "load", lambda name: mine)

    def opened(benchmark: Benchmark, lane: Lane, folder: Path) -> FakeLane:
        fake = FakeLane(lane, 1)
        # All batches lie after the warm-up, also if there is no pause after it.
        fake.clock_ms = time.time() * 1000 + 1000
        return fake

    line = run_benchmark("nothing", ("--keys=7",), BenchSettings(seconds=0.1, turns=2), opened)
    assert line["turns"] == used


@pytest.mark.parametrize(
    ("args", "said"),
    [(["--rows", "1"], "--keys"), (["--keys"], "a value"), (["--keys", "many"], "a number"), (["--keys", "0"], "above 0"), (["x"], "x")],
)
def test_a_wrong_option_is_refused(args: list[str], said: str) -> None:
    with pytest.raises(HeadraceError, match=said):
        parse_options(nothing([]), args)


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(HeadraceError, match="spark-rocksdb"):
        engines_of({"baselines": "flink"})


def test_an_unknown_benchmark_is_refused_with_those_that_exist() -> None:
    with pytest.raises(HeadraceError, match=r"aggregate, .*control, elastic"):
        discover.load("nothing")


def test_without_any_benchmarks_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(discover, "__file__", str(tmp_path / "lib" / "python" / "headrace" / "bench" / "discover.py"))
    with pytest.raises(HeadraceError, match="install the wheel again"):
        discover.names()


def test_the_wheel_s_copy_is_used_without_the_source_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "lib" / "python" / "headrace" / "bench"
    (package / "suite" / "benchmarks" / "two_words").mkdir(parents=True)
    for file in ("__init__.py", "two_words/bench.py"):
        (package / "suite" / "benchmarks" / file).touch()
    monkeypatch.setattr(discover, "__file__", str(package / "discover.py"))
    assert discover.names() == ["two-words"]


def test_the_cpu_of_processes_that_have_ended_counts() -> None:
    meter = CpuMeter(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = meter.read()
        assert before >= 0.45, "the kernel counts in ticks"
        child.communicate(b"\n")
    assert meter.read() >= before


def test_descendants_are_found_through_generations() -> None:
    child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert grandchild in descendants(process.pid)
        process.communicate("\n")


def test_figures_that_fall_short_are_shown_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    figures = (Figure("quick", 1.0, 2.0, "ms"), Figure("slow", 3.0, 2.0, "ms", "under the other's 2 ms"))
    benchmark = replace(nothing([]), measure=lambda options: DirectResult(figures, 4.0, {"other": 2.0}, True))
    line = direct.run(benchmark, benchmark.measure, {}, Console(width=100))
    assert list(line)[:5] == ["bench", "ours", "baselines", "ratio", "equal"]
    assert line["ratio"] == {"other": 2.0}
    assert line["within"] is False
    assert {name: figure["holds"] for name, figure in line["figures"].items()} == {"quick": True, "slow": False}
    shown = capsys.readouterr().out
    assert "under the other's 2 ms" in shown
    assert "NO" in shown


def test_what_is_measured_may_say_more_than_figures(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("how late, ms")
    benchmark = replace(nothing([]), measure=lambda options: DirectResult((), 4.0, {}, True, {"late": 3}, (table,)))
    line = direct.run(benchmark, benchmark.measure, {}, Console(width=100))
    assert line["late"] == 3
    assert "how late" in capsys.readouterr().out


@pytest.mark.parametrize(("asked_s", "used_s"), [(None, 7.0), (2.0, 2.0)])
def test_a_benchmark_has_a_measured_time_of_its_own(monkeypatch: pytest.MonkeyPatch, asked_s: float | None, used_s: float) -> None:
    seen: list[Any] = []

    def measure(options: Any) -> DirectResult:
        seen.append(options["seconds"])
        return DirectResult((), 1.0, {}, True)

    monkeypatch.setattr(discover, "load", lambda name: replace(nothing([]), measure=measure, seconds=7.0))
    run_benchmark("nothing", (), BenchSettings(seconds=asked_s))
    assert seen == [used_s]


def test_the_median_of_repeats_is_not_moved_by_one_slow_call() -> None:
    rounds = iter([10, 10, 3_000_000, 10])
    assert direct.median_s(lambda: sum(range(next(rounds))), repeats=3) < 0.01


def test_policies_are_measured_without_spark() -> None:
    small = ("--operators=40", "--nodes=5", "--instances=20", "--epsilon=0.3", "--repeats=1")
    line = run_benchmark("control", small, BenchSettings())
    assert line["equal"] is True
    assert line["figures"]["decide: shedding"]["seen"] > 0
