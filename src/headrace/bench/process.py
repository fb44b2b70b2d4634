"""A lane as a process, seen by its parent: it sends events, and signals pause and resume it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.bench.model import Lane, MeasuredBatch, Verdict
from headrace.logs import logger, suppressed

_log = logger(__name__)

SILENCE_S_MAX = 900
"""A lane that sends no event for this long has failed."""


class LaneFailed(Exception):
    """The lane cannot continue; the message says why."""


class LaneProcess:
    """A lane in a process, which starts at once. `next_batch` returns what it does."""

    def __init__(
        self, bench: str, lane: Lane, folder: Path, cores: int, heap_gb: int, conf: dict[str, str], on_java: Callable[[str], Any] = str
    ) -> None:
        folder.mkdir(parents=True)
        self.lane = lane
        self._on_java = on_java
        self._leaves: Path | None = None
        self._log = folder / "log.txt"
        order = {"bench": bench, "lane": asdict(lane), "folder": str(folder), "cores": cores, "heap_gb": heap_gb, "conf": conf}
        with self._log.open("wb") as log:
            # Its own process group: Ctrl-C reaches only the parent, which then ends its lanes in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.bench.worker", json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        self._cpu = CpuMeter(self._process.pid)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def next_batch(self, idle: Callable[[], None] = lambda: None) -> MeasuredBatch:
        """Wait for the next batch to end, also during the preload. ``idle`` is called while waiting."""
        while True:
            event = self._next(idle)
            if event["event"] in ("batch", "preload"):
                return MeasuredBatch(**event["batch"])
            self._on_java(event["java"])
            self._leaves = Path(event["leaves"])

    def finish(self, idle: Callable[[], None] = lambda: None) -> tuple[Verdict, list[dict[str, Any]]]:
        """Stop the query and check its result; the process ends."""
        self.resume()
        self._tell("finish")
        while True:
            event = self._next(idle)
            if event["event"] == "finished":
                self.kill()
                return Verdict(**event["verdict"]), event["headrace"]

    def change(self) -> None:
        """Let the lane change its query. Batches continue during the change, or after it."""
        self._tell("change")

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        # A Python worker may have started after the processes were listed.
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process and all processes that it started, and remove what its executors leave in Spark's own folder."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        if self._leaves is not None:
            shutil.rmtree(self._leaves, ignore_errors=True)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppressed(_log, "a pipe of a lane cannot be closed", OSError, level=logging.DEBUG):
                    pipe.close()

    def cpu_s(self) -> float:
        """The CPU seconds that its processes have used so far."""
        return self._cpu.read()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()
        except OSError:
            raise LaneFailed(self._why()) from None

    def _next(self, idle: Callable[[], None]) -> dict[str, Any]:
        deadline_s = time.monotonic() + SILENCE_S_MAX
        while True:
            idle()
            try:
                event = self._events.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > deadline_s:
                    raise LaneFailed(f"nothing happened for {SILENCE_S_MAX} s") from None
                continue
            if event is None:
                raise LaneFailed(self._why())
            if event["event"] == "failed":
                raise LaneFailed(self._why(event["reason"]))
            return event

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppressed(_log, "the output of a lane cannot be read any more", ValueError):
            for line in self._process.stdout:
                self._events.put(json.loads(line))
        self._events.put(None)

    def _why(self, reason: str = "") -> str:
        """The reason of a failure in one line. Out of memory has many symptoms, so the log is searched for it."""
        log = self._log.read_text(encoding="utf-8", errors="replace")
        memory = next((line.strip() for line in log.splitlines() if "OutOfMemoryError" in line), "")
        if memory:
            return memory[:300]
        code = self._process.poll()
        lines = [line.strip() for line in reason.splitlines() if line.strip()]
        # Py4J prints the call first, then Java's message.
        first = " ".join(lines[: 2 if reason.startswith("Py4J") else 1])
        return first[:300] or f"the process ended with code {code}: {log.strip()[-200:]}"

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            for pid in [self._process.pid, *descendants(self._process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


class CpuMeter:
    """CPU seconds (user and system) of a process and of all its descendants, past ones included.

    Python workers come and go. A worker that has ended counts with the value that was last read.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ticks: dict[int, int] = {}

    def read(self) -> float:
        for pid in (self.pid, *descendants(self.pid)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                self.ticks[pid] = int(user) + int(system)
        return sum(self.ticks.values()) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """All descendants of a process. Spark's Python workers leave the process group, so the group is not enough."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parents() -> list[tuple[int, int]]:
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return [(int(pid), int(parent)) for pid, parent in (line.split() for line in listed.splitlines())]
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name of the command is in parentheses and may contain anything. The parent is the second field after it.
            found.append((int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])))
    return found
