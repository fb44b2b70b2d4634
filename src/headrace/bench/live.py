"""The progress of a benchmark on standard error: a live table on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.bench.model import MeasuredBatch

REFRESH_S = 0.2


class LiveView:
    """Shows the progress. Use it as a context manager, and report stages and batches to it."""

    def __init__(self, title: str, names: Sequence[str], console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._title = title
        self._stages = dict.fromkeys(names, "waiting")
        self._batches = dict.fromkeys(names, 0)
        self._last: dict[str, MeasuredBatch] = {}
        self._now = ""
        self._begin_s = time.monotonic()
        self._shown_s = 0.0
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def stage(self, name: str, stage: str) -> None:
        if self._now and self._stages[self._now].startswith(("turn", "filling", "warming")):
            self._stages[self._now] = "paused"
        self._stages[name] = stage
        self._now = name
        if self._live is None:
            self._console.print(
                f"{self._title}: {time.monotonic() - self._begin_s:6.1f} s  {name}: {stage}", highlight=False, soft_wrap=True
            )
        self.refresh(force=True)

    def batch(self, name: str, batch: MeasuredBatch) -> None:
        self._batches[name] += 1
        self._last[name] = batch
        self.refresh()

    def refresh(self, force: bool = False) -> None:
        if self._live is None or (not force and time.monotonic() - self._shown_s < REFRESH_S):
            return
        self._shown_s = time.monotonic()
        self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table(title=f"{self._title}, {time.monotonic() - self._begin_s:.0f} s", title_justify="left")
        for column in ("", "batches", "last batch", "rows/s"):
            table.add_column(column, justify="right" if column else "left")
        table.add_column("doing")
        for name, stage in self._stages.items():
            last = self._last.get(name)
            shown = (f"{last.duration_ms:,.0f} ms", f"{last.rows * 1000 / max(last.duration_ms, 1):,.0f}") if last else ("", "")
            table.add_row(name, str(self._batches[name]), *shown, stage, style="bold" if name == self._now else "dim")
        return table
