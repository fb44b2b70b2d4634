"""Nexmark's queries as unmodified PySpark programs, each beside Spark."""

from __future__ import annotations

from math import prod
from typing import Any

from rich.table import Table

from benchmarks.nexmark.queries import QUERIES, Query
from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, LaneResult, Options, Results, engines_of
from headrace.errors import HeadraceError

FORMS = ("sql", "dataframe")
NOT_SPARK: dict[str, str] = {}
"""Queries that Spark's streaming cannot say. They are compared with its batch answer alone."""


def chosen(options: Options) -> list[Query]:
    """The queries in ``--queries``: ``all``, ``stateful``, ``stateless``, or names with commas between."""
    text = str(options["queries"])
    if text in ("all", "stateful", "stateless"):
        return [each for each in QUERIES.values() if text == "all" or each.stateful == (text == "stateful")]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(QUERIES):
        raise HeadraceError(where="--queries", wanted=f"all, stateful, stateless, or some of {','.join(QUERIES)}", found=text)
    return [QUERIES[name] for name in names]


NO_REUSE = {"q5": {"spark.sql.exchange.reuse": "false"}}
"""Settings without which Spark's streaming answers wrongly. q5 reads one aggregate twice. Spark reuses the shuffle below it, and then
does not see the watermark, so it never emits a row of the second reading."""


def lanes(options: Options) -> list[Lane]:
    if options["form"] not in FORMS:
        raise HeadraceError(where="--form", wanted=" or ".join(FORMS), found=str(options["form"]))
    shared = {name: int(options[name]) for name in ("rows", "step_s", "in_flight")} | {"form": str(options["form"])}
    found = []
    for query in chosen(options):
        for engine in engines_of(options):
            if engine == OURS or query.name not in NOT_SPARK:
                conf = {} if engine == OURS else NO_REUSE.get(query.name, {})
                found.append(Lane(lane_name(query.name, engine), engine, {"query": query.name, **shared}, group=query.name, conf=conf))
    return found


def lane_name(query: str, engine: str) -> str:
    return f"{query} {engine}"


def extra(results: Results, options: Options) -> dict[str, Any]:
    """Rates and ratios by query. ``ours`` is the geometric mean of our rates."""
    rates = {name: None if result.failed else stats.rate_total(result) for name, result in results.items()}
    baselines, ratios = {}, {}
    for query in chosen(options):
        ours = rates.get(lane_name(query.name, OURS))
        for engine in engines_of(options)[1:]:
            if lane_name(query.name, engine) in rates:
                # The first baseline has the plain names.
                name = query.name if engine == engines_of(options)[1] else lane_name(query.name, engine)
                baselines[name] = rates[lane_name(query.name, engine)]
                ratios[name] = stats.ratio(ours, baselines[name])
    own = [rate for name, rate in rates.items() if rate and name.endswith(f" {OURS}")]
    stateful = {name: ratio for name, ratio in ratios.items() if ratio and QUERIES[name.split()[0]].stateful}
    return {
        "ours": round(prod(own) ** (1 / len(own)), 1) if own else None,
        "baselines": baselines,
        "ratio": ratios,
        "worst": min(stateful.values(), default=None),
    }


def tables(results: Results, options: Options) -> list[Table]:
    table = Table(title=f"rows/s by query, {options['form']}", title_justify="left")
    table.add_column("")
    table.add_column("query")
    engines = engines_of(options)
    for column in (*engines, "ours is", "result"):
        table.add_column(column, justify="right")
    ratios = extra(results, options)["ratio"]
    for query in chosen(options):
        lanes = [results.get(lane_name(query.name, engine)) for engine in engines]
        ratio = ratios.get(query.name)
        equal = all(lane.equal for lane in lanes if lane is not None)
        table.add_row(
            query.name, query.what, *map(_rate, lanes), f"{ratio:.2f}x" if ratio else "-", "equal" if equal else "[red]NOT EQUAL[/red]"
        )
    return [table]


def _rate(result: LaneResult | None) -> str:
    rate = None if result is None or result.failed else stats.rate_total(result)
    return f"{rate:,.0f}" if rate else "-"


BENCHMARK = Benchmark(
    name="nexmark",
    line="Nexmark's queries as unmodified PySpark programs, Parquet files",
    options={"queries": "all", "form": "sql", "rows": 50_000, "step_s": 10, "in_flight": 1000, "baselines": "spark-rocksdb"},
    lanes=lanes,
    extra=extra,
    tables=tables,
    # There are 23 queries. Warm-up follows the measured time, so this is about two minutes for each.
    seconds=12.0,
)
