"""Runs the demo: starts the query, feeds calls, shows progress, drains, checks and reports."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from rich.console import Console
from rich.live import Live
from rich.table import Table

import headrace as hr
from headrace.control.governor import Outcome
from headrace.demo import page, view
from headrace.demo.calls import CallMaker, CallWriter, RateCurve, about, event_time_ms
from headrace.demo.check import Verdict, compare
from headrace.demo.folder import DemoFolder, prepare
from headrace.demo.measure import Recorder, together
from headrace.demo.places import Folders, Places, Topics
from headrace.demo.query import heavy_customers
from headrace.errors import HeadraceError, SessionError
from headrace.report.machine import machine
from headrace.report.page import Page, render
from headrace.spark.gateway import java_version

TRIGGER = "2 seconds"
"""At this interval the fixed cost of a task matters little."""
ELASTIC = hr.Elastic(policy="elastic-manager", min=1, max=4, lower=0.045, target=0.05, upper=0.055, period_s=3.0, cooldown_s=4.0)
"""At these rates instances are busy for a few percent of the time, so the limits are low and close together. They make the number of
instances change on a small machine too. For a real stream, use the defaults."""
LATENCY_OVER_S = 10.0
"""The live view's percentiles cover this much of the past."""
RATE_OVER_S = 3.0
LINE_EVERY_S = 3.0
EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 130


@dataclass(frozen=True)
class DemoOptions:
    """The user's options."""

    out: Path
    seconds: float
    seed: int
    rate: float
    kafka: bool = False
    """Calls come from a topic of Kafka, and results go to one."""


@dataclass
class Demo:
    """A running demo."""

    options: DemoOptions
    folder: DemoFolder
    places: Places
    console: Console
    spark: Any
    query: Any
    writer: CallWriter
    recorder: Recorder
    interrupted: threading.Event
    begin_s: float = field(default_factory=time.time)
    explained: str = ""

    def flow(self) -> None:
        """Warm up, then feed calls until the time is over, and show the progress."""
        with self._showing() as show:
            show("warming up")
            self.writer.write(0)
            self._wait_for(self.writer.rows, show, "warming up")
            self.recorder.warmed_up()
            self.begin_s = time.time()
            self.writer.start()
            while self.writer.running and self.query.isActive and not self.interrupted.wait(0.5):
                show("running")
            self.writer.stop()
            if self.writer.error is not None:
                raise HeadraceError(where="the demo's generator", found=repr(self.writer.error))
            self._wait_for(self.writer.rows, show, "draining")
        if not self.interrupted.is_set():
            self.query.processAllAvailable()
        self.explained = _printed(self.query.explain)

    def stop(self) -> None:
        self.writer.stop()
        self.query.stop()

    def _wait_for(self, rows: int, show: Any, phase: str) -> None:
        while self.recorder.rows < rows and not self.interrupted.is_set():
            if not self.query.isActive:
                self.query.awaitTermination()
                raise HeadraceError(where="demo", wanted="a running query", found="that it stopped", hint=f"see {self.folder.spark_log}")
            self.interrupted.wait(0.2)
            show(phase)

    @contextlib.contextmanager
    def _showing(self) -> Iterator[Any]:
        if not self.console.is_terminal:
            yield self._show_lines()
            return
        with Live(console=self.console, auto_refresh=False, screen=False, transient=False) as live:

            def show(phase: str) -> None:
                self.recorder.update()
                width, height = self.console.size
                live.update(view.render(self.snapshot(phase), width, height), refresh=True)

            yield show

    def _show_lines(self) -> Any:
        shown = {"at": 0.0, "phase": ""}

        def show(phase: str) -> None:
            self.recorder.update()
            if phase != shown["phase"]:
                shown.update(at=time.time(), phase=phase)
                self.console.print(f"{phase} ...", highlight=False)
            elif phase != "warming up" and time.time() - float(str(shown["at"])) >= LINE_EVERY_S:
                shown["at"] = time.time()
                self.console.print(view.line(self.snapshot(phase)), highlight=False, soft_wrap=True)

        return show

    def snapshot(self, phase: str) -> view.Snapshot:
        now_s = time.time()
        arrivals, measured = list(self.writer.arrivals), self.recorder.measured
        by_version = self.recorder.latencies(arrivals)
        recent = [s for s in measured if s.end_s > now_s - LATENCY_OVER_S] or measured[-1:]
        seen = together(by_version[s.version] for s in recent if s.version in by_version)
        last = self.recorder.samples[-1] if self.recorder.samples else None
        window = [s for s in measured if s.end_s > now_s - RATE_OVER_S] or measured[-1:]
        earlier = [s for s in measured if window and s.version < window[0].version]
        span = window[-1].end_s - (earlier[-1].end_s if earlier else self.begin_s) if window else 1.0
        came = sum(a.rows for a in arrivals[1:] if a.at_s > now_s - 1.0)
        halves = range(int(self.writer.second * 2))
        changes = [each for each in self.query.decisions() if each.outcome is Outcome.PERFORMED]
        return view.Snapshot(
            phase=phase,
            second=self.writer.second,
            seconds=self.options.seconds,
            rates=tuple(self.writer.maker.curve.at(s / 2) for s in halves),
            counts=tuple(self.recorder.instances_at(self.begin_s + s / 2) for s in halves),
            decided=f"{page.decision_text(changes[-1], self.begin_s)}: {changes[-1].why}" if changes else "",
            rate_in=came,
            rate_taken=sum(s.rows for s in window) / max(span, 0.1),
            rate_out=sum(s.rows_out for s in window) / max(span, 0.1),
            backlog=max(0, self.writer.rows - self.recorder.rows),
            p50_ms=seen.percentile(0.5),
            p95_ms=seen.percentile(0.95),
            p99_ms=seen.percentile(0.99),
            lag_s=None if not last or last.watermark_ms <= 0 else max(0.0, event_time_ms(self.writer.second) - last.watermark_ms) / 1000,
            last=last,
        )

    def summary(self) -> Table:
        measured = self.recorder.measured
        every = together(self.recorder.latencies(self.writer.arrivals).values())
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title="summary", title_justify="left", title_style="bold")
        for each in page.figures(measured, every, self.seconds):
            table.add_row(each.label, each.value)
        if measured:
            last = measured[-1]
            table.add_row("instances", page.instances_text(measured))
            table.add_row("state at the end", f"{last.state_rows:,} rows, {page.size(last.state_bytes)}, {last.runs} runs")
            table.add_row("watermark at the end", view.clock(last.watermark_ms))
        return table

    @property
    def seconds(self) -> float:
        measured = self.recorder.measured
        return max(measured[-1].end_s - self.begin_s, 1e-3) if measured else 1e-3

    def check(self) -> Verdict:
        last = self.recorder.samples[-1].watermark_ms if self.recorder.samples else 0
        return compare(self.spark, self.places, last)

    def report(self, verdict: Verdict) -> Path:
        measured = self.recorder.measured
        by_version = self.recorder.latencies(self.writer.arrivals)
        end_s = self.begin_s + self.seconds
        java = java_version(self.spark)
        made = Page(
            title="Headrace demo: heavy customers",
            subtitle=(
                f"{self.options.seconds:.0f} seconds of calls, at a rate that rises and falls; their average duration per customer "
                "over sliding windows, on one machine with embedded Spark. "
                "The batch that warms Spark up is in the answer, but not in the figures."
            ),
            verdict=str(verdict)[0].upper() + str(verdict)[1:],
            good=verdict.equal,
            figures=page.figures(measured, together(by_version.values()), self.seconds),
            plots=[
                *page.elastic_plots(measured, self.recorder.utilisation(ELASTIC.period_s), ELASTIC, self.begin_s, end_s),
                *page.plots(measured, self.writer.arrivals[1:], by_version, self.begin_s),
            ],
            tables={
                "Decisions": page.decision_rows(self.query.decisions(), self.begin_s),
                "Input": [(k, str(v)) for k, v in about(self.writer.maker.curve, self.options.seed).items()],
                "Machine and versions": machine(java),
            },
            texts={"The query": page.query_source(), "The plan": self.explained}
            | ({"Differences": "\n".join(verdict.examples)} if verdict.examples else {}),
        )
        self.folder.report.write_text(render(made), encoding="utf-8")
        return self.folder.report


