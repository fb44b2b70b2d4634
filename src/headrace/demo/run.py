"""Runs the demo: starts both lanes, feeds them calls, kills one, shows what happens, checks and reports."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.dashboard.queries import Queries
from headrace.dashboard.server import Server
from headrace.demo import captions, page, view
from headrace.demo.calls import HOT_SHARE, TICK_S, CallMaker, CallWriter, RateCurve
from headrace.demo.check import Verdict
from headrace.demo.folder import DemoFolder, prepare
from headrace.demo.lane import ELASTIC, STATIC, LaneSpec
from headrace.demo.lanes import Lane
from headrace.demo.measure import Done, Recording, delays, latencies
from headrace.demo.places import BATCH_FILES, Folders, Places, Topics
from headrace.demo.tariffs import TAKES_S, TariffService
from headrace.demo.watch import Watcher
from headrace.errors import HeadraceError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.endpoint import ask

WARM_TICKS = 3
"""Ticks before the demo begins, one after the other, so that both lanes have run some batches."""
REBALANCE_AT = 0.52
"""When ``headrace ctl rebalance`` is called, as a part of the time: some seconds after one customer got hot."""
KILL_AT = 0.65
"""When the elastic lane's driver is killed, as a part of the time."""
CUSTOMERS = 500
TASKS_PER_PARTITION = 6
"""The elastic lane may have so many times the instances that the static lane has partitions."""
PERIOD_S, COOLDOWN_S = 2.0, 4.0
LOOK_S = 0.25
LINE_EVERY_S = 3.0
START_S_MAX, DRAIN_S_MAX = 240.0, 240.0
REMOVE_S_MAX = 10.0
SHORT, PATH_LENGTH_MAX = "/tmp", 20
EXIT_DIFFERENT, EXIT_INTERRUPTED = 1, 130

Show = Callable[[str], None]


@dataclass(frozen=True)
class DemoOptions:
    """The user's options."""

    out: Path
    seconds: float
    seed: int
    rate: float
    kafka: bool = False
    """Calls come from a topic of Kafka, and results go to topics."""
    browser: bool = True
    """The monitor is opened in a browser, where there is a display."""

    @property
    def partitions(self) -> int:
        """The partitions of the static lane: as many as can process the average rate, if every task gets the same."""
        return max(1, round(self.rate * TAKES_S))

    @property
    def tasks(self) -> int:
        return TASKS_PER_PARTITION * self.partitions


