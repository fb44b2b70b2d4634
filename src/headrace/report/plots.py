"""Plots as inline SVG, all in one plain style.

A plot is data: lines or stacked areas over time with a unit. Colours have a fixed order, so that a colour means the same thing in
adjacent plots. Text stays text, in the font of the page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS = ("#2563a8", "#e07b1f", "#2f8f5b", "#8a5fb0", "#c2483c", "#8d99a6")
"""Colours that people with colour-blindness can distinguish; in black and white they differ in lightness."""
_INK, _MUTED, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_WIDTH_IN, _HEIGHT_IN = 5.4, 2.7
_FEW = 30


@dataclass(frozen=True)
class Series:
    """A named line. None is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    broad: bool = False
    """True for a broad, pale line, over which another one can be seen that has the same values."""


@dataclass(frozen=True)
class PlotMark:
    """A moment that is marked in a plot."""

    x: float
    text: str
    left: bool = False
    """The text ends at the line instead of beginning there."""
    colour: str = "#616e7c"


@dataclass(frozen=True)
class Plot:
    """One plot over time."""

    title: str
    unit: str
    series: tuple[Series, ...]
    stacked: bool = False
    """True for stacked areas that add up to a whole. All series then have the same x values."""
    points: bool = False
    """True for points without lines, for values that have nothing in between."""
    note: str = ""
    x_label: str = "time (s)"
    x_range: tuple[float, float] | None = None
    """The range of x. It is the same for all plots of a page, so that equal times are aligned."""
    x_names: tuple[str, ...] = ()
    """What stands at x = 0, 1, 2 and so on in place of these numbers, for values of x that are not evenly spaced."""
    colours: tuple[str, ...] = COLOURS
    marks: tuple[PlotMark, ...] = ()
    """Moments that are drawn as vertical lines with a word above them."""
    steps: bool = False
    """True if a value holds until the next one."""


def svg(plot: Plot) -> str:
    """The plot as an `<svg>` element that scales with the page."""
    style: Any = {
        "svg.fonttype": "none",
        # The salt makes ids unique: two plots on one page must not share any.
        "svg.hashsalt": plot.title,
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _MUTED,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "text.color": _INK,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        axes = figure.subplots()
        _draw(axes, plot)
        _draw_marks(axes, plot.marks)
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.unit)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        whole = all(y is None or float(y).is_integer() for series in plot.series for y in series.y)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, steps=[1, 2, 2.5, 5, 10], integer=whole))
        if plot.x_names:
            axes.set_xticks(range(len(plot.x_names)), plot.x_names)
        elif all(float(x).is_integer() for series in plot.series for x in series.x):
            # The number of instances is an integer.
            axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlim(plot.x_range)
        axes.set_ylim(bottom=0)
        if len(plot.series) > 1:
            columns = min(len(plot.series), 3)
            figure.legend(
                loc="outside upper left", ncols=columns, frameon=False, fontsize=9, handlelength=1.2, columnspacing=1.4, borderaxespad=0.2
            )
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(out.getvalue(), plot.title)


def _draw(axes: Axes, plot: Plot) -> None:
    nan = float("nan")
    if plot.stacked and plot.series:
        heights = [[y or 0.0 for y in s.y] for s in plot.series]
        names = [s.name for s in plot.series]
        axes.stackplot(plot.series[0].x, heights, labels=names, colors=plot.colours[: len(heights)], linewidth=0, alpha=0.9)
        return
    for at, series in enumerate(plot.series):
        values = [nan if y is None else y for y in series.y]
        # Few points are drawn as points: a line alone would suggest values in between. Two points are a limit.
        marker = "o" if not plot.steps and (plot.points or 2 < len(series.x) <= _FEW) else None
        width = 0.0 if plot.points else 5.0 if series.broad else 1.6
        look: Any = {"color": plot.colours[at % len(plot.colours)], "linewidth": width, "marker": marker, "markersize": 3.5}
        look |= {"alpha": 0.45, "zorder": 1.9} if series.broad else {}
        look |= {"drawstyle": "steps-post"} if plot.steps else {}
        axes.plot(series.x, values, label=series.name, clip_on=marker is None, **look)


def _draw_marks(axes: Axes, marks: Sequence[PlotMark]) -> None:
    for mark in marks:
        axes.axvline(mark.x, color=mark.colour, linewidth=1.0, linestyle=(0, (3, 2)), zorder=1.5)
        # Above the axes, so that it hides no line.
        place: Any = {"ha": "right" if mark.left else "left", "va": "bottom", "fontsize": 8, "color": mark.colour}
        axes.text(mark.x, 1.01, mark.text, transform=axes.get_xaxis_transform(), **place)


def short(value: float) -> str:
    """A number as a tick label.

    >>> [short(x) for x in (0, 0.25, 12, 1500, 20000, 2500000)]
    ['0', '0.25', '12', '1,500', '20k', '2.5M']
    """
    if 1e3 <= abs(value) < 1e4:
        return f"{value:,.0f}"
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def _inline(text: str, title: str) -> str:
    """The element without XML prologue and fixed size, and with a title for screen readers."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A style sheet inside an inline SVG would apply to the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 inherit; font-family: inherit; font-size: \1", text)
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    name = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'{head} role="img" aria-label="{name}" stroke-linejoin="round">{rest}'
