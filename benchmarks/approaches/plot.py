"""One point for each approach: its throughput, and the time after a loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from headrace.report.plots import COLOURS

BLUE, _, _, _, _, GREY = COLOURS


def draw(path: Path, approaches: Mapping[str, Mapping[str, Any]]) -> Path:
    """Throughput before a fault against the time until results are right again. A line shows the range of all faults."""
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "approaches",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        for name, each in approaches.items():
            seconds, rate = each["recovery_s"], each["rows_per_s"]
            if not seconds or not rate:
                continue
            colour = GREY if name.startswith("spark") else BLUE
            axes.plot([seconds["min"], seconds["max"]], [rate, rate], color=colour, linewidth=1, alpha=0.5)
            axes.plot([seconds["median"]], [rate], marker="o", color=colour)
            axes.annotate(name, (seconds["median"], rate), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds from the fault until results are right (log)")
        axes.set_ylabel("rows/s before it")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path
