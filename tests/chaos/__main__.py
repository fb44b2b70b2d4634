"""``python -m tests.chaos --seeds 20 --faults 10``: see ``make chaos``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from headrace.chaos.outcome import Outcome, Record
from headrace.chaos.report import Report
from tests import archive
from tests.chaos.campaign import Seed
from tests.chaos.disk import enter_namespace
from tests.chaos.faults import FAULTS
from tests.chaos.mutations import MUTATIONS


def plain_session() -> SparkSession:
    """Spark without Headrace, for the reference."""
    os.environ["SPARK_SUBMIT_OPTS"] = archive.jvm_options()
    builder = SparkSession.builder.master("local[2]").appName("chaos reference").config("spark.driver.memory", "1g")
    settings = {
        "driver.host": "127.0.0.1",
        "driver.bindAddress": "127.0.0.1",
        "ui.enabled": "false",
        "ui.showConsoleProgress": "false",
        "sql.session.timeZone": "UTC",
        "sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def arguments() -> argparse.Namespace:
    about = "Faults against live queries, compared with Spark's batch answer."
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=about)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds (20)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="only this seed: repeats it")
    parser.add_argument("--faults", type=int, default=10, help="faults a seed (10)")
    parser.add_argument("--kind", action="append", choices=sorted(FAULTS), default=[], help="only faults of this kind; may be repeated")
    about = "a real stream: JSON lines of edits, or CSV of taxi rides, perhaps gzipped; seeds take turns between made rows and these"
    parser.add_argument("--data", type=Path, action="append", default=[], help=about)
    parser.add_argument("--at-once", type=int, default=1, help="seeds that run at the same time (1)")
    parser.add_argument("--out", type=Path, default=Path("chaos-out"), help="folder for the log and the JSON (chaos-out)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new seed after this time")
    parser.add_argument("--mutate", choices=sorted(MUTATIONS), default="", help="do a wrong on purpose: the campaign must fail")
    return parser.parse_args()


def run_seed(number: int, given: argparse.Namespace, spark: SparkSession, report: Report, began: float) -> None:
    if time.monotonic() - began > given.seconds:
        return
    kinds = tuple(given.kind * (given.faults // len(given.kind) or 1)) if given.kind else ()
    data = [None, *given.data][number % (len(given.data) + 1)]
    work = Path(tempfile.mkdtemp(prefix=f"headrace-chaos-{number}-"))
    seed = Seed(number, len(kinds) or given.faults, spark, work, report.add, data, kinds, given.mutate)
    try:
        records = seed.run()
    except Exception as failed:
        report.say(traceback.format_exc(), "red")
        records = [Record(number, -1, "set up", "", Outcome.BROKEN, f"{type(failed).__name__}: {failed}", 0.0, -1)]
        report.add(records[0])
    if any(record.outcome.fails for record in records):
        again = " ".join(["python -m tests.chaos", f"--seed {number} --faults {given.faults}", *(f"--data {path}" for path in given.data)])
        report.say(f"seed {number}: files in {work}; repeat with: {again}", "red")


def main() -> int:
    given = arguments()
    enter_namespace()
    report = Report(given.out.absolute(), Console())
    spark = plain_session()
    began = time.monotonic()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    with ThreadPoolExecutor(given.at_once) as pool:
        running = [pool.submit(run_seed, number, given, spark, report, began) for number in seeds]
        try:
            wait(running)
        except KeyboardInterrupt:
            report.say("interrupted: seeds that have begun are finished", "red")
            pool.shutdown(cancel_futures=True)
    good = report.finish()
    spark.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
