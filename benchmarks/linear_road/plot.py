"""Response times second by second."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.linear_road.paced import Prepared
from benchmarks.linear_road.run import LIMITS_S, Outcome, waits
from headrace.report.plots import Plot, Series, svg

OUT = Path("bench-out") / "linear-road.svg"


def draw(outcome: Outcome, day: Prepared, path: Path = OUT) -> Path:
    """A plot of the median and the longest response time of each second, with the limit for tolls."""
    seconds, took, _ = waits(outcome, day)
    at = np.unique(seconds)
    of = [took[seconds == second] for second in at]
    x = (at - day.begins_s).tolist()
    lines = (
        Series("median", x, [float(np.median(each)) for each in of]),
        Series("last", x, [float(each.max()) for each in of], broad=True),
        Series("limit", x, [float(LIMITS_S["toll"])] * len(x)),
    )
    title = f"Linear Road, {outcome.xways} expressways: response"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg(Plot(title, "response time (s)", lines, x_label="second of the road's time")))
    return path