@dataclass
class Demo:
    """A running demo."""

    options: DemoOptions
    folder: DemoFolder
    places: Places
    console: Console
    lanes: dict[str, Lane]
    writer: CallWriter
    watcher: Watcher
    monitor: Server
    interrupted: threading.Event
    begin_s: float = field(default_factory=time.time)
    _killed_s: float = 0.0
    _rebalancing: threading.Thread | None = None

    def flow(self) -> None:
        """Warm up, then feed calls until the time is over, and show what happens."""
        for lane in self.lanes.values():
            lane.start()
        with self._showing() as show:
            for tick in range(WARM_TICKS):
                self.writer.write(tick)
                self._wait("starting both lanes", show, START_S_MAX, lambda: self._all_answered(self.writer.rows))
            if self.interrupted.is_set():
                return
            self.begin_s = self.watcher.begin_s = time.time()
            self.monitor.start()
            self._open_browser()
            self.writer.start(WARM_TICKS)
            while self.writer.running and not self.interrupted.wait(LOOK_S):
                self._act()
                show("running")
            self.writer.stop()
            if self.writer.error is not None:
                raise HeadraceError(where="the demo's generator", found=repr(self.writer.error))
            self._wait("draining", show, DRAIN_S_MAX, lambda: self.watcher.answered(ELASTIC) >= self.writer.rows)
            self._note_back()

    def _all_answered(self, rows: int) -> bool:
        return all(self.watcher.answered(name) >= rows for name in self.lanes)

    def _wait(self, phase: str, show: Show, most_s: float, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + most_s
        while not ready() and not self.interrupted.wait(LOOK_S):
            self._act()
            show(phase)
            if time.monotonic() > until:
                found = f"that it did not within {most_s:.0f} s"
                hint = f"see {self.lanes[ELASTIC].log}"
                raise HeadraceError(where=f"demo, {phase}", wanted="lanes that go on", found=found, hint=hint)

    def _act(self) -> None:
        """Read what is new, and do what is due."""
        self.watcher.update()
        for lane in self.lanes.values():
            lane.check_alive()
        if not self.writer.second:
            return
        self.watcher.note_hot(self.options.seconds)
        if self._rebalancing is None and self.writer.second >= REBALANCE_AT * self.options.seconds:
            self._rebalancing = threading.Thread(target=self._rebalance, name="headrace-demo-rebalance", daemon=True)
            self._rebalancing.start()
        if not self._killed_s and self.writer.second >= KILL_AT * self.options.seconds:
            lane = self.lanes[ELASTIC]
            self._killed_s = time.time()
            self.watcher.note("kill", f"kill -9 {lane.pid}: the driver of Headrace's lane is gone", self._killed_s)
            lane.kill()
            lane.start()
        self._note_back()

    def _rebalance(self) -> None:
        """What ``headrace ctl rebalance`` and ``headrace ctl auto`` do. A thread waits for the answer, which comes between two batches."""
        began_s = time.time()
        try:
            checkpoint = Checkpoint.existing(str(self.folder.checkpoint(ELASTIC)))
            moved = sum(
                change["slotsMoved"] for change in ask(checkpoint, {"do": "rebalance", "operator": None, "protocol": None})["changes"]
            )
            ask(checkpoint, {"do": "auto", "operator": None})
            said = f"{captions.many(moved, 'slot')} moved"
        except HeadraceError as refused:
            said = str(refused)
        self.watcher.note("rebalance", f"headrace ctl rebalance: {said}", began_s)

    def _note_back(self) -> None:
        """Note when the lane that was killed has finished a batch again."""
        self.watcher.update()
        if self._killed_s and not any(mark.kind == "back" for mark in self.watcher.marks):
            after = [each.at_s for each in self.watcher.logs[ELASTIC].finished if each.at_s > self._killed_s]
            if after:
                took = captions.seconds(after[0] - self._killed_s)
                self.watcher.note("back", f"it is back after {took}, from its checkpoint", after[0])

    def _open_browser(self) -> None:
        display = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
        opened = self.options.browser and display and self.console.is_terminal and webbrowser.open(self.monitor.url)
        if not self.console.is_terminal or opened:
            self.console.print(f"the monitor is at {self.monitor.url}", highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def _showing(self) -> Iterator[Show]:
        if not self.console.is_terminal:
            yield self._show_lines()
            return
        with Live(console=self.console, auto_refresh=False, screen=False, transient=False) as live:

            def show(phase: str) -> None:
                width, height = self.console.size
                live.update(view.render(self.snapshot(phase), width, height), refresh=True)

            yield show

    def _show_lines(self) -> Show:
        shown: dict[str, Any] = {"at": 0.0, "phase": "", "marks": 0}

        def show(phase: str) -> None:
            marks = self.watcher.marks
            for mark in marks[shown["marks"] :]:
                self.console.print(f"{max(0.0, mark.at_s):4.0f} s  {mark.text}", highlight=False, markup=False, soft_wrap=True)
            shown["marks"] = len(marks)
            if phase != shown["phase"]:
                shown.update(at=time.time(), phase=phase)
                self.console.print(f"{phase} ...", highlight=False)
            elif self.writer.second and time.time() - shown["at"] >= LINE_EVERY_S:
                shown["at"] = time.time()
                self.console.print(view.line(self.snapshot(phase)), highlight=False, soft_wrap=True)

        return show

    def snapshot(self, phase: str) -> view.Snapshot:
        now_s = time.time() - self.begin_s if self.writer.second else 0.0
        run = self.watcher.recording(self.options.seconds)
        lanes = {name: _lane_view(run, done, now_s) for name, done in ((STATIC, run.static), (ELASTIC, run.elastic))}
        killed, back = run.mark("kill"), run.mark("back")
        return view.Snapshot(
            phase=phase,
            second=self.writer.second,
            seconds=self.options.seconds,
            rates=tuple(self.writer.maker.curve.at(at) for at in range(int(self.writer.second) + 1)),
            static=lanes[STATIC],
            elastic=lanes[ELASTIC],
            partitions=self.options.partitions,
            rate_most=self.writer.maker.curve.peak,
            instances_most=float(self.options.tasks),
            counts=tuple(run.instances()[: int(self.writer.second) + 1].tolist()) if run.points else (),
            heat=self.watcher.heat,
            marks=run.marks,
            monitor=self.monitor.url,
            down=killed is not None and back is None,
        )

    def check(self) -> tuple[Verdict, str]:
        """Compare the elastic lane with Spark's batch answer; what to say of the static one."""
        run = self.watcher.recording(self.options.seconds)
        now_s = time.time() - self.begin_s
        left = latencies(run.arrivals, run.static, now_s)
        self.lanes[ELASTIC].ask("stop")
        self.lanes[ELASTIC].ask("state", to=str(self.folder.bills))
        self.lanes[ELASTIC].kill()
        static = self.lanes[STATIC]
        static.ask("stop")
        verdict = Verdict.from_json(static.ask("check", lane=ELASTIC, state=str(self.folder.bills)))
        if left.behind:
            waits = f"{left.behind:,} of {run.rows:,} calls wait, the oldest for {captions.seconds(left.oldest_s)}"
            return verdict, f"plain Spark's lane is not done: {waits}"
        return verdict, f"plain Spark's lane: {Verdict.from_json(static.ask('check', lane=STATIC, state=None))}"

    def report(self, verdict: Verdict, static: str) -> Path:
        run = self.watcher.recording(self.options.seconds)
        self.folder.recording.write_text(json.dumps(run.to_json()), encoding="utf-8")
        text = page.report(run, verdict, static, self.options.partitions, self.lanes[ELASTIC].spec.elastic, self.writer.maker)
        self.folder.report.write_text(text, encoding="utf-8")
        return self.folder.report


def _lane_view(run: Recording, done: tuple[Done, ...], now_s: float) -> view.LaneView:
    waiting = latencies(run.arrivals, done, now_s).behind
    return view.LaneView(tuple(delays(run.arrivals, done, now_s).tolist()) if now_s else (), waiting)


def run(options: DemoOptions, console: Console) -> int:
    """Run the whole demo and return the exit code."""
    folder = prepare(options.out)
    if options.kafka:
        console.print("starting Kafka ...", highlight=False)
    with contextlib.ExitStack() as ending:
        interrupted = ending.enter_context(_ctrl_c())
        places: Places = Topics(folder.kafka, lanes=(STATIC, ELASTIC)) if options.kafka else Folders(folder.calls, folder.path)
        ending.callback(places.close)
        tariffs = TariffService()
        tariffs.start()
        ending.callback(tariffs.stop)
        scratch = tempfile.mkdtemp(prefix="headrace-demo-", dir=_short_folder())
        ending.callback(_remove, scratch)
        demo = _made(options, folder, places, console, tariffs.port, scratch, interrupted)
        ending.callback(demo.monitor.stop)
        for lane in demo.lanes.values():
            # What a lane has to finish it has finished when the demo ends, or nobody wants it any more.
            ending.callback(lane.kill)
        ending.callback(demo.writer.stop)
        demo.flow()
        if interrupted.is_set():
            console.print(f"interrupted: stopped after {demo.watcher.answered(ELASTIC):,} calls; nothing was checked", highlight=False)
            return EXIT_INTERRUPTED
        return _conclude(demo)


def _made(
    options: DemoOptions, folder: DemoFolder, places: Places, console: Console, port: int, scratch: str, interrupted: threading.Event
) -> Demo:
    lanes = {}
    for name in (STATIC, ELASTIC):
        mine = Path(scratch) / name
        mine.mkdir()
        about = places.about()
        sizes = options.tasks, options.partitions, round(BATCH_FILES * TICK_S * options.rate)
        spec = LaneSpec(name, str(folder.checkpoint(name)), about, port, *sizes, PERIOD_S, COOLDOWN_S, str(mine))
        lanes[name] = Lane(spec, folder.log(name))
    maker = CallMaker(RateCurve(options.rate, options.seconds), options.seed, CUSTOMERS, HOT_SHARE)
    writer = CallWriter(maker, places.prepare, options.seconds, by_files=not options.kafka)
    queries = Queries()
    watcher = Watcher(folder, writer, queries)
    return Demo(options, folder, places, console, lanes, writer, watcher, Server(queries), interrupted)


def _short_folder() -> str:
    """Where temporary files go. Spark has sockets among them, and the system allows about a hundred characters for the path of one."""
    usual = tempfile.gettempdir()
    return SHORT if len(usual) > PATH_LENGTH_MAX and os.access(SHORT, os.W_OK) else usual


def _remove(scratch: str) -> None:
    """Remove temporary files. Workers of a lane that was killed may write for another moment."""
    until = time.monotonic() + REMOVE_S_MAX
    while os.path.exists(scratch) and time.monotonic() < until:
        shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(0.1)


def _conclude(demo: Demo) -> int:
    console = demo.console
    run = demo.watcher.recording(demo.options.seconds)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "plain Spark", "Headrace"):
        table.add_column(name, justify="right" if name else "left")
    for row in captions.compared(run, demo.options.partitions):
        table.add_row(*row)
    console.print(table)
    # A log has one line for each.
    whole = not console.is_terminal
    for sentence in (captions.instances(run), captions.hot(run), captions.kill(run)):
        console.print(sentence, highlight=False, markup=False, soft_wrap=whole)
    console.print(f"comparing with Spark's batch answer over the same {demo.places.what} ...", highlight=False)
    verdict, static = demo.check()
    console.print(str(verdict), style="bold green" if verdict.equal else "bold red", highlight=False, soft_wrap=whole)
    for example in verdict.examples:
        console.print(example, highlight=False, markup=False, soft_wrap=True)
    console.print(static, highlight=False, markup=False, soft_wrap=True)
    report = demo.report(verdict, static)
    console.print(f"report: {report}", highlight=False, markup=False, soft_wrap=True)
    return 0 if verdict.equal else EXIT_DIFFERENT


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """A first Ctrl-C asks for a clean stop, a second one interrupts."""
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
