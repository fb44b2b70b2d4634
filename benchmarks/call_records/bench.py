"""StreamCloud's operators over call records: throughput per CPU second, with more and more instances, and in Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.call_records import figures
from headrace.bench.model import BASELINES, MEMORY, OURS, ROCKSDB, Benchmark, Lane, Options, Results, numbers_of
from headrace.errors import HeadraceError

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Work:
    """The parameters of one query."""

    rows: int
    """Rows in a batch."""
    step_s: int
    """Seconds of event time in a batch."""
    numbers: int
    """The number of phone numbers."""
    warmup: int
    """The number of batches until the state has its full size."""
    store: str
    """The faster of Spark's state stores."""
    fill_s: int = 0
    """Seconds of event time in the first batch, if it fills the state."""
    spark_rows: int = 0
    """Rows in a batch of Spark's, if a batch of our size would take minutes there; 0 means as many as ours."""


WORKS = {
    "aggregate": Work(1_000_000, 10, 200_000, 3, MEMORY, fill_s=60),
    "map": Work(1_000_000, 10, 200_000, 2, MEMORY),
    "join": Work(50_000, 10, 100_000, 8, ROCKSDB),
    "product": Work(20_000, 30, 50_000, 4, MEMORY, spark_rows=1_500),
    "heavy-customers": Work(1_000_000, 60, 10_000, 3, MEMORY, fill_s=3600),
}


def lanes(options: Options) -> list[Lane]:
    """The lanes. Each query is a group: Spark's lanes, then one lane for each number of instances."""
    counts, found = numbers_of(options, "instances"), []
    if not counts:
        raise HeadraceError(where="--instances", wanted="numbers of instances, such as 1,2,4", found=NONE)
    rows, numbers = (_by_query(options, name) for name in ("rows", "numbers"))
    for query in queries_of(options):
        work = WORKS[query]
        params = {
            "query": query,
            "rows": rows.get(query, work.rows),
            "step_s": work.step_s,
            "fill_s": work.fill_s,
            "numbers": numbers.get(query, work.numbers),
            "districts": int(options["districts"]),
            "seed": int(options["seed"]),
            # The paper computes the distance of every pair.
            "every_pair": True,
        }
        each = {"warmup_batches": work.warmup, "group": query}
        theirs = {**params, "rows": work.spark_rows} if work.spark_rows and query not in rows else params
        found += [Lane(f"{query} {engine}", engine, theirs, **each) for engine in _engines(options, work)]
        # A map has no state. It runs in the tasks of the source, so those are its instances.
        inside = "partitions" if query == "map" else "instances"
        found += [Lane(f"{query} {count}", OURS, {**params, inside: count}, **each) for count in counts]
    return found


def queries_of(options: Options) -> list[str]:
    named = [name for name in str(options["query"]).split(",") if name]
    unknown = [name for name in named if name not in WORKS]
    if unknown or not named:
        raise HeadraceError(where="--query", wanted=f"some of {','.join(WORKS)}", found=", ".join(unknown) or "none")
    return list(dict.fromkeys(named))


def _engines(options: Options, work: Work) -> list[str]:
    """The faster state store by default, or those that the option names."""
    text = str(options["baselines"])
    named = [name for name in text.split(",") if name]
    if text == AUTO:
        return [work.store]
    if text == NONE:
        return []
    if not named or any(name not in BASELINES for name in named):
        raise HeadraceError(where="--baselines", wanted=f"{AUTO}, {NONE}, or some of {','.join(BASELINES)}", found=repr(text))
    return named


def _by_query(options: Options, name: str) -> dict[str, int]:
    """Parse an option: ``auto``, a number for all queries, or ``join=1000,product=200`` for some."""
    text = str(options[name])
    if text == AUTO:
        return {}
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if len(pairs) == 1 and not pairs[0][1]:
        pairs = [(query, "=", pairs[0][0]) for query in WORKS]
    if not all(query in WORKS and number.isdigit() and int(number) > 0 for query, _, number in pairs):
        raise HeadraceError(
            where=f"--{name}", wanted=f"{AUTO}, a number, or pairs such as join=1000 for {', '.join(WORKS)}", found=repr(text)
        )
    return {query: int(number) for query, _, number in pairs}


def extra(results: Results, options: Options) -> dict[str, Any]:
    said = figures.by_query(results)
    return {**figures.headline(said), "queries": said, "plots": figures.draw(said)}


def tables(results: Results, options: Options) -> list[Table]:
    return [figures.table(figures.by_query(results))]


BENCHMARK = Benchmark(
    name="call-records",
    line="StreamCloud's queries over call records: what a CPU second does, with more and more instances, and in Spark",
    options={
        "query": ",".join(WORKS),
        "instances": "1,2,4",
        "baselines": AUTO,
        "rows": AUTO,
        "numbers": AUTO,
        "districts": 1_000,
        "seed": 1,
    },
    lanes=lanes,
    extra=extra,
    tables=tables,
)
