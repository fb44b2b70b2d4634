"""Linear Road's operators without Spark, compared with the simple reference, on random traffic."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.linear_road.given import given
from benchmarks.linear_road.outputs import FILES, Outputs
from benchmarks.linear_road.reference import Reference
from benchmarks.linear_road.segments import journey, totals
from examples.linear_road import SEGMENTS, Accounts, Segments, Vehicles
from headrace.errors import SourceError
from headrace.operators.kernel import Moment, OutputMode
from headrace.operators.process import ORDER, Process
from headrace.operators.shape import MapShape, ProcessorShape
from headrace.state.layout import HASH
from headrace.state.sequence import VersionStep
from tests.unit.processors import Instance

TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "array<int>": pa.list_(pa.int32()),
    "array<double>": pa.list_(pa.float64()),
}
SECONDS = 400


def columns_of(text: str) -> pa.Schema:
    return pa.schema([(name, TYPES[kind]) for name, kind in re.findall(r"(\w+) ([\w<>]+)", text)])


class Operator:
    """One instance of a processor."""

    def __init__(self, processor: Any, keys: str, rows: str, folder: Path, order: tuple[str, ...] = ()) -> None:
        state = processor.state
        maps = getattr(state, "maps", None) or {}
        values = columns_of(state if isinstance(state, str) else state.values)
        shapes = tuple(MapShape(name, columns_of(k), columns_of(v)) for name, (k, v) in maps.items())
        name = type(processor).__name__
        shape = ProcessorShape(columns_of(keys), columns_of(rows), values, columns_of(processor.output), shapes, order=order, name=name)
        folder.mkdir()
        self.shape, self.instance = shape, Instance(Process(processor, shape, False), folder)

    def batch(self, rows: pa.Table) -> pa.Table:
        operator, schema = self.instance.operator, self.instance.operator.input_schema
        names = [*self.shape.keys.names, *self.shape.payload.names]
        key = rows[names[0]].to_numpy().astype(np.uint64)
        # In no order, as they come from a shuffle.
        order = np.random.default_rng(self.instance.version + 1).permutation(len(rows))
        data: dict[str, Any] = {HASH: key * np.uint64(0x9E3779B97F4A7C15), ORDER: order}
        data |= {internal: rows[name].combine_chunks() for internal, name in zip(schema.names[1:-1], names, strict=True)}
        given = pa.RecordBatch.from_arrays([pa.array(data[f.name]).cast(f.type) for f in schema], schema=schema)
        self.instance.version += 1
        applied = self.instance._write(operator.apply(given, self.instance.views(), Moment(OutputMode.APPEND, 0, 0)), VersionStep.PROCESS)
        found = [pa.Table.from_batches([part]) for part in applied.emitted]
        whole = pa.concat_tables(found) if found else operator.output_schema.empty_table()
        return whole.rename_columns(self.shape.output.names)


def wild_traffic(seed: int) -> list[tuple[int, ...]]:
    """Vehicles that report at random times, jump, stand for long, leave and come back."""
    random = np.random.default_rng(seed)
    rows, qids = [], itertools.count()
    for vid in range(80):
        seg, lane, direction, pos, time = int(random.integers(8, 14)), 1, int(random.integers(0, 2)), -1, int(random.integers(0, 60))
        while time < SECONDS:
            if random.random() < 0.5:
                seg, lane = int(np.clip(seg + random.integers(-1, 2), 8, 13)), int(random.choice([0, 1, 2, 4], p=[0.2, 0.4, 0.3, 0.1]))
                pos = seg * 5280 + int(random.integers(0, 3))
            pos = pos if pos >= 0 else seg * 5280
            rows.append((0, time, vid, int(random.integers(0, 60)), 0, lane, direction, seg, pos, *[-1] * 6))
            if random.random() < 0.2:
                rows.append((2, time, vid, *[-1] * 6, next(qids), *[-1] * 5))
            time += int(random.integers(1, 25))
    for vid in range(80, 240):
        # A crowd that never stands, elsewhere: there are tolls to pay.
        for time in range(int(random.integers(0, 30)), SECONDS, 30):
            seg = int(random.integers(40, 42))
            rows.append((0, time, vid, int(random.integers(0, 60)), 1, 2, 1, seg, seg * 5280 + int(random.integers(0, 5000)), *[-1] * 6))
            if random.random() < 0.1:
                rows.append((2, time, vid, *[-1] * 6, next(qids), *[-1] * 5))
    return sorted(rows, key=lambda row: (row[1], row[0]))


def batches(rows: list[tuple[int, ...]], random: np.random.Generator) -> Iterator[list[tuple[int, ...]]]:
    """Cut between seconds, anywhere."""
    cuts = sorted({0, SECONDS, *(int(cut) for cut in random.integers(0, SECONDS, int(random.integers(1, 12))))})
    for begin, end in itertools.pairwise(cuts):
        part = [row for row in rows if begin <= row[1] < end]
        if part:
            yield part


@pytest.mark.parametrize("seed", range(4))
def test_the_operators_follow_the_rules(seed: int, tmp_path: Path) -> None:
    rows = wild_traffic(seed)
    reference = Reference({})
    reference.feed(rows)
    wanted = reference.answers
    assert wanted.accidents, "the case is one with accidents"
    assert {toll for *_, toll in wanted.tolls} > {0}, "... and with tolls"
    vehicles = Operator(Vehicles(), "VID int", "Time int, Spd int, Lane int, Pos int, place int", tmp_path / "vehicles", ("Time",))
    segments = Operator(Segments(), "road int", Vehicles.output.removeprefix("road int, "), tmp_path / "segments")
    told_columns = Segments.output.removeprefix("VID int, ")
    accounts = Operator(Accounts(), "VID int", f"{told_columns}, QID int", tmp_path / "accounts", ("Time", "QID"))
    tolls, accidents, balances = [], [], {}
    for part in batches(rows, np.random.default_rng([seed, 1])):
        reports = [row for row in part if row[0] == 0]
        names = ("VID", "Time", "Spd", "Lane", "Pos", "place")
        values = zip(*((r[2], r[1], r[3], r[5], r[8], (r[4] * 2 + r[6]) * SEGMENTS + r[7]) for r in reports), strict=True)
        notices = segments.batch(vehicles.batch(pa.table(dict(zip(names, map(pa.array, values), strict=True)))))
        for row in notices.to_pylist():
            if row["enters"]:
                tolls.append((row["VID"], row["Time"], row["LAV"], row["Toll"]))
                if row["AccSeg"] >= 0:
                    accidents.append((row["Time"], row["VID"], row["AccSeg"]))
        asked = [(row[2], row[1], 0, 0, -1, -1, 0, -1, row[9]) for row in part if row[0] == 2]
        with_qids = notices.append_column("QID", pa.array([-1] * len(notices), pa.int32()))
        questions = pa.Table.from_pylist([dict(zip(with_qids.column_names, row, strict=True)) for row in asked], with_qids.schema)
        for row in accounts.batch(pa.concat_tables([with_qids, questions])).to_pylist():
            balances[row["QID"]] = row["balance"]
    assert sorted(tolls) == sorted(wanted.tolls)
    assert sorted(accidents) == sorted(wanted.accidents)
    assert set(balances) == {qid for _, qid, _, _ in wanted.balances}
    for _, qid, _, right in wanted.balances:
        assert balances[qid] in right


def test_journeys_are_differences_of_totals() -> None:
    seconds, tolls = totals()
    for sinit, send, dow, tod in [(0, 99, 1, 1), (99, 0, 7, 1440), (5, 5, 3, 700), (40, 60, 2, 480)]:
        way, lo, hi = (0 if send >= sinit else 1), min(sinit, send), max(sinit, send) + 1
        at = (dow - 1, (tod - 1) // 60, way)
        assert (int(seconds[at][hi] - seconds[at][lo]), tolls[at][hi] - tolls[at][lo]) == journey(sinit, send, dow, tod)


def csv_file(path: Path, rows: list[tuple[int, ...]]) -> Path:
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def test_a_days_files_come_back_second_by_second(tmp_path: Path) -> None:
    rows = wild_traffic(1)
    spent = csv_file(tmp_path / "history.csv", [(1, 3, 0, 42)])
    day = given(csv_file(tmp_path / "tuples.csv", rows), spent, tmp_path / "day", paced=True)
    assert (day.begins_s, day.ends_s) == (rows[0][1], rows[-1][1] + 1)
    found = [tuple(row.values()) for table in day.tables() for row in table.to_pylist()]
    assert found == rows
    assert not list(day.past.iterdir())
    at_once = given(tmp_path / "tuples.csv", spent, tmp_path / "at once", paced=False)
    assert [tuple(row.values()) for table in at_once.tables() for row in table.to_pylist()] == rows
    assert [len(portion) for portion in at_once.portions()] == [2, 2], "the first second, and so few tuples are one portion"


REPORT = (0, 5, 1, 30, 0, 1, 0, 10, 52_800, *[-1] * 6)


@pytest.mark.parametrize(
    ("rows", "where", "found"),
    [
        ([REPORT, (0, 4, *REPORT[2:])], "line 2", "Time 4 after 5"),
        ([REPORT, (0, 6, 1, 30, 0, 1, 0, 100, *REPORT[8:])], "line 2", "100"),
        ([(1, *REPORT[1:])], "line 1", "1"),
        ([REPORT[:7]], "tuples.csv", "columns"),
        ([(*REPORT[:3], "fast", *REPORT[4:])], "tuples.csv", "fast"),
    ],
)
def test_tuples_that_there_cannot_be_are_refused(rows: list[Any], where: str, found: str, tmp_path: Path) -> None:
    spent = csv_file(tmp_path / "history.csv", [(1, 3, 0, 42)])
    with pytest.raises(SourceError) as refused:
        given(csv_file(tmp_path / "tuples.csv", rows), spent, tmp_path / "day", paced=True)
    assert where in str(refused.value)
    assert found in str(refused.value)


def test_a_history_of_other_days_is_refused(tmp_path: Path) -> None:
    spent = csv_file(tmp_path / "history.csv", [(1, 70, 0, 42)])
    with pytest.raises(SourceError, match="days from 0 to 69"):
        given(csv_file(tmp_path / "tuples.csv", [REPORT]), spent, tmp_path / "day", paced=True)


def test_answers_are_written_in_the_benchmarks_columns(tmp_path: Path) -> None:
    told = {"kind": [0, 1, 2, 3, 4], "Time": [10] * 5, "a": [7, 7, 8, 9, 11], "b": [55, 12, -1, -1, 600], "c": [98, -1, 98, 30, 45]}
    outputs = Outputs(tmp_path)
    outputs.write(pa.table(told), np.full(5, 11.2))
    outputs.write(pa.table({name: values[:1] for name, values in told.items()}), np.full(1, 13.0))
    outputs.close()
    texts = {name: (tmp_path / f"{name}.csv").read_text() for name in FILES}
    assert texts["toll"] == "0,7,10,12,55,98\n0,7,10,13,55,98\n"
    assert texts["accident"] == "1,10,12,7,12\n"
    assert texts["balance"] == "2,10,12,8,10,98\n"
    assert texts["daily"] == "3,10,12,9,30\n"
    assert texts["travel"] == "4,11,10,12,600,45\n"
