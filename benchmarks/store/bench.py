"""How much a batch waits for a durable store behind a network, at several times per request."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.store.server import is_there
from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, LaneResult, Options, Results, numbers_of, preload
from headrace.errors import HeadraceError

FOLDER = "folder"
UPLOAD = "upload"
"""The phase of an instance in which its new runs and results go to the store."""


def lanes(options: Options) -> list[Lane]:
    if not is_there():
        raise HeadraceError(where="headrace bench store", wanted="moto and obstore", found="not both", hint="pip install 'headrace[dev]'")
    keys, found = int(options["keys"]), []
    for rows in numbers_of(options, "rows"):
        for delay in (None, 0, *numbers_of(options, "delays")):
            params = {"keys": keys, "rows": rows, "delay_ms": delay}
            filled = preload(keys, rows)
            found.append(Lane(_name(rows, delay), OURS, params, **filled, warmup_batches=int(options["warmup"]), group=str(rows)))
    return found


def _name(rows: int, delay: int | None) -> str:
    return f"{rows:,} rows, {FOLDER if delay is None else f'S3 + {delay} ms'}"


def extra(results: Results, options: Options) -> dict[str, Any]:
    """Periods in milliseconds, and what of them is waiting: the period beyond that of a folder, in the same run."""
    measured = {name: _figures(result) for name, result in results.items() if not result.failed}
    for name, figures in measured.items():
        local = measured.get(f"{name.partition(', ')[0]}, {FOLDER}")
        figures["beyond_folder_ms"] = None if local is None else _minus(figures["period_ms"], local["period_ms"])
    return {"store": measured, "unit": "milliseconds, medians: less is better"}


def _figures(result: LaneResult) -> dict[str, float | None]:
    periods = stats.periods_ms(result) or [batch.duration_ms for batch in result.batches]
    phases = {
        name: stats.percentile([each["phasesMs"].get(name, 0.0) for each in result.headrace], 50) for name in ("commit", "deliver", "batch")
    }
    upload = [max((i["phasesMs"].get(UPLOAD, 0.0) for i in each["instances"]), default=0.0) for each in result.headrace]
    return {
        "period_ms": stats.percentile(periods, 50),
        "period_p99_ms": stats.percentile(periods, 99),
        "upload_ms": stats.percentile(upload, 50),
        "commit_ms": phases["commit"],
    }


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def tables(results: Results, options: Options) -> list[Table]:
    columns = {
        "period": "period_ms",
        "p99": "period_p99_ms",
        "beyond a folder": "beyond_folder_ms",
        "upload": "upload_ms",
        "commit": "commit_ms",
    }
    table = Table("", *columns, title="a batch with a durable store behind a network, ms (medians)", title_justify="left")
    for name, figures in extra(results, options)["store"].items():
        table.add_row(name, *("" if figures[column] is None else f"{figures[column]:,.0f}" for column in columns.values()))
    return [table]


BENCHMARK = Benchmark(
    name="store",
    line="period of batches whose state goes to S3, with several times per request",
    options={"keys": 100_000, "rows": "5000,1000000", "delays": "20,100", "warmup": 10},
    lanes=lanes,
    extra=extra,
    tables=tables,
    seconds=15.0,
)
