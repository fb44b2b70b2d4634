"""Starts the driver program, kills it and all its processes, and compares what it left with an undisturbed run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from headrace.chaos.processes import kill_session, session_members
from headrace.operators.windows import TimeWindow
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import ONCE, VARIABLE
from headrace.state.blocks import open_arrow
from headrace.state.layout import SUB, hashes
from headrace.state.manifest import Manifest
from headrace.state.run import row_range
from tests.crash.driver import ADVANCE_S, WINDOW_S, start

ROOT = Path(__file__).resolve().parents[2]
BEGIN_S = 1_700_000_000
RUN_SECONDS_MAX = 240
KILLED = -9
"""Exit code of a program that ended by ``kill -9``."""


def write_input(directory: Path, files: int, seed: int, rows: int = 150) -> Path:
    """Parquet files in a known order: event time moves on by 15 s a file, some rows are late, some keys and values are null."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for number in range(files):
        delay = random.exponential(8, rows)
        ts = (BEGIN_S + number * 15 + 15 * random.random(rows) - delay) * 1_000_000
        table = pa.table(
            {
                "k": pa.array(random.integers(0, 25, rows), mask=random.random(rows) < 0.03),
                "ts": pa.array(ts.astype(np.int64), pa.timestamp("us", "UTC")),
                "v": pa.array(random.random(rows), mask=random.random(rows) < 0.03),
            }
        )
        path = directory / f"{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (BEGIN_S + number, BEGIN_S + number))
    return directory


