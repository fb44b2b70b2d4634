"""A query under test and everything around it: its input, its process, its checkpoint and its sinks."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from headrace.chaos.life import ANSWER_S_MAX, Died, Life
from headrace.chaos.recorder import Recorded
from headrace.chaos.sources import Parts
from headrace.chaos.spent import Spent
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import ONCE, VARIABLE


class BaseRig(ABC):
    """A query on one checkpoint, over any number of processes."""

    work: Path
    life: Life | None
    active: bool
    """True if the process has a query that should be running."""

    @property
    @abstractmethod
    def checkpoint(self) -> Path:
        """The query's checkpoint location."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command that starts the program."""

    @abstractmethod
    def start(self) -> Any:
        """Start the query in the current process, or in a new one."""

    def environment(self) -> dict[str, str]:
        """The environment of the program, without fail points."""
        return {k: v for k, v in os.environ.items() if k not in (VARIABLE, ONCE)}

    @property
    def cwd(self) -> Path | None:
        """The folder that the program runs in."""
        return None

    @property
    def marks(self) -> Path:
        """The folder in which fail points leave a mark when they are reached."""
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
        environment = self.environment() | {ONCE: str(self.marks)} | ({VARIABLE: fail_points} if fail_points else {})
        self.life = Life(self.command(), self.work / "program.log", environment, self.cwd)
        self.life.answer()
        return self.life

    def forget_marks(self) -> None:
        """Fail points may be reached again."""
        shutil.rmtree(self.marks, ignore_errors=True)
        self.marks.mkdir(parents=True)

    def settle(self) -> Any:
        """Wait until all files that were fed are processed, also by a later process."""
        if self.life is not None and self.life.ended:
            self.kill()
        if not self.active or self.life is None:
            self.start()
        return self.alive.ask("settle")

    def kill(self) -> None:
        """End the process, if there is one."""
        if self.life is not None:
            self.life.kill()
        self.life, self.active = None, False

    def wait_for_version(self, version: int, seconds: float = ANSWER_S_MAX) -> bool:
        """Wait until a version is committed or the process has ended."""
        deadline = time.monotonic() + seconds
        while self.version < version and time.monotonic() < deadline:
            if self.life is None or self.life.ended:
                return False
            time.sleep(0.005)
        return self.version >= version


@dataclass(frozen=True)
class Setup:
    """What a user has asked for: the arguments of the programs."""

    target: dict[str, Any]
    """The arguments of ``Target.parse``."""
    master: str
    settings: dict[str, str]
    """Settings of Spark."""
    options: dict[str, str]
    """Options of Headrace."""
    keys: dict[str, list[str]]
    """By sink, the columns that identify a result."""
    due: dict[str, str]
    """By sink, the time of a result."""

    @property
    def executors(self) -> int:
        """The number of executors that the master will have; 0 for a local one, and a guess for a real cluster."""
        if self.master.startswith("local-cluster["):
            return int(self.master.removeprefix("local-cluster[").split(",")[0])
        if self.master == "local" or self.master.startswith("local["):
            return 0
        return int(self.settings.get("spark.executor.instances", "2"))


@dataclass
class Rig(BaseRig):
    """The user's query."""

    work: Path
    setup: Setup
    first: int = 0
    """The first part that this checkpoint has had."""
    fed: int = 0
    """Parts that the sources have had, and those before ``first``."""
    life: Life | None = None
    active: bool = False
    starts: int = 0
    sinks: list[dict[str, Any]] = field(default_factory=list)
    apps: set[str] = field(default_factory=set)
    """Spark's names of the applications so far."""
    batches: list[dict[str, Any]] = field(default_factory=list)
    """What the batches reported, as far as their process lived to tell."""
    spent: Spent = field(default_factory=Spent)
    """Where the time goes."""

    @property
    def checkpoint(self) -> Path:
        # A link, so that the store can go away as a whole: what is behind a link that leads nowhere cannot be made by mistake.
        return self.work / "checkpoint"

    @property
    def store(self) -> Path:
        """The folder that the checkpoint is in."""
        return self.work / "store"

    @property
    def results(self) -> Path:
        return self.work / "results"

    def command(self) -> list[str]:
        setup = self.setup
        request = {"master": setup.master, "settings": setup.settings, "target": setup.target, "work": str(self.work)}
        request |= {"options": setup.options, "keys": setup.keys}
        return [sys.executable, "-m", "headrace.chaos.program", json.dumps(request)]

    def start(self) -> None:
        if not self.checkpoint.is_symlink():
            self.store.mkdir(parents=True)
            self.checkpoint.symlink_to(self.store, target_is_directory=True)
        if self.life is None:
            with self.spent.on("starting the driver"):
                self.launch()
        with self.spent.on("starting the query"):
            told = self.alive.ask("start", checkpoint=str(self.checkpoint))
        self.sinks = told["sinks"]
        self.apps.add(told["app"])
        self.active, self.starts = True, self.starts + 1

    def feed(self, files: int) -> None:
        """Release so many more parts of each source, as far as there are any."""
        sources = [Parts.of(self.work, number) for number in range(len(list((self.work / "parts").iterdir())))]
        files = min([files, *(each.count - self.fed for each in sources)])
        for at in range(self.fed, self.fed + files):
            for source in sources:
                source.release(at)
        self.fed += files

    def begin_anew(self) -> None:
        """Continue with a new checkpoint, new sinks and the first parts again. What there was is kept for a look at it."""
        self.kill()
        kept = self.work / f"wrong-{self.starts}"
        kept.mkdir()
        for path in (self.store, self.results, self.work / "sources"):
            if path.exists():
                path.rename(kept / path.name)
        self.checkpoint.unlink(missing_ok=True)
        self.first = self.fed = 0
        self.batches.clear()

    def renew(self) -> None:
        """Let the same process go on with a new checkpoint, new sinks, and the parts that come next."""
        self.alive.ask("stop")
        self.active = False
        for path in (self.store, self.results, self.work / "sources"):
            shutil.rmtree(path, ignore_errors=True)
        self.checkpoint.unlink(missing_ok=True)
        self.first = self.fed

    def settle(self) -> list[dict[str, Any]]:
        with self.spent.on("batches"):
            return self.note(super().settle())

    def sleep(self, seconds: float) -> None:
        """Wait for the moment of a fault."""
        with self.spent.on("waiting for moments"):
            time.sleep(seconds)

    def usual_batch_s(self) -> float:
        """How long a batch took lately."""
        return median(each["batch_s"] for each in self.batches[-10:]) if self.batches else 1.0

    def note(self, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keep what the batches reported."""
        now_s = time.time()
        self.batches += [{**each, "noted_s": now_s} for each in told]
        return told

    def recorded(self) -> list[Recorded]:
        """What the sinks have got."""
        found = []
        for sink in self.sinks:
            name, columns, keys = sink["name"], tuple(sink["columns"]), tuple(sink["keys"])
            found.append(Recorded(name, sink["mode"], columns, keys, self.results / name))
        return found
