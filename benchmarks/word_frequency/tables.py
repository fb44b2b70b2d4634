"""Tables, plots and plain data of the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.word_frequency.summary import Seen
from headrace.bench import stats
from headrace.bench.model import OURS
from headrace.report.plots import Plot, Series, svg

FOLDER = Path("bench-out")


def tables(latency: list[Seen], interval: list[Seen], throughput: list[Seen]) -> list[Table]:
    made = (
        (latency, latency_table),
        (interval, interval_table),
        (throughput, throughput_table),
    )
    return [table(seen) for seen, table in made if seen]


def latency_table(latency: list[Seen]) -> Table:
    """SEEP, Fig. 14."""
    window = latency[0].cell.window.name
    found = _table(
        f"how late results are, ms (window: {window})",
        ("words", "fragments/s", "", "p50", "p95", "p99", "max", "checkpoint", "behind, s", "ours is"),
    )
    before: tuple[int, float] | None = None
    ours = None
    for seen in latency:
        cell = seen.cell
        first = (cell.words, cell.rate) != before
        before = (cell.words, cell.rate)
        p95 = seen.latency_ms.get("p95")
        ours = p95 if first else ours
        ratio = stats.ratio(p95, ours) if cell.engine != OURS else None
        found.add_row(
            f"{cell.words:,}" if first else "",
            f"{cell.rate:,.0f}" if first else "",
            cell.name,
            *(_ms(seen.latency_ms.get(name)) for name in ("p50", "p95", "p99", "max")),
            _ms(seen.checkpoint_ms),
            f"{seen.behind_s:.1f}" + ("+" if seen.overran else ""),
            f"{ratio:.2f}x" if ratio else "",
            end_section=False,
        )
    return found


def interval_table(interval: list[Seen]) -> Table:
    """SEEP, Fig. 15, and Floe, Fig. 7."""
    cell = interval[0].cell
    found = _table(
        f"the interval of checkpoints ({cell.rate:,.0f} fragments/s, {cell.words:,} words)",
        ("interval, s", "p50, ms", "p95, ms", "batches", "batch, ms", "checkpoint, ms", "changed, KB", "of the state", "recovery, s"),
    )
    for seen in interval:
        found.add_row(
            f"{seen.cell.interval_s:g}" if seen.cell.interval_s else "none",
            _ms(seen.latency_ms.get("p50")),
            _ms(seen.latency_ms.get("p95")),
            str(seen.batches),
            _ms(seen.batch_ms),
            _ms(seen.checkpoint_ms),
            f"{(seen.delta_bytes or 0) / 1000:,.0f}",
            f"{seen.delta_share or 0:.1%}",
            f"{seen.recovery_s:.2f}" if seen.recovery_s is not None else "",
        )
    return found


def throughput_table(throughput: list[Seen]) -> Table:
    found = _table(
        f"as fast as it can ({throughput[0].cell.words:,} words)",
        ("window", "", "fragments/s", "words/s", "fragments a batch", "batch, ms", "state written a batch, KB", "ours is"),
    )
    ours = None
    for seen in throughput:
        first = seen.cell.engine == OURS
        ours = seen.words_s if first else ours
        ratio = stats.ratio(ours, seen.words_s) if not first else None
        found.add_row(
            seen.cell.window.name if first else "",
            seen.cell.name,
            f"{seen.fragments_s:,.0f}",
            f"{seen.words_s:,.0f}",
            f"{seen.cell.rows:,}",
            _ms(seen.batch_ms),
            f"{(seen.delta_bytes or 0) / 1000:,.0f}",
            f"{ratio:.2f}x" if ratio else "",
        )
    return found


def plain(seen: Seen) -> dict[str, Any]:
    """For the RESULT line."""
    cell = seen.cell
    return {
        "engine": cell.engine,
        "sync": cell.sync,
        "window": cell.window.name,
        "words": cell.words,
        "rate": cell.rate,
        "interval_s": cell.interval_s,
        "rows": cell.rows,
        "fragments_s": round(seen.fragments_s, 1),
        "words_s": round(seen.words_s, 1),
        "batches": seen.batches,
        "batch_ms": round(seen.batch_ms, 1),
        "latency_ms": {name: round(ms, 1) for name, ms in seen.latency_ms.items()},
        "behind_s": round(seen.behind_s, 2),
        "checkpoint_ms": seen.checkpoint_ms and round(seen.checkpoint_ms, 2),
        "delta_bytes": seen.delta_bytes and round(seen.delta_bytes),
        "delta_share": seen.delta_share and round(seen.delta_share, 4),
        "recovery_s": seen.recovery_s and round(seen.recovery_s, 2),
        "overran": seen.overran,
        "wrong": seen.wrong,
    }


def draw(latency: list[Seen], interval: list[Seen]) -> list[str]:
    """Write plots to files, one for each figure with more than one point."""
    plots = {}
    for words in dict.fromkeys(seen.cell.words for seen in latency):
        plots[f"word-frequency-latency-{words}"] = latency_plot([seen for seen in latency if seen.cell.words == words])
    if len(interval) > 1:
        plots["word-frequency-interval"] = interval_plot(interval)
    if plots:
        FOLDER.mkdir(exist_ok=True)
    paths = []
    for name, plot in plots.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(svg(plot), encoding="utf-8")
        paths.append(str(path))
    return paths


def latency_plot(latency: Sequence[Seen]) -> Plot:
    """Rates at equal distances: they are a decade apart. Cells that could not keep up are left out, since they would dwarf the others."""
    rates = sorted({seen.cell.rate for seen in latency})
    kept_up = [seen for seen in latency if not overloaded(seen)]
    lines = {
        name: {rates.index(seen.cell.rate): seen.latency_ms.get("p95") for seen in kept_up if seen.cell.name == name}
        for name in dict.fromkeys(seen.cell.name for seen in latency)
    }
    series = tuple(Series(name, list(range(len(rates))), [line.get(at) for at in range(len(rates))]) for name, line in lines.items())
    title, names = f"95th percentile of latency, {latency[0].cell.words:,} words", tuple(f"{rate:,.0f}" for rate in rates)
    return Plot(title, "95th percentile of latency (ms)", series, x_label="fragments/s offered", x_names=names)


def interval_plot(interval: Sequence[Seen]) -> Plot:
    """The two sides of the trade-off, in seconds."""
    at = [seen.cell.interval_s for seen in interval]
    latency = [seen.latency_ms["p95"] / 1000 if seen.latency_ms else None for seen in interval]
    recovery = [seen.recovery_s for seen in interval]
    series = (Series("95th percentile of latency", at, latency), Series("recovery", at, recovery))
    return Plot("latency and recovery by the interval of checkpoints", "s", series, x_label="interval of checkpoints (s)")


def overloaded(seen: Seen) -> bool:
    """True if the last fragment was later than twice the median: the queue was growing."""
    return seen.behind_s > 2 and seen.behind_s * 1000 > 2 * seen.latency_ms.get("p50", 0.0)


def _table(title: str, columns: Sequence[str]) -> Table:
    found = Table(title=title, title_justify="left")
    for at, column in enumerate(columns):
        found.add_column(column, justify="left" if not column or (at == 0 and column == "window") else "right")
    return found


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 20 else f"{value:.1f}"
