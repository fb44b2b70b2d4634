"""The demo's live view: a picture of the query in a terminal, or plain lines where there is no terminal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.demo.calls import SPEED
from headrace.demo.measure import PHASES, BatchSample
from headrace.demo.page import milliseconds, size

BLOCKS = " ▁▂▃▄▅▆▇█"
SPARK_ROWS = 3
PHASE_STYLES = dict(zip(PHASES, ("cyan", "blue", "magenta", "green", "yellow", "bright_black"), strict=True))


@dataclass(frozen=True)
class Snapshot:
    """Everything that the view shows."""

    phase: str
    """The stage: warming up, running or draining."""
    second: float
    seconds: float
    rates: tuple[float, ...]
    """Rows offered per second, oldest first."""
    rate_in: float
    rate_taken: float
    rate_out: float
    backlog: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    lag_s: float | None
    """How far the watermark is behind the newest calls, in event time."""
    last: BatchSample | None
    counts: tuple[float, ...] = ()
    """The number of instances at the times of the rates."""
    decided: str = ""
    """The last change that the policy made, and why."""


def render(now: Snapshot, width: int, height: int) -> RenderableType:
    """The picture, for a terminal of this size."""
    middle = Table.grid(expand=True, padding=0)
    middle.add_column(ratio=1)
    middle.add_column(ratio=1)
    inner = width // 2 - 4
    middle.add_row(_panel("latency and batch time", _batches(now, inner)), _panel("state", _state(now)))
    fixed = 1 + 1 + (SPARK_ROWS + 4) + 7 + 4
    return Group(
        _title(),
        _bar(now),
        _panel("calls", _calls(now, width - 4)),
        middle,
        _panel("instances", _instances(now, width, height - fixed - 1)),
    )


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=f"[bold]{title}", title_align="left", border_style="bright_black", padding=(0, 1))


def _title() -> Table:
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(Text.assemble((" headrace demo", "bold"), "  heavy customers"), Text(f"1 s = {SPEED} s of calls ", "bright_black"))
    return line


def _bar(now: Snapshot) -> Table:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(width=11, no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(
        Text(f" {now.phase}", "green" if now.phase == "running" else "yellow"),
        ProgressBar(total=now.seconds, completed=now.second, complete_style="green", finished_style="green"),
        f"{now.second:.0f} of {now.seconds:.0f} s ",
    )
    return line


def _calls(now: Snapshot, width: int) -> Group:
    lines = [Text(line, "cyan", no_wrap=True) for line in spark_lines(now.rates, width, SPARK_ROWS)]
    lines += [Text(line, "yellow", no_wrap=True) for line in spark_lines(now.counts, width, 1)]
    pairs = (("in", f"{now.rate_in:,.0f}/s"), ("processed", f"{now.rate_taken:,.0f}/s"), ("results", f"{now.rate_out:,.0f}/s"))
    figures = Text("   ").join([Text.assemble((f"{name} ", "bright_black"), (value, "bold")) for name, value in pairs])
    behind = Text.assemble(
        ("   backlog ", "bright_black"), (f"{now.backlog:,}", "bold" if now.backlog < 3 * max(now.rate_in, 1) else "bold red")
    )
    figures.append_text(behind)
    figures.append_text(Text.assemble(("   instances ", "bright_black"), (f"{now.counts[-1]:.0f}" if now.counts else "-", "bold yellow")))
    figures.no_wrap = True
    return Group(*lines, figures)


def _pairs(rows: list[tuple[str, RenderableType]]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _batches(now: Snapshot, width: int) -> Group:
    last = now.last
    latency = Text("  ").join(
        Text.assemble((f"{name} ", "bright_black"), (milliseconds(ms), "bold"))
        for name, ms in (("50%", now.p50_ms), ("95%", now.p95_ms), ("99%", now.p99_ms))
    )
    parts = last.phases_ms if last else dict.fromkeys(PHASES, 0.0)
    legend = [Text.assemble(("■", PHASE_STYLES[name]), (name, "bright_black"), f" {_ms(parts[name])}") for name in PHASES]
    grid = Table.grid(padding=(0, 2 if width > 40 else 1, 0, 0), pad_edge=False)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_row(*legend[:3])
    grid.add_row(*legend[3:])
    batch = Text.assemble(("batch ", "bright_black"), (milliseconds(last.batch_ms) if last else "-", "bold"), no_wrap=True)
    if last:
        batch.append(f"  no. {last.version}, {last.rows:,} rows", "bright_black")
    latency.no_wrap = True
    return Group(latency, batch, phase_bar(parts, width), grid)


def _ms(value: float) -> str:
    """The time of a phase in at most four characters."""
    return f"{value:.0f}" if value < 1000 else f"{value / 1000:.1f}s" if value < 10_000 else f"{value / 1000:.0f}s"


def phase_bar(parts: dict[str, float], width: int) -> Text:
    """The phases of a batch as parts of one bar."""
    total = sum(parts.values())
    bar = Text(no_wrap=True)
    if total <= 0:
        return Text("─" * width, "bright_black", no_wrap=True)
    reached, drawn = 0.0, 0
    for name in PHASES:
        reached += parts.get(name, 0.0)
        upto = round(reached / total * width)
        bar.append("━" * (upto - drawn), PHASE_STYLES[name])
        drawn = upto
    return bar


def _state(now: Snapshot) -> Table:
    last = now.last
    if last is None:
        return _pairs([(name, "-") for name in ("rows", "bytes", "runs", "watermark", "behind")])
    return _pairs(
        [
            ("rows", Text(f"{last.state_rows:,}", "bold")),
            ("bytes", Text(size(last.state_bytes), "bold")),
            ("runs", Text(str(last.runs), "bold")),
            ("watermark", Text(clock(last.watermark_ms), "bold")),
            ("behind", Text("-" if now.lag_s is None else f"{now.lag_s:,.0f} s of event time")),
        ]
    )


def _instances(now: Snapshot, width: int, lines: int) -> RenderableType:
    if now.last is None:
        return Text("waiting for the first batch", "bright_black")
    change = Text((now.decided or "no change yet")[: width - 4], "yellow" if now.decided else "bright_black", no_wrap=True)
    every = now.last.instances
    shown = every if len(every) <= lines else every[: max(lines - 1, 1)]
    most = max((i.rows for i in every), default=1) or 1
    bar_width = max(8, width - 58)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(no_wrap=True, width=bar_width)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    for each in shown:
        bar = Text("━" * max(1, round(each.rows / most * bar_width)), "blue")
        cpu = f"{each.cpu_s * 1000:,.0f} ms CPU"
        table.add_row(f"{each.instance:>2}", bar, f"{each.rows:,} rows", cpu, f"{each.state_rows:,} in state")
    if len(shown) < len(every):
        table.add_row("", Text(f"and {len(every) - len(shown)} more", "bright_black"))
    return Group(change, table)


def line(now: Snapshot) -> str:
    """One line for a log."""
    last = now.last
    return (
        f"{now.second:4.0f} s  in {now.rate_in:>7,.0f}/s  processed {now.rate_taken:>7,.0f}/s  results {now.rate_out:>6,.0f}/s  "
        f"backlog {now.backlog:>7,}  instances {now.counts[-1] if now.counts else 0:.0f}  "
        f"latency 50/95/99 % {milliseconds(now.p50_ms)}/{milliseconds(now.p95_ms)}/{milliseconds(now.p99_ms)}  "
        f"batch {milliseconds(last.batch_ms if last else None)}  state {last.state_rows if last else 0:,} rows "
        f"{size(last.state_bytes if last else 0)} {last.runs if last else 0} runs  watermark {clock(last.watermark_ms) if last else '-'}"
    )


def clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S") if ms > 0 else "-"


def spark_lines(values: tuple[float, ...], width: int, rows: int) -> list[str]:
    """The newest values as columns of blocks, `rows` lines high.

    >>> spark_lines((0, 4, 8), width=3, rows=1)
    [' ▄█']
    >>> spark_lines((4, 8), width=3, rows=2)
    ['  █', ' ██']
    """
    newest = [0.0] * max(0, width - len(values)) + list(values[-width:])
    top = max(newest) or 1.0
    eighths = [round(v / top * rows * 8) for v in newest]
    return ["".join(BLOCKS[min(8, max(0, e - 8 * (rows - 1 - r)))] for e in eighths) for r in range(rows)]
