"""One seed's query and everything around it: its input, its process, its checkpoint and its sinks."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import ONCE, VARIABLE
from tests import archive
from tests.chaos.data import Row, write_file
from tests.chaos.query import QUERIES
from tests.crash.harness import ROOT, kill_session

ANSWER_S_MAX = 300.0
LOCAL = "local[2,4]"


class Refused(Exception):
    """The program answered with an error."""

    def __init__(self, kind: str, text: str, ours: bool) -> None:
        super().__init__(text)
        self.kind, self.text, self.ours = kind, text, ours

    def brief(self) -> str:
        """One line for the log."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return f"{self.kind}: {' '.join(lines)[:300]}"


class Died(Exception):
    """The program has ended, or does not answer."""


class Life:
    """A running program: the process, and its answers."""

    def __init__(self, master: str, log: Path, fail_points: str, marks: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in (VARIABLE, ONCE)}
        environment |= {"SPARK_SUBMIT_OPTS": archive.jvm_options(), ONCE: str(marks)} | ({VARIABLE: fail_points} if fail_points else {})
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.program", "--master", master],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._answers: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as gone:
            raise Died(f"no program to tell {do!r}") from gone

    def answer(self, seconds: float = ANSWER_S_MAX) -> Any:
        """The answer of the program to the last command."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise Died(f"no answer within {seconds:.0f} s") from None
        if not line:
            raise Died("the program is gone")
        said = json.loads(line)
        if "error" in said:
            raise Refused(said["kind"], said["error"], said["ours"])
        return said["result"]

    def ask(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        """kill -9 of the driver, its JVM and its workers."""
        kill_session(self.process)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass
class Rig:
    """The query on one checkpoint, over any number of processes."""

    work: Path
    files: list[list[Row]]
    random: Random
    master: str = LOCAL
    fed: int = 0
    """Files that the source has."""
    query: str = "windows"
    order: tuple[str, ...] = ()
    """The sinks, in the order in which they are given to the query."""
    life: Life | None = None
    active: bool = False
    """True if the process has a query that should be running."""
    generation: int = 0

    def __post_init__(self) -> None:
        self.order = self.order or QUERIES[self.query]

    @property
    def folder(self) -> Path:
        return self.work / f"{self.generation}"

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def marks(self) -> Path:
        return self.work / "marks"

    @property
    def version(self) -> int:
        """The newest committed version; -1 if there is none."""
        return max(Checkpoint(str(self.checkpoint)).manifests.versions(), default=-1)

    @property
    def alive(self) -> Life:
        if self.life is None:
            raise Died("no program runs")
        return self.life

    def launch(self, fail_points: str = "") -> Life:
        """A new process, without a query."""
        self.kill()
        self.forget_marks()
        self.life = Life(self.master, self.work / "program.log", fail_points, self.marks)
        self.life.answer()
        return self.life

    def forget_marks(self) -> None:
        """Fail points may be reached again."""
        shutil.rmtree(self.marks, ignore_errors=True)
        self.marks.mkdir(parents=True)

    def start(self, **options: Any) -> None:
        """Start the query in the current process, or in a new one."""
        self.source.mkdir(parents=True, exist_ok=True)
        life = self.life or self.launch()
        instances = self.random.randint(1, 3)
        places = {"source": str(self.source), "output": str(self.output), "checkpoint": str(self.checkpoint)}
        life.ask("start", **places, order=list(self.order), options={"headrace.instances": instances, **options})
        self.active = True

    def stop(self) -> None:
        self.active = False
        self.alive.ask("stop")

    def feed(self, files: int) -> int:
        """Feed this many more files. Returns how many there were."""
        files = min(files, len(self.files) - self.fed)
        for at in range(self.fed, self.fed + files):
            write_file(self.source, at, self.files[at])
        self.fed += files
        return files

    def settle(self) -> None:
        """Wait until all files that were fed are processed, also by a later process."""
        if self.life is not None and self.life.process.poll() is not None:
            self.kill()
        if not self.active or self.life is None:
            self.start()
        self.alive.ask("settle")

    def kill(self) -> None:
        if self.life is not None:
            self.life.kill()
        self.life, self.active = None, False

    def begin_anew(self) -> None:
        """Continue with a new checkpoint and new sinks. All files are fed again."""
        self.kill()
        fed, self.fed = self.fed, 0
        self.generation += 1
        self.order = QUERIES[self.query]
        self.forget_marks()
        self.feed(fed)

    def wait_for_version(self, version: int, seconds: float = ANSWER_S_MAX) -> bool:
        """Wait until a version is committed or the process has ended."""
        deadline = time.monotonic() + seconds
        while self.version < version and time.monotonic() < deadline:
            if self.life is None or self.life.process.poll() is not None:
                return False
            time.sleep(0.005)
        return self.version >= version
