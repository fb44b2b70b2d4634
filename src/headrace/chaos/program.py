"""The process that faults hit: it holds a Spark session and the user's query, and executes commands, one line of JSON each.

Starting Spark takes longer than most faults, so one process is used until a fault kills it. ``rig.Rig`` is the other end.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.api.query import HeadraceQuery
from headrace.api.writer import start
from headrace.chaos.answer import SHORT_LIVED
from headrace.chaos.changes import change_at_random
from headrace.chaos.life import serve
from headrace.chaos.loading import Output, Target
from headrace.chaos.processes import pid_of
from headrace.chaos.recorder import RecordingSink, write_rows
from headrace.chaos.sources import Parts, SourceRequest
from headrace.errors import QueryError
from headrace.runtime.failpoints import VARIABLE
from headrace.runtime.session import session
from headrace.runtime.whereabouts import DRIVER
from headrace.spark.executors import Executors
from headrace.testing.reference import grouping_columns

DEFAULTS = {"headrace.logLevel": "warning"}


class QueryProgram:
    """What any program under test can do with its query: one command, one answer."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.query: HeadraceQuery | None = None
        self._told = -1
        """The newest version that ``settle`` has told about."""

    @property
    def running(self) -> HeadraceQuery:
        if self.query is None:
            raise QueryError(where="chaos", wanted="a query", found="none that was started")
        return self.query

    def settle(self) -> list[dict[str, Any]]:
        """Wait until all that was fed has been processed. Returns the batches since the last time."""
        self.running.processAllAvailable()
        told = [batch_facts(each["headrace"]) for each in self.running.recentProgress if each.get("headrace")]
        found = [each for each in told if each["version"] > self._told]
        self._told = max([self._told, *(each["version"] for each in found)])
        return found

    def stop(self) -> None:
        self.running.stop()

    def change(self, seed: int) -> str:
        """Change the routing at random, and return how."""
        before = {name: routing.instances for name, routing in self.running.routing().items()}
        change_at_random(self.running, Random(seed))
        after = {name: routing.instances for name, routing in self.running.routing().items()}
        changed = [f"{name} {before[name]} -> {n}" for name, n in after.items() if n != before[name]]
        return ", ".join(changed) or "slots moved"

    def arm(self, points: str) -> None:
        """Set the fail points of the driver."""
        os.environ[VARIABLE] = points

    def executors(self) -> dict[str, int]:
        """The process of each executor that works on this machine, oldest first."""
        found = Executors.of(self.spark.sparkContext)
        app = self.spark.sparkContext.applicationId
        pids = {} if found is None else {each.id: _pid(each.id, str(app)) for each in found.live()}
        return {name: pid for name, pid in pids.items() if pid is not None}


def _pid(executor: str, app: str) -> int | None:
    """None if the executor has just died, or works on another machine."""
    try:
        return pid_of(executor, app)
    except ProcessLookupError:
        return None


class ChaosProgram(QueryProgram):
    """The user's query, with recording sinks in place of the user's."""

    def __init__(self, spark: SparkSession, target: Target, work: Path, options: dict[str, str], keys: dict[str, list[str]]) -> None:
        super().__init__(spark)
        self.target, self.work, self.options, self.keys = target, work, options, keys

    def start(self, checkpoint: str) -> dict[str, Any]:
        """Start the query on a checkpoint that may have been left by an earlier process. Returns what is to be known about its sinks."""
        built = self.target.build(self.spark, self._opened)
        writers, sinks = [], []
        options = {**DEFAULTS, **built.options, **self.options}
        for output in built.outputs:
            keys = self._keys(output)
            folder = self.work / "results" / output.name
            writer = output.stream.writeStream.outputMode(output.mode).foreachBatch(RecordingSink(folder).take).options(**options)
            writers.append(writer)
            columns = output.stream.columns
            at = [columns.index(key) for key in keys or ()]
            sinks.append({"name": output.name, "mode": output.mode, "columns": columns, "keys": at})
        self._told = -1
        self.query = start(*writers, checkpointLocation=checkpoint, processingTime="0 seconds")
        return {"sinks": sinks, "operators": sorted(self.query.routing()), "app": str(self.spark.sparkContext.applicationId)}

    def _opened(self, at: int, request: SourceRequest) -> DataFrame:
        parts = Parts.of(self.work, at)
        parts.released.mkdir(parents=True, exist_ok=True)
        schema = self.spark.read.parquet(*parts.between(0, 1)).schema
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(parts.released))

    def _keys(self, output: Output) -> tuple[str, ...] | None:
        given = self.keys.get(output.name) or self.keys.get("")
        keys = tuple(given) if given else grouping_columns(output.stream)
        if keys is None and output.mode == "update":
            hint = f"give the columns that identify a result: --keys {output.name}=COLUMN,COLUMN"
            raise QueryError(where=f"sink {output.name}", wanted="known keys in update mode", found="none", hint=hint)
        if unknown := [key for key in keys or () if key not in output.stream.columns]:
            raise QueryError(where=f"sink {output.name}", wanted=f"keys among {', '.join(output.stream.columns)}", found=", ".join(unknown))
        return keys

    def state(self, folder: str) -> dict[str, list[str]]:
        """Write the state of each operator with one store to a file. Returns their columns by operator."""
        found = {}
        for operator in self.running.routing():
            try:
                rows = self.running.state(operator)
            except QueryError:
                # An operator with several stores: their rows are none of the results'.
                continue
            write_rows(Path(folder) / f"{operator}.arrow", rows.toArrow())
            found[operator] = rows.columns
        return found


def batch_facts(ours: dict[str, Any]) -> dict[str, Any]:
    """What a campaign needs to know about a batch."""
    return {
        "version": ours["version"],
        "batch_s": ours["batchMs"] / 1000,
        "rows": ours["rows"],
        "late": round((1 - ours["shareDelivered"]) * ours["rows"]),
        "watermark_ms": ours["watermarkMs"],
        "rebuilt": ours["versionsRebuilt"],
        "interruptions": len(ours["interruptions"]),
        "missing": (ours["replicas"] or {}).get("missing", 0),
        "homes": sorted({home for each in ours["routing"].values() for home in each["homes"] if home != DRIVER}),
    }


def chaos_session(master: str, settings: dict[str, str], folder: Path) -> SparkSession:
    """A session for the user's program, whose own ``getOrCreate`` returns it. Executors import what the program imports."""
    path = os.pathsep.join(filter(None, [str(folder), os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    short_lived = {f"spark.{of}.extraJavaOptions": SHORT_LIVED for of in ("driver", "executor")}
    given = {"spark.ui.enabled": "false", "spark.executorEnv.PYTHONPATH": path, **short_lived, **settings}
    made = session("headrace chaos", master, **{name.replace(".", "__"): value for name, value in given.items()})
    made.sparkContext.setLogLevel("ERROR")
    return made


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("request", help="JSON: master, settings, target, work, options, keys")
    given = json.loads(arguments.parse_args(sys.argv[1:]).request)
    target, work = Target.parse(**given["target"]), Path(given["work"])

    def make() -> ChaosProgram:
        return ChaosProgram(chaos_session(given["master"], given["settings"], target.folder), target, work, given["options"], given["keys"])

    serve(make)


if __name__ == "__main__":
    main()
