"""One lane of the demo, in a process of its own: the program on plain Spark, or on Headrace with elasticity.

    python -m headrace.demo.lane '{"lane": "elastic", ...}'

It starts its query at once, and answers requests, one JSON object per line, on its standard streams. If its input ends, because the demo
is gone, it ends too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import headrace as hr
from headrace.demo.check import compare
from headrace.demo.places import Places, opened
from headrace.demo.query import priced

STATIC, ELASTIC = "static", "elastic"
TRIGGER = "1 second"
UTC = "spark.sql.session.timeZone"
COMMON = {UTC: "UTC", "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto -XX:-UsePerfData"
"""For both lanes: a JVM that runs for a minute should not spend it on compiling, and leaves no files when it is killed."""
EXIT_FAILED = 3


@dataclass(frozen=True)
class LaneSpec:
    """What a lane is told when it is started."""

    lane: str
    checkpoint: str
    places: Mapping[str, Any]
    tariffs: int
    """The port of the tariff service."""
    tasks: int
    """How many tasks of a lane may run at a time. They mostly wait, so there are more of them than cores."""
    partitions: int
    """The number of partitions of the static lane."""
    batch_rows: int
    """A batch has about so many calls at most, so that a lane that is late still says how it does."""
    period_s: float
    cooldown_s: float
    scratch: str
    """A folder for temporary files, which is removed at the end."""

    @property
    def elastic(self) -> hr.Elastic:
        """The policy. Its limits are the defaults; only its times are shorter, since the demo's day lasts a minute."""
        return hr.Elastic(policy="elastic-manager", min=1, max=self.tasks, period_s=self.period_s, cooldown_s=self.cooldown_s)


def main() -> None:
    spec = LaneSpec(**json.loads(sys.argv[1]))
    # Whatever prints to the standard output goes to the log, and only answers go to the demo.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    places = opened(spec.places)
    spark = _static_session(spec, places) if spec.lane == STATIC else _elastic_session(spec, places)
    spark.sparkContext.setLogLevel("ERROR")
    query = _start(spec, spark, places)
    threading.Thread(target=_end_with, args=(query,), daemon=True).start()
    _say(answers, {"started": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, _answer(request, spec, spark, places, query))
    # The demo is gone without a word: nobody else would remove these files, or end the processes of Spark.
    shutil.rmtree(spec.scratch, ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _answer(request: Mapping[str, Any], spec: LaneSpec, spark: Any, places: Places, query: Any) -> dict[str, Any]:
    match request["do"]:
        case "stop":
            query.stop()
        case "state":
            query.state().select("src", "calls", "cents").write.mode("overwrite").parquet(request["to"])
        case "check":
            return compare(spark, places, request["lane"], request["state"]).to_json()
    return {}


def _say(answers: TextIO, body: Mapping[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")


def _settings(spec: LaneSpec, places: Places) -> dict[str, str]:
    scratch = {"spark.driver.extraJavaOptions": f"{JAVA} -Djava.io.tmpdir={spec.scratch}"}
    return COMMON | scratch | places.settings()


def _static_session(spec: LaneSpec, places: Places) -> Any:
    """Plain Spark, without anything of Headrace's. Its number of partitions stays what it is when the query starts."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName("headrace demo: plain Spark").master(f"local[{spec.tasks}]")
    for name, value in (_settings(spec, places) | {"spark.sql.shuffle.partitions": str(spec.partitions)}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _elastic_session(spec: LaneSpec, places: Places) -> Any:
    settings = {name.replace(".", "__"): value for name, value in _settings(spec, places).items()}
    if not Path(spec.checkpoint).exists():
        # It begins small. After a crash it has the instances that it had.
        settings["headrace__instances"] = "1"
    return hr.session("headrace demo: elastic", f"local[{spec.tasks}]", **settings, headrace__ui="false")


def _start(spec: LaneSpec, spark: Any, places: Places) -> Any:
    calls = places.stream(spark, spec.batch_rows)
    if spec.lane == STATIC:
        writer = places.write(priced(calls, spec.tariffs), spec.lane)
    else:
        # The only changes: the source is wrapped, and the number of instances may change.
        writer = places.write(priced(hr.stream(calls), spec.tariffs), spec.lane).elastic(spec.elastic)
    return writer.queryName(f"{spec.lane} lane").option("checkpointLocation", spec.checkpoint).trigger(processingTime=TRIGGER).start()


def _end_with(query: Any) -> None:
    """A query that fails ends the lane, so that the demo notices."""
    try:
        query.awaitTermination()
    except Exception as failed:
        print(failed, file=sys.stderr, flush=True)
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
