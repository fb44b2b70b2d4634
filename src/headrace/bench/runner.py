"""Runs one lane's query in this process: starts it, watches its batches, stops it, checks its result."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.bench import discover
from headrace.bench.model import OFFLINE, OURS, ROCKSDB, Lane, MeasuredBatch, Verdict
from headrace.errors import HeadraceError
from headrace.spark.streaming import HEAP_STORE, ROCKSDB_STORE, ProgressTexts, stop_state_stores

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = dict.fromkeys((ROCKSDB, OFFLINE), ROCKSDB_STORE)
PROVIDER_DEFAULT = HEAP_STORE

POLL_S_MIN, POLL_S_MAX = 0.005, 0.1


class LaneDied(Exception):
    """The query ended unexpectedly."""


def lane_session(cores: int, heap_gb: int, conf: dict[str, str], lane: Lane, folder: Path) -> SparkSession:
    """A session, with the same settings for every engine: Headrace's settings suit Spark's own engine as well."""
    settings = {
        # What killed processes leave there is removed with the lane's folder.
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": f"{heap_gb}g",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        # A lane is paused during other lanes' turns. Its processes must not take each other for dead when they resume.
        "spark.network.timeout": "36000s",
        "spark.executor.heartbeatInterval": "3600s",
        **lane.conf,
        **conf,
    }
    session = hr.session("headrace bench", master=lane.master or f"local[{cores}]", **settings)
    session.sparkContext.setLogLevel("ERROR")
    return session


@dataclass
class Finished:
    """A stopped query, for the benchmark's check."""

    spark: SparkSession
    engine: str
    params: dict[str, Any]
    folder: Path
    rows: int
    """The number of rows in the batches that were seen. The query may have finished another batch before it stopped."""
    query: Any

    def state(self) -> DataFrame:
        """The final state as the engine itself reads it, with keys and values as columns."""
        if self.engine == OURS:
            frame: DataFrame = self.query.state()
            return frame
        # The stores of the stopped query stay on the heap until Spark's next maintenance.
        stop_state_stores(self.spark)
        return self.spark.read.format("statestore").load(str(self.folder / "checkpoint")).select("key.*", "value.*")


