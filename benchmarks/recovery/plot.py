"""Durations of batches around the faults of every lane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.recovery.figures import notes_of
from headrace.bench.model import LaneResult, Results
from headrace.report.plots import COLOURS

BEFORE_S, AFTER_S = 5.0, 20.0
BLUE, ORANGE, _, _, RED, GREY = COLOURS


def draw(path: Path, results: Results) -> Path:
    """A row per lane: a dot per batch at the time of its end since the fault, all faults on top of each other."""
    lanes = {name: result for name, result in results.items() if notes_of(result)}
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "recovery", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7, 2.2 * max(1, len(lanes)) + 0.4), layout="constrained")
        grid = figure.subplots(max(1, len(lanes)), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (name, result), colour in zip(grid, lanes.items(), (BLUE, ORANGE, GREY), strict=False):
            _lane(axes, name, result, colour)
        grid[-1].set_xlabel("end of a batch, seconds after the fault")
        grid[-1].set_xlim(-BEFORE_S, AFTER_S)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path


def _lane(axes: Any, name: str, result: LaneResult, colour: str) -> None:
    axes.set_title(name, fontsize=10, loc="left")
    axes.axvline(0, color=RED, linewidth=1)
    for note in notes_of(result):
        since = [((batch.end_ms - note["struck_ms"]) / 1000, batch.duration_ms) for batch in result.batches]
        points = [(at_s, ms) for at_s, ms in since if -BEFORE_S <= at_s <= AFTER_S]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=0.8, color=colour, alpha=0.6)
    axes.set_ylabel("batch (ms)")
    axes.set_yscale("log")
