"""Compares the hand-over protocols: the time until a change is complete, and the bytes that it moves (StreamCloud, Fig. 19)."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.handover.moves import moved_share
from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, Options, Results
from headrace.control.handover import Protocol

COLOURS = dict(zip(Protocol, ("#2563a8", "#c2410c", "#15803d", "#7c3aed"), strict=True))


def numbers(options: Options, name: str) -> list[int]:
    return [int(each) for each in str(options[name]).split(",")]


def lanes(options: Options) -> list[Lane]:
    master = None if options["master"] == "none" else str(options["master"])
    found = []
    for window_s in numbers(options, "windows"):
        for keys in numbers(options, "sizes"):
            params = {"window_s": window_s, "keys": keys, "rows": max(keys, int(options["rows"]))}
            params |= {"repeats": int(options["repeats"]), "settle": bool(options["settle"])}
            found.append(Lane(f"{window_s} s, {keys} keys", OURS, params, warmup_batches=3, changes=True, master=master))
    return found


def told(results: Results) -> list[dict[str, Any]]:
    """The medians over the repeats of each protocol."""
    notes = [note for result in results.values() for progress in result.headrace for note in progress.get("notes", [])]
    places = dict.fromkeys((n["window_s"], n["keys"], n["protocol"]) for n in notes)
    found = []
    for place in places:
        same = [n for n in notes if (n["window_s"], n["keys"], n["protocol"]) == place]
        middle = {name: median(n[name] for n in same) for name in same[0] if isinstance(same[0][name], int | float)}
        found.append({**same[0], **middle, "times": len(same)})
    return found


def extra(results: Results, options: Options) -> dict[str, Any]:
    notes = told(results)
    by_protocol = {p: [n["over_s"] for n in notes if n["protocol"] == p] for p in Protocol}
    medians = {str(p): round(median(values), 3) if values else None for p, values in by_protocol.items()}
    ours = medians.pop(str(Protocol.STATE_RECREATION))
    _draw(Path("bench-out"), notes)
    return {
        "ours": ours,
        "baselines": medians,
        "ratio": {name: stats.ratio(each, ours) for name, each in medians.items()},
        "unit": "seconds until a hand-over is over, median: less is better, and the ratio is theirs over state recreation's",
        "handovers": notes,
        "share_of_state_moved": moved_share(int(options["moving_rows"])),
        "plot": "bench-out/handover.svg",
    }


def tables(results: Results, options: Options) -> list[Table]:
    table = Table(title="a quarter of the slots changes hands", title_justify="left")
    for name in ("window", "keys", "protocol", "windows moved", "switched after", "over after", "moved", "longest batch"):
        table.add_column(name, justify="left" if name == "protocol" else "right")
    for n in told(results):
        sizes = (f"{n['window_s']} s", f"{n['keys']:,}", n["protocol"], f"{n['windows_moved']:,.0f}")
        times = (f"{n['switched_s']:.2f} s", f"{n['over_s']:.2f} s", f"{n['bytes'] / 1e6:.2f} MB", f"{n['longest_batch_ms']:,.0f} ms")
        table.add_row(*sizes, *times)
    return [table]


def _draw(folder: Path, notes: list[dict[str, Any]]) -> None:
    """A chart for each window length: completion time above, bytes below, over the number of windows that change hands."""
    from matplotlib.figure import Figure

    windows = sorted({n["window_s"] for n in notes})
    if not windows:
        return
    figure = Figure(figsize=(3.4 * len(windows) + 1, 5.2), layout="constrained")
    grid = figure.subplots(2, len(windows), squeeze=False, sharex="col")
    for column, window_s in enumerate(windows):
        for row, (name, unit, title) in enumerate((("over_s", 1, "seconds until over"), ("bytes", 1e6, "megabytes moved"))):
            axes = grid[row][column]
            for protocol in Protocol:
                mine = [n for n in notes if n["protocol"] == protocol and n["window_s"] == window_s]
                points = sorted((n["windows_moved"], n[name] / unit) for n in mine)
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=str(protocol), color=COLOURS[protocol])
            axes.set_xscale("symlog", linthresh=100)
            axes.set_title(f"{title}, window {window_s} s", loc="left", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_ylim(bottom=0)
        grid[1][column].set_xlabel("windows that change hands", fontsize=9)
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(Protocol), fontsize=8, frameon=False)
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "handover.svg")


BENCHMARK = Benchmark(
    name="handover",
    line="hand-over protocols: how long a change takes, and what it moves",
    options={
        "windows": "1,5,10",
        "sizes": "1000,10000,100000",
        "rows": 5000,
        "moving_rows": 3_000_000,
        "repeats": 2,
        "settle": True,
        "master": "local-cluster[2,1,2048]",
    },
    lanes=lanes,
    extra=extra,
    tables=tables,
    alternates=False,
)