class Runner:
    """The query of one lane."""

    def __init__(self, spark: SparkSession, bench: str, lane: Lane, folder: Path) -> None:
        self.spark = spark
        self.lane = lane
        self.folder = folder
        self._queries = discover.part_module(bench, "query")
        self._check = discover.part_module(bench, "check")
        self._query: Any = None
        self._progress: ProgressTexts | None = None
        self._seen = -1
        self._rows = 0
        self.notes: list[dict[str, Any]] = []
        """What a change reports beside the progress of batches."""

    def start(self, rows: int | None = None) -> None:
        """Start the query, or continue from the checkpoint, with ``rows`` in a batch (by default the lane's number)."""
        self.spark.conf.set(PROVIDER, PROVIDERS.get(self.lane.engine, PROVIDER_DEFAULT))
        params = {**self.lane.params, "rows": rows or self.lane.rows}
        self._query = self._started(params)
        found: Any = self.spark.streams.get(str(self._query.id))
        if found is None:
            self._raise_if_dead()
        # The handle's own progress would take CPU from what is measured.
        self._progress = ProgressTexts(found)
        if hasattr(self._queries, "started"):
            self._queries.started(self)

    def _started(self, params: dict[str, Any]) -> Any:
        """Start the query. A module with ``program`` has an unmodified PySpark program, which ``hr.enable`` gives to Headrace."""
        checkpoint = str(self.folder / "checkpoint")
        if not hasattr(self._queries, "program"):
            source = self._queries.source(self.spark, params)
            query = self._queries.query(hr.stream(source) if self.lane.engine == OURS else source, params)
            return self._queries.write(query.writeStream, params, self.folder).option("checkpointLocation", checkpoint).start()
        if self.lane.engine == OURS:
            hr.enable(self.spark)
        try:
            frame = self._queries.program(self.spark, params)
            return self._queries.write(frame.writeStream, params, self.folder).option("checkpointLocation", checkpoint).start()
        finally:
            hr.disable(self.spark)

    def poll(self) -> list[MeasuredBatch]:
        """The batches that ended since the last call."""
        assert self._progress is not None
        found = [batch for batch in map(_batch, self._progress.after(self._seen)) if batch.id > self._seen]
        if not found:
            self._raise_if_dead()
            return []
        self._seen = found[-1].id
        self._rows += sum(batch.rows for batch in found)
        return found

    def watch(self) -> Iterator[MeasuredBatch | None]:
        """Yield batches as they end, and None now and then, so that the caller can do other things."""
        pause_s = POLL_S_MIN
        while True:
            found = self.poll()
            yield from found
            if found:
                # Polling costs both engines time; once per tenth of a batch is enough.
                pause_s = min(POLL_S_MAX, max(POLL_S_MIN, found[-1].duration_ms / 10_000))
            else:
                yield None
            time.sleep(pause_s)

    def preload(self) -> Iterator[MeasuredBatch]:
        """Fill the state. Then stop the query if its batches must have another size."""
        if not self.lane.preload_batches:
            return
        self.start(self.lane.preload_rows)
        done = 0
        for batch in self.watch():
            if batch is None:
                continue
            done += 1
            yield batch
            if done >= self.lane.preload_batches:
                break
        if self.lane.preload_rows != self.lane.rows:
            self.stop()

    @property
    def fresh(self) -> bool:
        return self._query is None

    @property
    def running(self) -> bool:
        return self._progress is not None

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        self._progress = None

    def change(self) -> None:
        """Change the running query by ``change`` of its module."""
        self._queries.change(self)

    @property
    def query(self) -> Any:
        """The handle of the running query."""
        return self._query

    def headrace(self) -> list[dict[str, Any]]:
        """Headrace's own progress of the last batches, without long lists. What changes reported comes last, for Spark's engines too."""
        notes = [{"notes": self.notes}] if self.notes else []
        if self.lane.engine != OURS or self._query is None:
            return notes
        kept = [{"id": p["batchId"], **p["headrace"]} for p in self._query.recentProgress if "headrace" in p]
        short = [{**p, "instances": [{k: v for k, v in i.items() if k != "rowsPerSlot"} for i in p["instances"]]} for p in kept]
        return [*short, *notes]

    def check(self) -> Verdict:
        finished = Finished(self.spark, self.lane.engine, self.lane.params, self.folder, self._rows, self._query)
        verdict = self._check.check(finished)
        assert isinstance(verdict, Verdict)
        return verdict

    def _raise_if_dead(self) -> None:
        if not self._query.isActive:
            error = self._query.exception()
            raise LaneDied(str(error) if error else "the query stopped by itself")


def rows_digest(frame: DataFrame) -> str:
    """The number of rows and a hash that does not depend on their order. Equal digests mean equal results."""
    hashed = frame.select(F.xxhash64(*frame.columns).alias("h"))
    wide = F.col("h").cast("decimal(20,0)")
    row = hashed.agg(F.count("*").alias("n"), F.sum(wide).alias("sum"), F.bit_xor("h").alias("xor")).collect()[0]
    total = int(row["sum"] or 0) % 2**64
    return f"{row['n']} rows {total:016x}{(row['xor'] or 0) % 2**64:016x}"


def verdict(found: DataFrame, expected: DataFrame, rows: int, detail: str = "") -> Verdict:
    """Compare two DataFrames. A ``detail`` is a reason why they count as different, whatever their rows."""
    if found.columns != expected.columns:
        raise HeadraceError(where="check", wanted=f"the columns {expected.columns}", found=str(found.columns))
    have, want = rows_digest(found), rows_digest(expected)
    return Verdict(have == want and not detail, have, want, rows, detail)


def _batch(text: str) -> MeasuredBatch:
    progress = json.loads(text)
    source = progress["sources"][0]
    rows = _offset(source["endOffset"]) - _offset(source["startOffset"])
    start = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
    phases = {name: float(ms) for name, ms in progress["durationMs"].items()}
    return MeasuredBatch(int(progress["batchId"]), start.timestamp() * 1000, phases.pop("triggerExecution"), rows, phases)


def _offset(offset: Any) -> int:
    """The number of rows before this offset of the rate-micro-batch source."""
    parsed = json.loads(offset) if isinstance(offset, str) else offset
    return int(parsed["offset"]) if parsed else 0
