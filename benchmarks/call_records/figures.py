"""Figures of the lanes, by query: throughput per second and per CPU second, and the cost of more instances.

On a machine of n cores, wall-clock throughput grows with at most n instances. Throughput per CPU second shows more: if it stays constant
as instances are added, they cost nothing, and on more cores throughput would grow with them (StreamCloud, Fig. 16: from 20 to 40
instances throughput doubles). Work is counted in rows, or in comparisons where the paper does so: pairs within the time bound (and with
the join's key).
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.product.bench import comparisons_per_row
from headrace.bench import machine, stats
from headrace.bench.model import OURS, LaneResult, Results

if TYPE_CHECKING:
    from headrace.report.plots import Plot

SPARK = "spark"
FOLDER = Path("bench-out")

Said = dict[str, dict[str, Any]]


def by_query(results: Results) -> Said:
    """By query, the figures of each lane; Headrace's lanes by their number of instances."""
    groups: dict[str, list[LaneResult]] = {}
    for result in results.values():
        groups.setdefault(result.lane.group, []).append(result)
    return {query: _query_figures(group) for query, group in groups.items()}


def _query_figures(group: list[LaneResult]) -> dict[str, Any]:
    ours = {count_of(result): _lane_figures(result) for result in group if result.lane.engine == OURS}
    spark = {result.lane.engine: _lane_figures(result) for result in group if result.lane.engine != OURS}
    first = ours[min(ours)]
    for each in ours.values():
        each["speed_up"] = stats.ratio(each["per_s"], first["per_s"])
        each["efficiency"] = stats.ratio(each["per_cpu_s"], first["per_cpu_s"])
    # The lane whose number of instances is nearest to the number of cores.
    at = max((count for count in ours if count <= machine.cores()), default=min(ours))
    best = {name: max((each[name] or 0.0 for each in spark.values()), default=0.0) or None for name in ("per_s", "per_cpu_s")}
    return {
        "unit": unit_of(group[0]),
        "instances": {str(count): ours[count] for count in sorted(ours)},
        "spark": spark,
        "at_instances": at,
        "ratio": stats.ratio(ours[at]["per_s"], best["per_s"]),
        "ratio_per_cpu_s": stats.ratio(ours[at]["per_cpu_s"], best["per_cpu_s"]),
    }


def count_of(result: LaneResult) -> int:
    params = result.lane.params
    return int(params.get("instances") or params["partitions"])


def unit_of(result: LaneResult) -> str:
    return "comparisons" if result.lane.group in ("join", "product") else "rows"


def work_per_row(result: LaneResult) -> float:
    """The work of a row: 1, or its comparisons: in the product with all rows within the bound, in the join with those of its caller."""
    params = result.lane.params
    if unit_of(result) == "rows":
        return 1.0
    reached = comparisons_per_row(params["rows"], params["step_s"])
    return reached / params["numbers"] if result.lane.group == "join" else reached


def _lane_figures(result: LaneResult) -> dict[str, Any]:
    per_row = work_per_row(result)
    rate = None if result.failed else stats.rate_total(result)
    cpu_s, rows = (sum(each) for each in zip(*result.cpu, strict=True)) if result.cpu else (0.0, 0)
    per_cpu_s = rows * per_row / cpu_s if cpu_s and not result.failed else None
    return {
        "rows_per_s": rate,
        "per_s": rate and _rounded(rate * per_row),
        "per_cpu_s": per_cpu_s and _rounded(per_cpu_s),
        "by_turn": [_rounded(rows * per_row / cpu_s) for cpu_s, rows in result.cpu if cpu_s],
        "cores_used": stats.ratio(rate and rate * per_row, per_cpu_s),
        "rows": result.lane.rows,
        "equal": result.equal,
    }


def headline(said: Said) -> dict[str, Any]:
    """The keys that every benchmark has, with all queries as one figure. Units differ, but cancel out in the ratio."""
    compared = {name: each for name, each in said.items() if each["ratio_per_cpu_s"]}
    counted = compared or said
    ours = [each["instances"][str(each["at_instances"])]["per_cpu_s"] for each in counted.values()]
    found: dict[str, Any] = {
        "ours": round(geometric_mean(ours), 1) if all(ours) else None,
        "baselines": {},
        "ratio": {},
        "unit": "rows or comparisons a CPU second, geometric mean over the queries",
    }
    if compared:
        ratio = geometric_mean(each["ratio_per_cpu_s"] for each in compared.values())
        found["baselines"] = {SPARK: round(found["ours"] / ratio, 1)}
        found["ratio"] = {SPARK: round(ratio, 3)}
    return found


def table(said: Said) -> Table:
    found = Table(title="what a CPU second does; wall-clock scaling ends with the cores", title_justify="left")
    for name in ("query", "lane", "a second", "speed-up", "cores used", "a CPU second", "of 1 instance's", "ours is", "a CPU second"):
        found.add_column(name, justify="left" if name in ("query", "lane") else "right")
    for query, each in said.items():
        shown = f"{query}, {each['unit']}"
        for engine, lane in each["spark"].items():
            at = each["instances"][str(each["at_instances"])]
            times = (stats.ratio(at[name], lane[name]) for name in ("per_s", "per_cpu_s"))
            cells = (_number(lane["per_s"]), "", _plain(lane["cores_used"]), _number(lane["per_cpu_s"]), "")
            found.add_row(shown, engine, *cells, *(_plain(ratio, "x") for ratio in times))
            shown = ""
        for count, lane in each["instances"].items():
            cells = (_number(lane["per_s"]), _plain(lane["speed_up"], "x"), _plain(lane["cores_used"]), _number(lane["per_cpu_s"]))
            found.add_row(shown, f"{count} instance{'s' if count != '1' else ''}", *cells, _plain(lane["efficiency"]), "", "")
            shown = ""
        found.add_section()
    return found


def plots(said: Said) -> list[Plot]:
    """One plot with all queries on one scale, then one plot per query."""
    from headrace.report.plots import Plot, Series

    counts = {query: [int(count) for count in each["instances"]] for query, each in said.items()}

    def line(query: str, name: str, figure: str) -> Series:
        return Series(name, counts[query], [lane[figure] for lane in said[query]["instances"].values()])

    scaling = tuple(line(query, query, "efficiency") for query in said)
    found = [Plot("work of a CPU second, one instance = 1", "work of a CPU second", scaling, x_label="instances")]
    for query, each in said.items():
        levels = [Series(engine, counts[query], [lane["per_cpu_s"]] * len(counts[query])) for engine, lane in each["spark"].items()]
        lines = (line(query, "Headrace", "per_cpu_s"), *levels)
        found.append(Plot(query, f"{each['unit']} a CPU second", lines, x_label="instances"))
    return found


def draw(said: Said) -> list[str]:
    """The plots as files."""
    from headrace.report.plots import svg

    FOLDER.mkdir(exist_ok=True)
    names = ["scaling", *said]
    paths = [FOLDER / f"call-records-{name}.svg" for name in names]
    for path, plot in zip(paths, plots(said), strict=True):
        path.write_text(svg(plot), encoding="utf-8")
    return [str(path) for path in paths]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _plain(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"
