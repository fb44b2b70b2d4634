"""The table and the RESULT line."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, LaneResult, Options, Results


def result_line(benchmark: Benchmark, options: Options, results: Results, about: dict[str, Any]) -> dict[str, Any]:
    """The content of the RESULT line. The keys that every benchmark has come first, in the same order."""
    rates = {name: _rate(result) for name, result in results.items()}
    ours = rates.pop(OURS, None)
    checked = [result for result in results.values() if result.verdict is not None]
    line: dict[str, Any] = {
        "bench": benchmark.name,
        "ours": ours,
        "baselines": rates,
        "ratio": {name: stats.ratio(ours, rate) for name, rate in rates.items()},
        # Headrace's result must have been checked. A baseline that failed has no result to compare.
        "equal": all(result.equal for result in checked) and all(r.verdict is not None for r in results.values() if r.lane.engine == OURS),
        "options": dict(options),
        "lanes": {name: stats.summary(result) for name, result in results.items()},
    }
    line.update(benchmark.extra(results, options))
    reasons = {name: result.failed or result.unchecked for name, result in results.items() if result.failed or result.unchecked}
    if reasons:
        line["reasons"] = reasons
    return {**line, **about}


def lanes_table(benchmark: Benchmark, results: Results) -> Table:
    """A table with one row per lane."""
    table = Table(title=f"{benchmark.name}: {benchmark.line}", title_justify="left")
    table.add_column("")
    for column in ("rows/s", "by median", "ms median", "p10 to p90", "p99", "batches", "seconds", "ours is", "result"):
        table.add_column(column, justify="right")
    ours = _rate(results[OURS]) if OURS in results else None
    for name, result in results.items():
        if result.failed:
            # The reason is printed below the table, where there is room.
            table.add_row(name, "failed")
            continue
        said = stats.summary(result)
        batch = said["batch_ms"]
        times = stats.ratio(ours, said["rate"]) if name != OURS else None
        verdict = "not checked" if result.verdict is None else "equal" if result.verdict.equal else "[red]NOT EQUAL[/red]"
        table.add_row(
            name,
            _number(said["rate"]),
            _number(said["rate_median"]),
            _number(batch["median"]),
            f"{_number(batch['p10'])} to {_number(batch['p90'])}",
            _number(batch["p99"]),
            str(said["batches"]),
            f"{said['seconds']:.1f}",
            f"{times:.2f}x" if times else "",
            verdict,
        )
    return table


def _rate(result: LaneResult) -> float | None:
    """The rate of a lane. A lane that failed while it was measured has none."""
    return None if result.failed else stats.rate_total(result)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
