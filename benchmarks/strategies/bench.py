"""One query, divided into subqueries in two ways: throughput, and the share of time for moving rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, Options, Results
from headrace.compile.strategies import Strategy, example_chain, subqueries_of

STRATEGIES = (Strategy.OPERATOR_SET_CLOUD, Strategy.OPERATOR_CLOUD)
OPERATORS = ("aggregate", "aggregate-2", "aggregate-3")
GRAPH = example_chain("filter", "map", "aggregate*", "filter 2", "aggregate-2*", "map 2", "aggregate-3*")


def lane_name(strategy: Strategy) -> str:
    return OURS if strategy is Strategy.OPERATOR_SET_CLOUD else str(strategy)


def instances(strategy: Strategy, nodes: int) -> int:
    """The number of nodes of each stateful operator: all, or its share."""
    return max(1, nodes // len(subqueries_of(GRAPH, strategy)))


def lanes(options: Options) -> list[Lane]:
    rows, keys, step_s, nodes = (int(options[name]) for name in ("rows", "keys", "step_s", "nodes"))
    found = []
    for strategy in STRATEGIES:
        each = instances(strategy, nodes)
        params = {"rows": rows, "keys": keys, "step_s": step_s, "strategy": str(strategy)}
        params["instances"] = ",".join(f"{operator}={each}" for operator in OPERATORS)
        found.append(Lane(lane_name(strategy), OURS, params, warmup_batches=int(options["warmup"])))
    return found


def extra(results: Results, options: Options) -> dict[str, Any]:
    rates = {name: None if result.failed else stats.rate_total(result) for name, result in results.items()}
    ours = rates.pop(OURS)
    shares = {name: _share(result.headrace) for name, result in results.items()}
    _draw(Path("bench-out"), {OURS: ours, **rates}, shares)
    return {
        "ours": ours,
        "baselines": rates,
        "ratio": {name: stats.ratio(ours, rate) for name, rate in rates.items()},
        "distribution_share": shares,
        "plot": "bench-out/strategies.svg",
    }


def _share(batches: list[dict[str, Any]]) -> float | None:
    """The share of the instances' time that they spent receiving rows."""
    reports = [report for batch in batches for report in batch["instances"]]
    wall_ms = sum(1000 * report["wallSeconds"] for report in reports)
    return round(sum(report["phasesMs"].get("read", 0.0) for report in reports) / wall_ms, 4) if wall_ms else None


def tables(results: Results, options: Options) -> list[Table]:
    table = Table(title=f"strategies on {options['nodes']} nodes", title_justify="left")
    for name in ("strategy", "instances of each operator", "instances' time spent taking in rows"):
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for strategy in STRATEGIES:
        share = _share(results[lane_name(strategy)].headrace)
        table.add_row(str(strategy), str(instances(strategy, int(options["nodes"]))), "-" if share is None else f"{share:.0%}")
    return [table]


def _draw(folder: Path, rates: dict[str, float | None], shares: dict[str, float | None]) -> None:
    """Two bar charts side by side."""
    from matplotlib.figure import Figure

    names = {OURS: str(Strategy.OPERATOR_SET_CLOUD)}
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, title, values in zip(
        figure.subplots(1, 2),
        ("thousand rows/s", "share of instances' time spent taking in rows"),
        ({k: (v or 0.0) / 1000 for k, v in rates.items()}, {k: v or 0.0 for k, v in shares.items()}),
        strict=True,
    ):
        bars = axes.barh([names.get(name, name) for name in values], list(values.values()), color="#2563a8")
        axes.bar_label(bars, fmt="{:,.2f}" if max(values.values(), default=0.0) < 2 else "{:,.0f}", padding=3)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.15)
        axes.invert_yaxis()
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "strategies.svg")


BENCHMARK = Benchmark(
    name="strategies",
    line="a chain of three stateful operators, cut into subqueries in two ways",
    options={"keys": 10_000, "rows": 500_000, "step_s": 20, "nodes": 8, "warmup": 6},
    lanes=lanes,
    extra=extra,
    tables=tables,
)