@dataclass
class Program:
    """The driver program on one checkpoint: run, kill, run again."""

    kind: str
    source: Path
    work: Path
    log: list[str] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.work / "out"

    @property
    def checkpoint(self) -> Path:
        return self.work / "checkpoint"

    def start(self, instances: int, fail_points: str = "", **settings: object) -> subprocess.Popen[bytes]:
        """Start the program in its own session, by which all its descendants are found, whatever process groups they make."""
        marks = self.work / "marks"
        marks.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if k not in (VARIABLE, ONCE)}
        if fail_points:
            environment |= {VARIABLE: fail_points, ONCE: str(marks)}
        command = [sys.executable, "-m", "tests.crash.driver", self.kind, *map(str, (self.source, self.output, self.checkpoint))]
        options = ["--instances", str(instances), *(f"--option={name}={value}" for name, value in settings.items())]
        self.log.append(f"{self.kind}, {instances} instance(s), fail points {fail_points or 'none'}")
        with open(self.work / "program.log", "ab") as log:
            return subprocess.Popen(
                [*command, *options],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def run(self, instances: int, fail_points: str = "") -> int:
        """Run the program to its end, by itself or by a fail point, until all its processes have ended. Returns the exit code."""
        first = not self.log
        process = self.start(instances, fail_points)
        try:
            code = process.wait(RUN_SECONDS_MAX)
        finally:
            # One test checks that nothing outlives the driver; it takes the JVM seconds to end.
            orphans = wait_until_gone(process.pid, 30.0) if first else []
            kill_session(process)
        assert not orphans, f"processes outlived the program: {orphans}"
        return code

    def finish(self, instances: int) -> None:
        code = self.run(instances)
        assert code == 0, f"exit code {code} after: {'; '.join(self.log)}\n{self.said()}"

    def said(self) -> str:
        return (self.work / "program.log").read_text(errors="replace")[-4000:]

    def marks(self) -> set[str]:
        return {path.name for path in (self.work / "marks").iterdir()}


def wait_for_pid(mark: Path, seconds: float) -> int:
    """The process that left its mark at a fail point."""
    deadline = time.monotonic() + seconds
    while not (text := mark.read_text() if mark.exists() else ""):
        assert time.monotonic() < deadline, f"no process came to {mark.name}"
        time.sleep(0.02)
    return int(text)


def wait_until_gone(leader: int, seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := session_members(leader)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def read_output(kind: str, output: Path) -> list[tuple[Any, ...]]:
    """All rows that count, sorted: the files in the sink's log, or the files per batch id, with their ids."""
    if kind == "running":
        files = sorted(output.glob("batch-*.parquet"))
        tables = [pq.read_table(f).append_column("batch", pa.array([int(f.stem[6:])] * pq.read_metadata(f).num_rows)) for f in files]
    else:
        tables = [pq.read_table(path) for path in listed_files(output)]
    tables = [table for table in tables if table.num_rows]
    return in_order(pa.concat_tables(tables).to_pandas()) if tables else []


def listed_files(output: Path) -> list[Path]:
    """What the log of Spark's file sink names."""
    log = output / "_spark_metadata"
    entries = {int(p.name.split(".")[0]): p for p in log.iterdir() if not p.name.startswith(".")}
    assert sorted(entries) == list(range(max(entries) + 1)), f"gaps in the sink's log: {sorted(entries)}"
    compacted = max((n for n, p in entries.items() if p.suffix == ".compact"), default=0)
    lines = [line for n, p in sorted(entries.items()) if n >= compacted for line in p.read_text().splitlines()[1:]]
    paths = [Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines]
    assert len(paths) == len(set(paths)), "a file is listed twice"
    return paths


def read_state(kind: str, checkpoint: Path) -> tuple[Manifest, list[tuple[Any, ...]]]:
    """The newest version and its state, sorted, straight from the files."""
    opened = Checkpoint.existing(str(checkpoint))
    manifest = opened.latest()
    assert manifest is not None
    if kind == "graph":
        # Many stores of many kinds; what they hold shows in the results of the batches that follow.
        return manifest, []
    (state,) = manifest.stores.values()
    parts = []
    for ref in state.runs:
        rows = open_arrow(opened.runs / ref.file, ref.bytes, ref.crc)
        begin, end = row_range(hashes(rows), ref.lo, ref.hi)
        parts.append(rows.slice(begin, end - begin).to_pandas().assign(seq=ref.seq))
    rows = pd.concat(parts) if parts else pd.DataFrame()
    if rows.empty:
        return manifest, []
    keys = [name for name in rows.columns if name in ("h", SUB) or name.startswith("k")]
    if kind == "windowed":
        window = TimeWindow(WINDOW_S * 1_000_000, ADVANCE_S * 1_000_000)
        rows = rows[rows[SUB] >= window.live_from(manifest.watermark_ms * 1000)]
        rows = rows.drop(columns="seq").groupby(keys, dropna=False, as_index=False).sum()
    else:
        rows = rows.sort_values("seq", ascending=False).drop_duplicates(keys).drop(columns="seq")
    return manifest, in_order(rows)


def in_order(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Rows as tuples, sorted by the columns that are exact, missing values as None."""
    exact = [c for c in rows.columns if c == "k" or not pd.api.types.is_float_dtype(rows[c])]
    rows = rows.sort_values([*exact, *[c for c in rows.columns if c not in exact]])
    return [tuple(None if pd.isna(value) else value for value in row) for row in rows.itertuples(index=False)]


def difference(mine: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> str:
    """A description of the differences; empty if there are none. Doubles are compared within rounding, all else exactly."""
    if len(mine) != len(expected):
        return f"{len(mine)} rows instead of {len(expected)}"
    for at, (one, other) in enumerate(zip(mine, expected, strict=True)):
        if not all(_same(a, b) for a, b in zip(one, other, strict=True)):
            return f"row {at}: {one} instead of {other}"
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)


@dataclass(frozen=True)
class Left:
    """What a finished program left behind."""

    output: list[tuple[Any, ...]]
    state: list[tuple[Any, ...]]
    version: int
    watermark_ms: int

    @classmethod
    def of(cls, program: Program) -> Left:
        manifest, state = read_state(program.kind, program.checkpoint)
        return cls(read_output(program.kind, program.output), state, manifest.version, manifest.watermark_ms)

    def difference(self, expected: Left) -> str:
        found = []
        if (self.version, self.watermark_ms) != (expected.version, expected.watermark_ms):
            found.append(f"version {self.version}, watermark {self.watermark_ms}")
            found.append(f"expected {expected.version}, {expected.watermark_ms}")
        for name in ("output", "state"):
            text = difference(getattr(self, name), getattr(expected, name))
            if text:
                found.append(f"{name}: {text}")
        return "; ".join(found)


def undisturbed(spark: SparkSession, kind: str, source: Path, work: Path) -> Left:
    """Run a kind of query over a folder from beginning to end in this process, and return what it left."""
    program = Program(kind, source, work)
    start(spark, kind, source, program.output, program.checkpoint, 2).awaitTermination()
    return Left.of(program)
