"""How long a stateful query needs after an executor was killed until its results are right again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.recovery.figures import recoveries, spread, steady_rate
from benchmarks.recovery.plot import draw
from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, Options, Results, engines_of, preload
from headrace.errors import HeadraceError

WITH, WITHOUT = "calm with replicas", "calm without"
"""Headrace without faults: with the options of the lane that is disturbed, and without replicas. They show what replicas cost. After a
fault, executors are new and slow, so the disturbed lane does not."""
CALM = "calm"
"""The group of these lanes. They run after the others."""
FAULTS = ("kill", "hang", "none")

ALONE = {"spark.network.timeout": "120s", "spark.executor.heartbeatInterval": "10s"}
"""Spark's defaults, by which it finds an executor that hangs. Lanes that are paused for minutes need other values."""


def lanes(options: Options) -> list[Lane]:
    fault, keys, rows, executors = str(options["fault"]), int(options["keys"]), int(options["rows"]), int(options["executors"])
    if fault not in FAULTS:
        raise HeadraceError(where="--fault", wanted=f"one of {', '.join(FAULTS)}", found=repr(fault))
    hangs = fault == "hang"
    conf = {
        "spark.sql.shuffle.partitions": str(executors),
        "spark.executor.memory": f"{int(options['memory_mb'])}m",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        # A lane is paused during other lanes' turns. The master, in the driver, must not take its workers for dead when it resumes.
        "spark.worker.timeout": "36000",
        **(ALONE if hangs else {}),
    }
    filled = preload(keys, rows)
    params = {"keys": keys, "rows": rows, "preload_rows": filled["preload_rows"], "executors": executors, "fault": fault}
    master = f"local-cluster[{executors},1,{int(options['memory_mb'])}]"

    def lane(name: str, engine: str, own: dict[str, str], disturbed: bool) -> Lane:
        # Lanes that need Spark's own timeouts must not be paused for long, so they run one after the other.
        group = name if hangs else "" if disturbed else CALM
        given = params | {"options": own}
        used = conf if engine == OURS else conf | {"spark.shuffle.io.retryWait": str(options["spark_retry_wait"])}
        return Lane(name, engine, given, **filled, changes=disturbed, changes_each_turn=disturbed, master=master, conf=used, group=group)

    replicated = {"headrace.replicas": str(options["replicas"])} if options["replicas"] else {}
    seldom = {"headrace.checkpointSeconds": str(options["checkpoint_seconds"])} if options["checkpoint_seconds"] else {}
    instances = {"headrace.instances": str(executors)}
    whole = instances | replicated | seldom
    found = [lane(engine, engine, whole if engine == OURS else {}, True) for engine in engines_of(options)]
    return [*found, lane(WITH, OURS, whole, False), lane(WITHOUT, OURS, instances | seldom, False)] if replicated else found


def extra(results: Results, options: Options) -> dict[str, Any]:
    faults = {name: recoveries(result) for name, result in results.items() if name not in (WITH, WITHOUT)}
    times = {name: spread([each.recovery_s for each in every]) for name, every in faults.items()}
    medians = {name: each["median"] if each else None for name, each in times.items()}
    ours = medians.pop(OURS)
    rates = {name: steady_rate(result) for name, result in results.items()}
    return {
        "ours": ours,
        "baselines": medians,
        "ratio": {name: stats.ratio(theirs, ours) for name, theirs in medians.items()},
        "unit": "seconds from the fault to the results of the first batch that began after it, median: less is better, and the ratio is "
        "theirs over ours",
        "recovery_s": ours,
        "overhead": stats.ratio(rates.get(WITH), rates.get(WITHOUT)),
        "spread_s": times,
        "times_longer": {name: spread([each.times_longer for each in every]) for name, every in faults.items()},
        "faults": {name: [each.to_json() for each in every] for name, every in faults.items()},
        "steady_rows_per_s": rates,
        "plot": str(draw(Path("bench-out") / "recovery.svg", results)),
    }


def tables(results: Results, options: Options) -> list[Table]:
    table = Table(title=f"after an executor's end ({options['fault']}), {int(options['keys']):,} keys", title_justify="left")
    for name in ("", "right again after, s", "each", "disturbed batch, ms", "usual batch, ms", "times longer", "executor back after, s"):
        table.add_column(name, justify="right" if name else "left")
    for name, result in results.items():
        every = recoveries(result)
        if not every:
            continue
        seconds = spread([each.recovery_s for each in every]) or {}
        replaced = spread([each.replaced_s for each in every if each.replaced_s is not None])
        middles = (spread([each.disturbed_ms for each in every]), spread([each.usual_ms for each in every]))
        times = spread([each.times_longer for each in every])
        shown = [f"{each['median']:,.0f}" if each else "-" for each in middles]
        each = "  ".join(f"{value:.2f}" for value in seconds["each"])
        table.add_row(name, f"{seconds['median']:.2f}", each, *shown, _number(times), _number(replaced))
    return [table]


def _number(found: dict[str, Any] | None) -> str:
    return f"{found['median']:.1f}" if found else "-"


BENCHMARK = Benchmark(
    name="recovery",
    line="the time from an executor's end to right results, against Spark with RocksDB",
    options={
        "keys": 1_000_000,
        "rows": 20_000,
        "executors": 3,
        "memory_mb": 1024,
        "kills": 5,
        "fault": "kill",
        "replicas": 0,
        "checkpoint_seconds": 0.0,
        "spark_retry_wait": "5s",
        "baselines": "spark-rocksdb",
    },
    lanes=lanes,
    turns=lambda options: int(options["kills"]),
    extra=extra,
    tables=tables,
)
