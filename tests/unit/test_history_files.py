"""A query's history: whole lines after a kill, bounded files over any length, and readers that follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.runtime import history_files
from headrace.runtime.history_files import HistoryReader, HistoryWriter, Tail, joined, segments_of, thinned


def point(at: int) -> dict[str, float]:
    return {"t": at, "b": at - 1, "v": at, "n": 1, "rows": 10, "out": 1, "ms": at % 7}


def opened(folder: Path) -> HistoryWriter:
    writer = HistoryWriter(folder)
    writer.open()
    return writer


def test_a_line_that_a_crash_has_torn_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.add([point(1)], [{"t": 1, "kind": "start"}], [])
    writer.close()
    with open(tmp_path / "points.jsonl", "a") as file:
        file.write('{"t": 2, "v"')
    writer = opened(tmp_path)
    writer.add([point(3)], [], [])
    writer.close()
    assert [each["t"] for each in HistoryReader(tmp_path).points()] == [1, 3]


def test_a_kill_leaves_whole_lines(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from headrace.runtime.history_files import HistoryWriter
writer = HistoryWriter(Path(sys.argv[1]))
writer.open()
at = 0
while True:
    at += 1
    writer.add([{"t": at, "b": at - 1, "rows": 1, "n": 1}], [], [{"headrace": {"version": at}, "filled": "x" * 20_000}])
    print(at, flush=True)
"""
    running = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    while int(running.stdout.readline()) < 50:
        pass
    running.kill()
    running.wait()
    running.stdout.close()
    told = HistoryReader(tmp_path)
    assert len(told.points()) >= 50
    assert [each["t"] for each in told.points()] == list(range(1, len(told.points()) + 1))
    assert (tmp_path / "points.jsonl").read_bytes().endswith(b"\n")
    versions = [each["headrace"]["version"] for each in told.batches()]
    assert versions == list(range(1, len(versions) + 1))


def test_every_file_stays_bounded_and_the_whole_time_stays_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "POINTS_MAX", 40)
    monkeypatch.setattr(history_files, "EVENTS_MAX", 30)
    monkeypatch.setattr(history_files, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(history_files, "SEGMENTS_MAX", 3)
    writer = opened(tmp_path)
    for at in range(1, 1001):
        writer.add([point(at)], [{"t": at, "kind": "change"}], [{"headrace": {"version": at}, "filled": "x" * 50}])
    writer.close()
    reader = HistoryReader(tmp_path)
    points, whole = reader.points(), reader.batches()
    assert len(points) <= 41
    assert sum(each["rows"] for each in points) == 10_000
    assert (points[0]["b"], points[-1]["t"]) == (0, 1000)
    assert [each["t"] for each in points] == sorted(each["t"] for each in points)
    assert max(each["ms"] for each in points) == 6, "peaks stay"
    assert len(reader.events()) <= 31
    assert reader.events()[-1]["t"] == 1000
    assert len(segments_of(tmp_path)) == 3
    versions = [each["headrace"]["version"] for each in whole]
    assert versions == list(range(versions[0], 1001))
    assert [each["headrace"]["version"] for each in reader.batches(2)] == [999, 1000]


def test_a_restart_goes_on_in_the_same_files(tmp_path: Path) -> None:
    for at in (1, 2):
        writer = opened(tmp_path)
        writer.add([point(at)], [], [{"headrace": {"version": at}}])
        writer.close()
    assert [each["t"] for each in HistoryReader(tmp_path).points()] == [1, 2]
    assert len(segments_of(tmp_path)) == 1


def test_a_tail_gives_what_is_new_and_notices_a_file_that_was_replaced(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    tail = Tail(tmp_path / "points.jsonl")
    assert tail.read() == (True, [])
    writer.add([point(1)], [], [])
    assert [each["t"] for each in tail.read()[1]] == [1]
    os.write(writer.points._file, b'{"t": 2')
    assert tail.read() == (False, [])
    os.write(writer.points._file, b"}\n")
    assert tail.read() == (False, [{"t": 2}])
    writer.points.replace([point(9)])
    again, lines = tail.read()
    assert again
    assert [each["t"] for each in lines] == [9]
    writer.close()
    assert Tail(tmp_path / "none.jsonl").read() == (False, [])


def test_points_of_different_operators_can_be_joined() -> None:
    first, then = {**point(1), "ops": {"a": [1]}}, {**point(2), "ops": {"b": [2]}, "lat": None}
    assert joined(first, then)["ops"] == {"b": [2]}
    assert joined(first, then)["rows"] == 20
    assert len(thinned([first, then, then, then])) == 3
