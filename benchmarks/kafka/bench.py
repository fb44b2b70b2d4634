"""A query with windows from a topic of Kafka into another, on Headrace and on Spark with RocksDB, in turn against one broker."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from headrace.bench.discover import source_root
from headrace.bench.model import OURS, ROCKSDB, Benchmark, DirectResult, Option, Options
from headrace.errors import HeadraceError

DEFAULTS: dict[str, Option] = {"calls": 1_500_000, "batch": 100_000, "partitions": 4, "warmup": 3, "rounds": 1, "seed": 7}
ENGINES = (OURS, ROCKSDB)
RATE = 20_000.0


def measure(options: Options) -> DirectResult:
    """Fill a topic, let each engine read all of it, and compare what they wrote with Spark's batch answer."""
    from headrace.demo.places import Topics

    if int(options["calls"]) < (int(options["warmup"]) + 1) * int(options["batch"]):
        raise HeadraceError(where="bench kafka --calls", wanted="more calls than --warmup batches have", found=str(options["calls"]))
    with tempfile.TemporaryDirectory(prefix="headrace-kafka-") as scratch:
        folder = Path(scratch)
        topics = Topics(folder / "kafka", int(options["partitions"]))
        try:
            fill(topics, int(options["calls"]), int(options["seed"]))
            lanes = [(f"{name}-{at}", name) for at in range(int(options["rounds"])) for name in ENGINES]
            found = [lane(topics.broker.address, folder, topic, engine, options) for topic, engine in lanes]
        finally:
            topics.close()
    return summary(found)


def fill(topics: Any, calls: int, seed: int) -> None:
    """Put so many calls of the demo into the topic."""
    from headrace.demo.calls import CallMaker, RateCurve

    maker = CallMaker(RateCurve(RATE, calls / RATE), seed)
    tick = left = 0
    left = calls
    while left:
        made = maker.tick(tick).slice(0, left)
        topics.prepare(tick, made)()
        left, tick = left - made.num_rows, tick + 1
    print(f"kafka: {calls:,} calls are in the topic", flush=True)


def lane(address: str, folder: Path, topic: str, engine: str, options: Options) -> dict[str, Any]:
    """Run one engine in a process of its own, until it has read the topic."""
    command = [sys.executable, "-m", "benchmarks.kafka.lane", engine, address, topic, str(folder / topic), str(options["batch"])]
    done = subprocess.run(command, cwd=source_root(), capture_output=True, text=True)
    if done.returncode:
        raise HeadraceError(where=f"bench kafka, {engine}", found=done.stderr[-2000:])
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    measured = seen["batches"][int(options["warmup"]) :]
    seconds = sum(batch["ms"] for batch in measured) / 1000
    rate = sum(batch["rows"] for batch in measured) / seconds
    print(f"kafka: {topic}: {rate:,.0f} rows/s in {len(measured)} batches; {seen['said']}", flush=True)
    return {"engine": engine, "rate": rate, "batches": len(measured), "seconds": seconds, **seen}


def summary(found: list[dict[str, Any]]) -> DirectResult:
    """The best round of each engine counts: what slows a round down is something else on the machine."""
    rates = {name: max(each["rate"] for each in found if each["engine"] == name) for name in ENGINES}
    table = Table(title="kafka: a query with windows, from a topic into a topic", title_justify="left")
    for name in ("engine", "rows/s", "batch, median", "results", "equal"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for each in found:
        table.add_row(each["engine"], f"{each['rate']:,.0f}", f"{each['median_ms']:,.0f} ms", f"{each['results']:,}", str(each["equal"]))
    extra = {"lanes_seen": [{name: each[name] for name in ("engine", "rate", "median_ms", "results", "said")} for each in found]}
    return DirectResult((), rates.pop(OURS), rates, all(each["equal"] for each in found), extra, (table,))


BENCHMARK = Benchmark(
    name="kafka",
    line="a query with windows from a topic of Kafka into another",
    options=DEFAULTS,
    lanes=lambda options: [],
    measure=measure,
)
