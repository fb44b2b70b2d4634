"""A steady load for a long time: ``make soak SECONDS=3600``, or ``python -m tests.soak --seconds 60 --rate 2000``.

One query with a running aggregate, sliding windows and dropDuplicates reads files that come at a constant rate, and changes its number
of instances now and then. Every few seconds files, descriptors, threads, memory and batch time are recorded, and printed once a minute.
At the end the median of the last quarter is compared with that of the second. The program exits with 1 if a metric has grown by more
than its tolerance, or if the running aggregate has missed a row or counted it twice. The figures are written as JSON and plotted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.runtime.checkpoint import Checkpoint
from headrace.spark.gateway import jvm_of

KEYS = 500
FILES_PER_S = 2
KEEP_FILES_S = 180
"""How long a source file is kept. By then it has been read, or the query has fallen behind."""
TELL_S = 60
TOTALS = "totals"
MEGA = 1 << 20


@dataclass(frozen=True)
class Metric:
    """The metrics, and by how much the median of each may grow: a share and an amount."""

    name: str
    share: float
    amount: float


METRICS = (
    Metric("files", 0.25, 30),
    Metric("unnamed", 0.0, 5),
    Metric("manifests", 0.0, 2),
    Metric("driver descriptors", 0.1, 10),
    Metric("threads", 0.1, 5),
    Metric("worker descriptors", 0.25, 40),
    Metric("worker memory MB", 0.2, 50),
    Metric("driver memory MB", 0.15, 40),
    Metric("JVM heap MB", 0.2, 50),
    Metric("JVM memory MB", 0.2, 150),
    Metric("batch ms", 0.4, 200),
)


@dataclass(frozen=True)
class Finding:
    """A metric's median in the second quarter of the time and in the last."""

    metric: str
    before: float
    after: float
    allowed: float

    @property
    def grows(self) -> bool:
        return self.after > self.allowed


