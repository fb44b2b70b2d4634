"""The demo's live view: both lanes side by side in a terminal, or plain lines where there is no terminal."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.demo.captions import many, seconds
from headrace.demo.measure import Mark
from headrace.demo.watch import Heat
from headrace.ids import SLOTS

BLOCKS = " ▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
OWNERS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
"""The colours of instances in the heat map; the ninth has that of the first."""
LATENCY_ROWS = 3
HEAT_ROWS = 2
RECENT_S = 3
MARK_STYLES = {
    "kill": "bold red",
    "back": "bold green",
    "hot": "bold magenta",
    "cool": "magenta",
    "change": "cyan",
    "moved": "cyan",
    "rebalance": "bold magenta",
}


@dataclass(frozen=True)
class LaneView:
    """What is shown of a lane."""

    delays_s: tuple[float, ...]
    """In each second: for how long the oldest call had been waiting at most."""
    waiting: int
    """Calls that wait now."""

    @property
    def recent_s(self) -> float:
        return max(self.delays_s[-RECENT_S:], default=0.0)


@dataclass(frozen=True)
class Snapshot:
    """Everything that the view shows."""

    phase: str
    """The stage: starting, running or draining."""
    second: float
    seconds: float
    rates: tuple[float, ...]
    """Calls that come per second, for each second."""
    static: LaneView
    elastic: LaneView
    partitions: int
    rate_most: float
    """The highest rate that will come."""
    instances_most: float
    """The most instances that there may be."""
    counts: tuple[float, ...] = ()
    """The number of instances in each second."""
    heat: Heat | None = None
    marks: tuple[Mark, ...] = ()
    monitor: str = ""
    down: bool = False
    """The driver of the elastic lane was killed, and has not finished a batch since."""


def render(now: Snapshot, width: int, height: int) -> RenderableType:
    """The picture, for a terminal of this size."""
    lanes = Table.grid(expand=True, padding=0)
    lanes.add_column(ratio=1)
    lanes.add_column(ratio=1)
    inner = (width - 1) // 2 - 4
    top = max([1.0, *now.static.delays_s, *now.elastic.delays_s])
    static, elastic = (_latency(lane, now, inner, top) for lane in (now.static, now.elastic))
    count = now.counts[-1] if now.counts else 0
    size = Text.assemble(
        ("instances ", "bright_black"),
        (f"{count:.0f} ", "bold"),
        (_over_time(now.counts, now, inner - 12, 1, now.instances_most)[0], "cyan"),
    )
    if now.down:
        size = Text("driver killed, starting again ...", "bold red")
    fixed = Text.assemble(("partitions ", "bright_black"), (str(now.partitions), "bold"), ("  fixed", "bright_black"))
    for text in (size, fixed):
        text.no_wrap = True
    lanes.add_row(_panel("plain Spark", Group(*static, fixed)), _panel("Headrace, elastic", Group(*elastic, size)))
    used = 1 + 3 + (LATENCY_ROWS + 4) + (HEAT_ROWS + 2) + 1
    return Group(
        _bar(now),
        _panel("calls per second", _rates(now, width - 4)),
        lanes,
        _panel("the 4,096 slots of the state: colour = instance, shade = calls", heat_map(now.heat, width - 4)),
        *_marks(now, width, height - used - 1),
        Text(f" monitor: {now.monitor}", "bright_black", no_wrap=True, overflow="ellipsis"),
    )


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=f"[bold]{title}", title_align="left", border_style="bright_black", padding=(0, 1))


def _bar(now: Snapshot) -> Table:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(total=now.seconds, completed=now.second, complete_style="green", finished_style="green")
    line.add_row(Text.assemble((" headrace demo ", "bold"), (now.phase, "green")), bar, f"{now.second:.0f} of {now.seconds:.0f} s ")
    return line


def _rates(now: Snapshot, width: int) -> Text:
    number = f"{now.rates[-1]:>7,.0f}/s" if now.rates else "      -/s"
    return Text.assemble((_over_time(now.rates, now, width - 10, 1, now.rate_most)[0], "cyan"), " ", (number, "bold"), no_wrap=True)


def _latency(lane: LaneView, now: Snapshot, width: int, top_s: float) -> list[RenderableType]:
    """The latency as a figure and as columns. Both lanes have the same scale, whose highest value is ``top_s``."""
    recent = lane.recent_s
    style = "bold red" if recent > 5 else "bold yellow" if recent > 3 else "bold green"
    names = ("latency ", "bright_black"), ("waiting ", "bright_black")
    figures = Text.assemble(names[0], (f"{seconds(recent):<7}", style), names[1], (f"{lane.waiting:,} calls", "bold"), no_wrap=True)
    lines = _over_time(lane.delays_s, now, width, LATENCY_ROWS, top_s)
    return [figures, *(Text(line, style.removeprefix("bold "), no_wrap=True) for line in lines)]


def _over_time(values: tuple[float, ...], now: Snapshot, width: int, rows: int, top: float | None = None) -> list[str]:
    """The values of all seconds so far as columns. The width stands for the whole demo, so equal moments are in equal columns."""
    # When the demo only drains, its last seconds are cut off at the left.
    shown = values[max(0, len(values) - int(now.seconds)) :]
    filled = max(1, min(width, round(len(shown) / now.seconds * width))) if shown else 0
    edges = np.linspace(0, len(shown), filled + 1) if filled else np.zeros(1)
    columns = tuple(max(shown[int(lo) : max(int(lo) + 1, int(np.ceil(hi)))]) for lo, hi in itertools.pairwise(edges))
    return [line.ljust(width) for line in spark_lines(columns, filled, rows, top)]


def heat_map(heat: Heat | None, width: int) -> Text:
    """The slots in lines of columns. Each column has the colour of the instance with most of its calls."""
    if heat is None:
        return Text("\n" * (HEAT_ROWS - 1))
    edges = np.linspace(0, SLOTS, HEAT_ROWS * width + 1).astype(int)
    rows = np.add.reduceat(heat.rows, edges[:-1])
    # The square root shows slots with few calls beside a hot one.
    most = float(np.sqrt(rows.max())) or 1.0
    text = Text(no_wrap=True)
    for at in range(HEAT_ROWS * width):
        lo, hi = edges[at], edges[at + 1]
        owner = int(heat.owners[lo + int(heat.rows[lo:hi].argmax())])
        depth = int(np.ceil(np.sqrt(rows[at]) / most * (len(SHADES) - 1)))
        text.append(SHADES[depth], OWNERS[owner % len(OWNERS)])
        if at % width == width - 1 and at < HEAT_ROWS * width - 1:
            text.append("\n")
    return text


def _marks(now: Snapshot, width: int, lines: int) -> list[Text]:
    """The newest things that happened, the last one below."""
    shown = now.marks[-max(1, lines) :]
    times = [(f" {max(0.0, mark.at_s):3.0f} s  ", "bright_black") for mark in shown]
    texts = [Text.assemble(at, (mark.text, MARK_STYLES.get(mark.kind, ""))) for at, mark in zip(times, shown, strict=True)]
    for text in texts:
        text.no_wrap = True
        text.truncate(width - 1, overflow="ellipsis")
    return texts + [Text("")] * (max(1, lines) - len(texts))


def line(now: Snapshot) -> str:
    """One line for a log."""
    each = []
    for name, lane in (("plain Spark", now.static), ("Headrace", now.elastic)):
        each.append(f"{name}: latency {seconds(lane.recent_s):>6}, {lane.waiting:>6,} wait")
    count = "down" if now.down else many(now.counts[-1] if now.counts else 0, "instance")
    return f"{now.second:4.0f} s  {now.rates[-1] if now.rates else 0:>5,.0f} calls/s   {each[0]}   {each[1]}, {count}"


def spark_lines(values: tuple[float, ...], width: int, rows: int, top: float | None = None) -> list[str]:
    """The newest values as columns of blocks, `rows` lines high. ``top`` is the value of a full column, by default the greatest shown.

    >>> spark_lines((0, 4, 8), width=3, rows=1)
    [' ▄█']
    >>> spark_lines((4, 8), width=3, rows=2)
    ['  █', ' ██']
    >>> spark_lines((4, 8), width=2, rows=1, top=16)
    ['▂▄']
    """
    newest = [0.0] * max(0, width - len(values)) + list(values[-width:] if width > 0 else ())
    highest = top or max(newest, default=0.0) or 1.0
    eighths = [min(rows * 8, round(v / highest * rows * 8)) for v in newest]
    return ["".join(BLOCKS[min(8, max(0, e - 8 * (rows - 1 - r)))] for e in eighths) for r in range(rows)]
