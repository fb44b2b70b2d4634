"""The open loop of every lane over time, as SEEP's Fig. 8 shows it: what was offered, consumed and discarded, and the instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.top_k.outcome import Outcome, series
from headrace.report.plots import COLOURS, short

BLUE, ORANGE, GREEN, _, RED, GREY = COLOURS
TITLES = {"elastic": "Headrace, elastic", "one instance": "Headrace, one instance", "spark": "plain Spark, all cores"}


def draw(path: Path, found: list[Outcome]) -> Path:
    """One column per lane: rates, latency, instances."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "top-k", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(3.4 * len(found), 5.2), layout="constrained")
        axes = figure.subplots(3, len(found), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1.5, 1))
        for column, outcome in enumerate(found):
            _lane(axes[:, column], outcome)
        for row, name in enumerate(("lines/s", "latency (s)", "instances")):
            axes[row, 0].set_ylabel(name)
            axes[row, 0].set_ylim(bottom=0)
        axes[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes[2, 0].yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _lane(axes: Any, outcome: Outcome) -> None:
    over_time = series(outcome)
    rates, latency, instances = axes
    rates.set_title(TITLES[outcome.name], fontsize=10, loc="left")
    rates.plot(over_time.at_s, over_time.offered, color=GREY, linewidth=1.2, linestyle="--", label="offered")
    rates.plot(over_time.at_s, over_time.consumed, color=BLUE, linewidth=1.6, label="consumed")
    rates.plot(over_time.at_s, over_time.discarded, color=RED, linewidth=1.6, label="discarded")
    latency.plot(*outcome.latencies(), color=ORANGE, linewidth=1.2)
    # Between two batches there is no number; the step continues.
    known = over_time.instances == over_time.instances
    instances.step(over_time.at_s[known], over_time.instances[known], where="post", color=GREEN, linewidth=1.6)
    instances.set_xlabel("time (s)")
