"""One seed's query and everything around it: its input, its process, its checkpoint and its sinks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from headrace.chaos.life import Life
from headrace.chaos.rig import BaseRig
from tests import archive
from tests.chaos.data import Row, write_file
from tests.chaos.query import QUERIES
from tests.crash.harness import ROOT

LOCAL = "local[2,4]"


@dataclass
class Rig(BaseRig):
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
    def cwd(self) -> Path:
        return ROOT

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.program", "--master", self.master]

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SPARK_SUBMIT_OPTS": archive.jvm_options()}

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

    def begin_anew(self) -> None:
        """Continue with a new checkpoint and new sinks. All files are fed again."""
        self.kill()
        fed, self.fed = self.fed, 0
        self.generation += 1
        self.order = QUERIES[self.query]
        self.forget_marks()
        self.feed(fed)
