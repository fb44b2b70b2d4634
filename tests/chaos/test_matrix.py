"""Every guarantee and approach against every kind of fault, on real executors: equal, at least once, or a counted gap.

One campaign for each pair, with faults of these kinds by a seed, judged by Spark's batch answer after each fault. The query is a running
aggregate, except for upstream, which needs windows. A host that is cut off looks to the driver like an executor that hangs: it does not
answer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.guarantees import GIVES, Approach, Guarantee
from tests.chaos.test_command import chaos

pytestmark = [pytest.mark.extra, pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

KINDS = (
    "kill-executor",
    "hang-executor",
    "kill-two-executors",
    "kill-driver",
    "kill-driver-and-executor",
    "damage-copies",
    "store-away",
)
EXPECTED = {Guarantee.PRECISE: "equal", Guarantee.ROLLBACK: "at-least-once", Guarantee.GAP: "counted-gap"}
PAIRS = [(approach, guarantee) for approach, possible in GIVES.items() for guarantee in possible]
QUERY = """
from pyspark.sql import functions as F

def totals(rows):
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))

def windows(rows):
    return rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "20 seconds")).agg(F.sum("v").alias("s"))
"""


@pytest.mark.parametrize(("approach", "guarantee"), PAIRS, ids=[f"{approach}-{guarantee}" for approach, guarantee in PAIRS])
def test_what_was_promised_comes_out(tmp_path: Path, approach: Approach, guarantee: Guarantee) -> None:
    (tmp_path / "query.py").write_text(QUERY)
    windowed = approach is Approach.UPSTREAM
    name, mode = ("windows", "append") if windowed else ("totals", "update")
    options = [f"headrace.recovery={approach}", f"headrace.guarantee={guarantee}", "headrace.instances=3"]
    if approach in (Approach.CHECKPOINT, Approach.PEER, Approach.ACTIVE):
        options.append("headrace.checkpointSeconds=3")
    arguments = ["--faults", str(len(KINDS)), "--seed", "5", "--rows", "100", "--mode", mode, "--expect", EXPECTED[guarantee]]
    arguments += [part for kind in KINDS for part in ("--kind", kind)] + [part for each in options for part in ("--option", each)]
    arguments += ["--input", str(tmp_path / "input"), "--schema", "id long, k string, ts timestamp, v long", "--order-by", "id"]
    seen, said = chaos(tmp_path, f"{tmp_path / 'query.py'}:{name}", *arguments)
    # If the whole checkpoint is away, a batch cannot be committed: the query ends with an error, and a restart goes on.
    allowed = {"store-away": ("survived", "refused")}
    assert all(each["outcome"] in allowed.get(each["kind"], ("survived",)) for each in seen["faults"]), said
    assert len(seen["plan"]) == len(KINDS)
