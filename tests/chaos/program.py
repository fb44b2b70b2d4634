"""The process that faults hit: it holds a Spark session and the query, and executes commands, one line of JSON each.

Starting Spark takes longer than most faults, so one process is used for many of them. It starts and stops the query on command.
``rig.Rig`` is the other end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headrace.chaos.life import serve
from headrace.chaos.program import QueryProgram
from tests.chaos import query
from tests.cluster import program as cluster
from tests.crash import driver


class Program(QueryProgram):
    """One command, one answer."""

    def start(self, source: str, output: str, checkpoint: str, order: list[str], options: dict[str, Any]) -> None:
        self.query = query.start(self.spark, Path(source), Path(output), Path(checkpoint), tuple(order), **options)

    def wait(self) -> None:
        """Wait until the query ends by itself."""
        self.running.awaitTermination()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--master", default="local[2,4]")
    given = arguments.parse_args()
    serve(lambda: Program(driver.session() if given.master.startswith("local[") else cluster.session(given.master)))


if __name__ == "__main__":
    main()
