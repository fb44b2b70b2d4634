"""``python -m tests.chaos --seeds 20 --faults 10``: see ``make chaos``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from tests import archive
from tests.chaos.campaign import Seed
from tests.chaos.disk import enter_namespace
from tests.chaos.faults import FAULTS
from tests.chaos.mutations import MUTATIONS
from tests.chaos.outcome import Outcome, Record
from tests.chaos.report import Report


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
    parser.add_argument("--data", type=Path, help="a real stream: JSON lines of edits, or CSV of taxi rides, perhaps gzipped")
    parser.add_argument("--out", type=Path, default=Path("chaos-out"), help="folder for the log and the JSON (chaos-out)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new seed after this time")
    parser.add_argument("--mutate", choices=sorted(MUTATIONS), default="", help="do a wrong on purpose: the campaign must fail")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    enter_namespace()
    report = Report(given.out.absolute(), Console())
    spark = plain_session()
    began = time.monotonic()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    kinds = tuple(given.kind * (given.faults // len(given.kind) or 1)) if given.kind else ()
    for number in seeds:
        if time.monotonic() - began > given.seconds:
            break
        work = Path(tempfile.mkdtemp(prefix=f"headrace-chaos-{number}-"))
        seed = Seed(number, len(kinds) or given.faults, spark, work, report.add, given.data, kinds, given.mutate)
        try:
            records = seed.run()
        except KeyboardInterrupt:
            report.say("interrupted", "red")
            break
        except Exception as failed:
            report.say(traceback.format_exc(), "red")
            report.add(Record(number, -1, "set up", "", Outcome.BROKEN, f"{type(failed).__name__}: {failed}", 0.0, -1))
            records = report.records[-1:]
        if any(record.outcome.fails for record in records):
            report.say(f"seed {number}: files in {work}; repeat with: python -m tests.chaos --seed {number} --faults {given.faults}", "red")
    good = report.finish()
    spark.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