@dataclass
class Soak:
    """The load, the query under it, and what was measured."""

    spark: SparkSession
    folder: Path
    seconds: float
    rate: int
    """Rows a second."""
    every_s: float = 5.0
    rescale_s: float = 30.0
    trigger_s: float = 1.0
    seed: int = 7
    samples: list[dict[str, float]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    rescales: int = 0
    rows_fed: int = 0
    rows_counted: int = 0

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self) -> None:
        (self.folder / "in").mkdir(parents=True)
        feeder = threading.Thread(target=self._feed, name="soak-feeder", daemon=True)
        feeder.start()
        query = self._start()
        random = Random(self.seed)
        began = rescaled = told = time.monotonic()
        try:
            while (now := time.monotonic()) - began < self.seconds:
                self.ended.wait(self.every_s)
                if now - rescaled >= self.rescale_s:
                    query.rescale(random.randint(1, 3))
                    rescaled, self.rescales = now, self.rescales + 1
                if query.lastProgress is not None:
                    self.samples.append({"s": time.monotonic() - began, **self._measured(query)})
                if self.samples and now - told >= TELL_S:
                    told = now
                    print(_line(self.samples[-1], self.rows_fed, self.rescales), flush=True)
                if not query.isActive:
                    break
            self.ended.set()
            feeder.join()
            query.processAllAvailable()
            self.rows_counted = query.state(TOTALS).agg(F.sum("n")).first()[0]
        finally:
            self.ended.set()
            feeder.join()
            query.stop()
        if (failed := query.exception()) is not None:
            raise failed

    def findings(self) -> list[Finding]:
        quarter = len(self.samples) // 4
        found = []
        for metric in METRICS:
            before = statistics.median(sample[metric.name] for sample in self.samples[quarter : 2 * quarter])
            after = statistics.median(sample[metric.name] for sample in self.samples[3 * quarter :])
            found.append(Finding(metric.name, before, after, before * (1 + metric.share) + metric.amount))
        return found

    def _start(self) -> HeadraceQuery:
        rows = self.spark.readStream.schema("k int, v int, t timestamp").json(str(self.folder / "in"))
        events = hr.stream(rows.withWatermark("t", "2 seconds"))
        total = events.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s")).named(TOTALS).writeStream.outputMode("update")
        window = events.groupBy("k", F.window("t", "4 seconds", "2 seconds")).agg(F.max("v").alias("high"))
        once = events.dropDuplicates(["k", "t"])
        writers = [total, window.writeStream.outputMode("append"), once.writeStream.outputMode("append")]
        options = {"headrace.versionsToKeep": "5", "headrace.depthMax": "4"}
        writers = [writer.options(**options).foreachBatch(_count) for writer in writers]
        return hr.start(*writers, checkpointLocation=str(self.checkpoint), processingTime=f"{self.trigger_s} seconds")

    def _feed(self) -> None:
        random, number = Random(self.seed), 0
        written: list[tuple[float, Path]] = []
        began = time.monotonic()
        while not self.ended.wait(max(0.0, began + number / FILES_PER_S - time.monotonic())):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            rows = ((random.randrange(KEYS), random.randrange(1000)) for _ in range(self.rate // FILES_PER_S))
            lines = (f'{{"k":{k},"v":{v},"t":"{stamp}"}}' for k, v in rows)
            path = self.folder / "in" / f"{number:07d}.json"
            path.with_name(f".{path.name}").write_text("\n".join(lines))
            path.with_name(f".{path.name}").rename(path)
            written.append((time.monotonic(), path))
            number += 1
            self.rows_fed += self.rate // FILES_PER_S
            while written and written[0][0] < time.monotonic() - KEEP_FILES_S:
                written.pop(0)[1].unlink(missing_ok=True)

    def _measured(self, query: HeadraceQuery) -> dict[str, float]:
        jvm = jvm_of(self.spark)
        jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        java = _children(os.getpid(), "java")
        workers = [worker for process in java for worker in _descendants(process)]
        batches = [p["headrace"]["phasesMs"] for p in query.recentProgress[-10:]]
        files, unnamed, manifests = self._files()
        return {
            "files": files,
            "unnamed": unnamed,
            "manifests": manifests,
            "driver descriptors": _descriptors(os.getpid()),
            "threads": threading.active_count(),
            "worker descriptors": max(map(_descriptors, workers), default=0),
            "worker memory MB": sum(map(_resident, workers)) / MEGA,
            "driver memory MB": _resident(os.getpid()) / MEGA,
            "JVM heap MB": (runtime.totalMemory() - runtime.freeMemory()) / MEGA,
            "JVM memory MB": sum(map(_resident, java)) / MEGA,
            "batch ms": statistics.median(sum(phases.values()) for phases in batches),
        }

    def _files(self) -> tuple[int, int, int]:
        """All, those that no kept version names, and manifests. The newest version may be in the making: it has no manifest yet."""
        checkpoint = Checkpoint.existing(str(self.checkpoint))
        there = {(folder.name, path.name) for folder in (checkpoint.runs, checkpoint.staged) for path in folder.iterdir()}
        versions = checkpoint.manifests.versions()
        named: set[tuple[str, str]] = set()
        for version in versions:
            manifest = checkpoint.manifests.read_if_exists(version)
            named |= manifest.files() if manifest is not None else set()
        newest = versions[-1] if versions else -1
        old = {(folder, file) for folder, file in there if file[1:13].isdigit() and int(file[1:13]) <= newest}
        return len(there), len(old - named), len(versions)


def _line(sample: dict[str, float], rows: int, rescales: int) -> str:
    shown = ", ".join(f"{metric.name} {sample[metric.name]:.0f}" for metric in METRICS)
    return f"{sample['s'] / 60:3.0f} min  {rows:,} rows, {rescales} changes; {shown}"


def _count(rows: DataFrame, version: int) -> None:
    rows.count()


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _children(parent: int, name: str = "") -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) and int(stat[1]) == parent:
            try:
                if Path(f"/proc/{entry}/comm").read_text().startswith(name):
                    found.append(int(entry))
            except OSError:
                continue
    return found


def _descendants(parent: int) -> list[int]:
    return [each for child in _children(parent) for each in (child, *_descendants(child))]


def _descriptors(process: int) -> int:
    """Open files; mapped ones count too, as a map may outlive its descriptor."""
    try:
        with open(f"/proc/{process}/maps") as maps:
            mapped = len({line.split(maxsplit=5)[5] for line in maps if ".arrow" in line})
        return len(os.listdir(f"/proc/{process}/fd")) + mapped
    except OSError:
        return 0


def _resident(process: int) -> int:
    """The private memory of the process; mapped files belong to the page cache."""
    try:
        with open(f"/proc/{process}/status") as status:
            return sum(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
    except OSError:
        return 0


def draw(samples: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(METRICS), 1, figsize=(9, 2 * len(METRICS)), sharex=True)
    for metric, axis in zip(METRICS, axes, strict=True):
        axis.plot([sample["s"] for sample in samples], [sample[metric.name] for sample in samples], linewidth=1)
        axis.set_ylabel(metric.name, fontsize=8)
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=2000, help="rows a second")
    parser.add_argument("--every", type=float, default=5, help="seconds between two samples")
    parser.add_argument("--rescale", type=float, default=30, help="seconds between two changes of the number of instances")
    parser.add_argument("--out", type=Path, default=Path("soak-out"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    spark = hr.session("soak", master="local[2]", spark__ui__enabled="false", spark__sql__shuffle__partitions="2")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as folder:
        soak = Soak(spark, Path(folder) / "soak", given.seconds, given.rate, min(given.every, given.seconds / 20), given.rescale)
        soak.run()
    findings = soak.findings()
    about = {"seconds": given.seconds, "rate": given.rate, "rescales": soak.rescales, "fed": soak.rows_fed, "counted": soak.rows_counted}
    told = {**about, "findings": [{**asdict(finding), "grows": finding.grows} for finding in findings], "samples": soak.samples}
    (given.out / "soak.json").write_text(json.dumps(told, indent=1))
    draw(soak.samples, given.out / "soak.svg")
    for finding in findings:
        verdict = "GROWS" if finding.grows else "flat"
        print(f"{finding.metric:20} second quarter {finding.before:10.1f}   last quarter {finding.after:10.1f}   {verdict}")
    print(f"{soak.rows_fed:,} rows fed, {soak.rows_counted:,} counted, {soak.rescales} changes of instances")
    spark.stop()
    return 1 if any(finding.grows for finding in findings) or soak.rows_fed != soak.rows_counted else 0


if __name__ == "__main__":
    sys.exit(main())
