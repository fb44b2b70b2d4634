"""The pause that a tuple sees when a running query gets twice as many instances."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.state_size.bench import lane_name, sizes_of
from headrace.bench import stats
from headrace.bench.model import OFFLINE, OURS, Benchmark, Lane, LaneResult, Options, Results, preload

PAUSE_MS_MIN = 1.0
"""The value for a pause that is within the jitter of batches."""


def engines(options: Options) -> list[str]:
    return [OURS] if options["baselines"] == "none" else [OURS, OFFLINE]


def lanes(options: Options) -> list[Lane]:
    rows, to = int(options["rows"]), int(options["to"])
    return [
        Lane(lane_name(engine, keys), engine, {"keys": keys, "rows": rows, "to": to}, **preload(keys, rows), changes=True)
        for keys in sizes_of(options)
        for engine in engines(options)
    ]


def pause(result: LaneResult) -> dict[str, float | None]:
    """The longest gap between the ends of batches after the change, minus the usual gap; and the longest before, as the noise."""
    batches = result.batches
    if result.failed or result.changed_ms is None or len(batches) < 3:
        return dict.fromkeys(("pause_ms", "usual_ms", "longest_before_ms", "longest_after_ms"))
    gaps = [(after.end_ms, after.end_ms - before.end_ms) for before, after in pairwise(batches)]
    before = [gap for end, gap in gaps if end <= result.changed_ms]
    after = [gap for end, gap in gaps if end > result.changed_ms]
    usual = stats.percentile(before, 50) or 0.0
    return {
        "pause_ms": round(max(PAUSE_MS_MIN, max(after) - usual), 1),
        "usual_ms": round(usual, 1),
        "longest_before_ms": round(max(before) - usual, 1),
        "longest_after_ms": round(max(after), 1),
    }


def extra(results: Results, options: Options) -> dict[str, Any]:
    sizes = sizes_of(options)
    pauses = {engine: {str(keys): pause(results[lane_name(engine, keys)]) for keys in sizes} for engine in engines(options)}
    # The ratio is that at a million keys, or at the largest size if there is no such lane.
    at = str(1_000_000 if 1_000_000 in sizes else sizes[-1])
    ours = pauses[OURS][at]["pause_ms"]
    baselines = {engine: pauses[engine][at]["pause_ms"] for engine in engines(options) if engine != OURS}
    firsts, lasts = pauses[OURS][str(sizes[0])]["pause_ms"], pauses[OURS][str(sizes[-1])]["pause_ms"]
    return {
        "ours": ours,
        "baselines": baselines,
        "ratio": {engine: stats.ratio(theirs, ours) for engine, theirs in baselines.items()},
        "unit": "milliseconds of pause: less is better, and the ratio is theirs over ours",
        "at_keys": int(at),
        "pauses": pauses,
        "growth_of_ours": stats.ratio(lasts, firsts),
        "plot": str(_draw(Path("bench-out"), pauses)),
        "changes": [change for result in results.values() for p in result.headrace for change in p.get("changes", [])],
    }


def tables(results: Results, options: Options) -> list[Table]:
    said = extra(results, options)["pauses"]
    table = Table(title=f"pause when a running query goes to {options['to']} instances, ms", title_justify="left")
    for name in ("keys", "engine", "pause", "usual gap", "longest gap after", "jitter before", "ours is"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for keys in sizes_of(options):
        ours = said[OURS][str(keys)]["pause_ms"]
        for engine in engines(options):
            each = said[engine][str(keys)]
            figures = (each[name] for name in ("pause_ms", "usual_ms", "longest_after_ms", "longest_before_ms"))
            shown = ("-" if figure is None else f"{figure:,.0f}" for figure in figures)
            times = stats.ratio(each["pause_ms"], ours) if engine != OURS else None
            table.add_row(f"{keys:,}" if engine == OURS else "", engine, *shown, f"{times:,.1f}x" if times else "")
    return [table]


def _draw(folder: Path, pauses: dict[str, dict[str, dict[str, float | None]]]) -> Path:
    """A plot of the pause over the size of the state, on logarithmic scales."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for engine, colour in zip(pauses, ("#2563a8", "#c2410c"), strict=False):
        points = [(int(keys), each["pause_ms"]) for keys, each in pauses[engine].items() if each["pause_ms"]]
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", color=colour, label=engine)
            for keys, pause_ms in points:
                axes.annotate(f"{pause_ms:,.0f} ms", (keys, pause_ms or 0.0), textcoords="offset points", xytext=(0, 6), fontsize=8)
    axes.set_title("pause when a running query is rescaled, ms", loc="left", fontsize=10)
    axes.set_xlabel("keys in state", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(0.15)
    axes.legend(frameon=False, fontsize=9)
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "rescale.svg")
    return folder / "rescale.svg"


BENCHMARK = Benchmark(
    name="rescale",
    line="the pause of a running query that goes from one instance a core to more, against Spark's stop, repartition and restart",
    options={"sizes": "100000,1000000,10000000", "rows": 20_000, "to": 4, "baselines": OFFLINE},
    lanes=lanes,
    alternates=False,
    extra=extra,
    tables=tables,
)