def run(options: DemoOptions, console: Console) -> int:
    """Run the whole demo and return the exit code."""
    folder = prepare(options.out)
    console.print(f"starting {'Kafka and ' if options.kafka else ''}Spark ...", highlight=False)
    places: Places = Topics(folder.kafka) if options.kafka else Folders(folder.calls, folder.heavy)
    with contextlib.closing(places):
        return _run(options, folder, places, console)


def _run(options: DemoOptions, folder: DemoFolder, places: Places, console: Console) -> int:
    spark = _session(folder, places)
    try:
        with _ctrl_c() as interrupted:
            demo = _start(options, folder, places, console, spark, interrupted)
            try:
                demo.flow()
            finally:
                demo.stop()
        if interrupted.is_set():
            console.print(f"interrupted: stopped after {demo.recorder.rows:,} calls; nothing was checked", highlight=False)
            return EXIT_INTERRUPTED
        return _conclude(demo)
    finally:
        spark.stop()


def _session(folder: DemoFolder, places: Places) -> Any:
    try:
        with _stderr_into(folder.spark_log):
            spark = hr.session(
                "headrace demo",
                spark__ui__enabled="false",
                spark__sql__session__timeZone="UTC",
                spark__driver__memory="2g",
                # For the batch answer; Spark's default of 200 is meant for clusters.
                spark__sql__shuffle__partitions="8",
                **places.settings(),
            )
    except PySparkException as failed:
        hint = f"its own words are in {folder.spark_log}"
        raise SessionError("Spark did not start", where="demo", found=str(failed), hint=hint) from failed
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _start(options: DemoOptions, folder: DemoFolder, places: Places, console: Console, spark: Any, interrupted: threading.Event) -> Demo:
    query = (
        places.write(heavy_customers(hr.stream(places.stream(spark))))
        .option("checkpointLocation", str(folder.checkpoint))
        .elastic(ELASTIC)
        .trigger(processingTime=TRIGGER)
        .start()
    )
    writer = CallWriter(CallMaker(RateCurve(options.rate, options.seconds), options.seed), places.prepare, options.seconds)
    return Demo(options, folder, places, console, spark, query, writer, Recorder(lambda: query.recentProgress), interrupted)


def _conclude(demo: Demo) -> int:
    console = demo.console
    console.print(demo.summary())
    console.print(f"comparing with Spark's batch answer over the same {demo.places.what} ...", highlight=False)
    verdict = demo.check()
    console.print(str(verdict), style="bold green" if verdict.equal else "bold red", highlight=False)
    for example in verdict.examples:
        console.print(example, highlight=False, markup=False, soft_wrap=True)
    report = demo.report(verdict)
    console.print(f"report: {report}", highlight=False, markup=False, soft_wrap=True)
    return 0 if verdict.equal else EXIT_DIFFERENT


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """A first Ctrl-C asks for a clean stop, a second one interrupts. Spark's own handler would cancel the current batch."""
    asked = threading.Event()

    def on_interrupt(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Processes that start inside write stderr to a file: the JVM's log lines would disturb the live view."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _printed(call: Any) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        call()
    return out.getvalue().strip()
