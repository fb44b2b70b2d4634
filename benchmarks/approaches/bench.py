"""What each way to keep state safe costs in normal operation, and how long it takes after the loss of an executor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.approaches.plot import draw
from benchmarks.recovery.figures import recoveries, spread, steady_rate
from headrace.bench import stats
from headrace.bench.model import OURS, ROCKSDB, Benchmark, Lane, Options, Results, preload
from headrace.errors import HeadraceError

PEERS = {"headrace.acknowledge": "peers"}
APPROACHES: Mapping[str, Mapping[str, str]] = {
    "checkpoint-0s": {},
    "checkpoint-2s": {"headrace.checkpointSeconds": "2"},
    "checkpoint-10s": {"headrace.checkpointSeconds": "10"},
    "checkpoint-30s": {"headrace.checkpointSeconds": "30"},
    "peer-1": {"headrace.recovery": "peer", "headrace.replicas": "1", "headrace.checkpointSeconds": "30"},
    "peer-2": {"headrace.recovery": "peer", "headrace.replicas": "2", "headrace.checkpointSeconds": "30"},
    "peer-2-split": {
        "headrace.recovery": "peer",
        "headrace.replicas": "2",
        "headrace.checkpointSeconds": "30",
        "headrace.parallelRecovery": "2",
    },
    "active": {"headrace.recovery": "active", "headrace.replicas": "1", "headrace.checkpointSeconds": "30", **PEERS},
}
"""Ways to keep state safe that lose nothing, by name. The first is the one that others are compared with."""
FIRST = next(iter(APPROACHES))


def lanes(options: Options) -> list[Lane]:
    named = [name.strip() for name in str(options["approaches"]).split(",")] if options["approaches"] != "all" else list(APPROACHES)
    unknown = [name for name in named if name not in APPROACHES]
    if unknown:
        raise HeadraceError(where="--approaches", wanted=f"all, or some of {', '.join(APPROACHES)}", found=", ".join(unknown))
    keys, rows, executors, memory_mb = (int(options[name]) for name in ("keys", "rows", "executors", "memory_mb"))
    filled = preload(keys, rows)
    params = {"keys": keys, "rows": rows, "preload_rows": filled["preload_rows"], "executors": executors, "fault": str(options["fault"])}
    conf = {
        "spark.sql.shuffle.partitions": str(executors),
        "spark.executor.memory": f"{memory_mb}m",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.worker.timeout": "36000",
    }
    own: dict[str, tuple[str, Mapping[str, str], Mapping[str, str]]] = {
        name: (OURS, APPROACHES[name] | {"headrace.instances": str(executors)}, {}) for name in named
    }
    if options["spark"]:
        own[ROCKSDB] = (ROCKSDB, {}, {"spark.shuffle.io.retryWait": "5s"})
    master = f"local-cluster[{executors},1,{memory_mb}]"
    # One lane after the other: the executors of all of them would not fit into the memory of a small machine.
    return [
        Lane(
            name,
            engine,
            params | {"options": dict(given)},
            **filled,
            changes=True,
            changes_each_turn=True,
            master=master,
            conf={**conf, **more},
            group=name,
        )
        for name, (engine, given, more) in own.items()
    ]


def figures(results: Results) -> dict[str, dict[str, Any]]:
    """By approach: seconds until results are right again, and rows a second before a fault."""
    found = {}
    for name, result in results.items():
        seconds = spread([each.recovery_s for each in recoveries(result)])
        rate = steady_rate(result)
        found[name] = {"recovery_s": seconds, "rows_per_s": rate, "bytes_shipped": _shipped(result.headrace)}
    best = (found.get(FIRST) or {}).get("rows_per_s")
    for each in found.values():
        each["throughput"] = stats.ratio(each["rows_per_s"], best)
    return found


def _shipped(progress: list[dict[str, Any]]) -> float | None:
    """The median of what a checkpoint-ships, as a share of the state; None without checkpoints beside the batches."""
    checkpoints = {each["checkpoint"]["version"]: each["checkpoint"] for each in progress if each.get("checkpoint")}
    shares = sorted(each["bytesShipped"] / each["bytesState"] for each in checkpoints.values() if each.get("bytesState"))
    return round(shares[len(shares) // 2], 4) if shares else None


def extra(results: Results, options: Options) -> dict[str, Any]:
    found = figures(results)
    medians = {name: each["recovery_s"]["median"] if each["recovery_s"] else None for name, each in found.items()}
    ours = medians.get(FIRST)
    return {
        "ours": ours,
        "baselines": {name: value for name, value in medians.items() if name != FIRST},
        "ratio": {name: stats.ratio(value, ours) for name, value in medians.items() if name != FIRST},
        "unit": f"seconds from the fault to the results of the first batch that began after it, median; the ratio is to {FIRST!r}",
        "approaches": found,
        "plot": str(draw(Path("bench-out") / "approaches.svg", found)),
    }


def tables(results: Results, options: Options) -> list[Table]:
    table = Table(title=f"approaches, {int(options['keys']):,} keys, fault: {options['fault']}", title_justify="left")
    table.add_column("")
    for name in ("right after, s", "each", "rows/s", f"of {FIRST}", "shipped"):
        table.add_column(name, justify="right")
    for name, each in figures(results).items():
        seconds = each["recovery_s"]
        shown = [f"{seconds['median']:.2f}", "  ".join(f"{value:.2f}" for value in seconds["each"])] if seconds else ["-", "-"]
        rate = [f"{each['rows_per_s']:,.0f}" if each["rows_per_s"] else "-", f"{each['throughput']:.2f}" if each["throughput"] else "-"]
        table.add_row(name, *shown, *rate, f"{each['bytes_shipped']:.0%}" if each["bytes_shipped"] is not None else "-")
    return [table]


BENCHMARK = Benchmark(
    name="approaches",
    line="ways to keep state safe: what they cost, and how long a loss takes",
    options={
        "keys": 1_000_000,
        "rows": 20_000,
        "executors": 3,
        "memory_mb": 1024,
        "kills": 3,
        "fault": "kill",
        "approaches": "all",
        "spark": True,
    },
    lanes=lanes,
    turns=lambda options: int(options["kills"]),
    extra=extra,
    tables=tables,
)
