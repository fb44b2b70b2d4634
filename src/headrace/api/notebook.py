"""What Jupyter shows of streams, queries, decisions and state: small tables. All names and values are shown as text."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any, Protocol
from weakref import ref

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.control.governor import Entry
from headrace.control.wording import counted, size_text
from headrace.errors import QueryError
from headrace.logs import logger, suppressed

ROWS_SHOWN = 20
BATCHES_SHOWN = 60
"""Batches in the small lines of a query that is watched."""
WIDE, TALL = 240, 36
"""The size of such a line, in pixels."""
_log = logger(__name__)


class Watched(Protocol):
    """What is shown of a query."""

    @property
    def isActive(self) -> bool: ...

    @property
    def recentProgress(self) -> Sequence[dict[str, Any]]: ...

    def _repr_html_(self) -> str: ...


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """An HTML table.

    >>> table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{_cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _cells(kind: str, values: Sequence[Any]) -> str:
    return "".join(f"<{kind}>{escape(str(value))}</{kind}>" for value in values)


def of_stream(what: str, schema: StructType) -> str:
    """A stream: its columns."""
    return table(["column", "type"], [(each.name, each.dataType.simpleString()) for each in schema], what)


def of_decisions(entries: Sequence[Entry]) -> str:
    """A policy's decisions, the last first."""
    rows = [
        (
            datetime.fromtimestamp(entry.at_s).strftime("%H:%M:%S"),
            entry.operator or "all",
            entry.what,
            f"{entry.instances_before} → {entry.instances}",
            entry.outcome,
            entry.times,
            entry.why,
        )
        for entry in reversed(entries)
    ]
    return table(["when", "operator", "decision", "instances", "outcome", "times", "why"], rows)


def of_query(name: str, is_active: bool, failed: str, progress: dict[str, Any] | None) -> str:
    """A query: what its last batch did, and its instances."""
    state = "running" if is_active else f"failed: {failed}" if failed else "ended"
    if progress is None:
        return table(["query", "state"], [(name, state)])
    ours = progress["headrace"]
    batch = f"batch {ours['version']}: {counted(ours['rows'], 'row')} in {ours['batchMs']:,.0f} ms, {counted(ours['rowsOut'], 'result')}"
    rows = [
        (each["operator"], each["instance"], f"{each['rows']:,}", f"{each['wallSeconds'] * 1000:,.0f} ms", size_text(each["stateBytes"]))
        for each in ours["instances"]
    ]
    return table(["operator", "instance", "rows", "worked", "state"], rows, f"{name}, {state}; {batch}")


def spark_line(what: str, values: Sequence[float]) -> str:
    """A small line of the last values, from 0 to their greatest, which is named.

    >>> spark_line("rows/s", [0, 20, 10])[-90:]
    '<polyline points="0.0,35.0 120.0,1.0 240.0,18.0" fill="none" stroke="currentColor"/></svg>'
    """
    most = max([*values, 0.0])
    if len(values) < 2 or most <= 0:
        return ""
    step = WIDE / (len(values) - 1)
    points = " ".join(f"{at * step:.1f},{TALL - 1 - (TALL - 2) * value / most:.1f}" for at, value in enumerate(values))
    title = f"{escape(what)}: now {values[-1]:,.0f}, at most {most:,.0f} in the last {counted(len(values), 'batch', 'batches')}"
    line = f'<polyline points="{points}" fill="none" stroke="currentColor"/>'
    return f'<div><small>{title}</small></div><svg width="{WIDE}" height="{TALL}" role="img" aria-label="{title}">{line}</svg>'


def of_watched(query: Watched) -> str:
    """A query, and its last batches as lines."""
    ours = [each["headrace"] for each in query.recentProgress][-BATCHES_SHOWN:]
    rates = [each["rows"] / max(each["batchMs"] / 1000, 1e-6) for each in ours]
    lines = spark_line("rows/s while a batch runs", rates) + spark_line("batch, ms", [each["batchMs"] for each in ours])
    return query._repr_html_() + lines


def watch(query: Watched, seconds: float, where: str) -> None:
    """Show a query in the output of a notebook's cell, and again every so many seconds, in a thread, until it has ended."""
    try:
        from IPython.display import HTML, display
    except ImportError:
        wanted, hint = "a notebook, or IPython", "query.ui shows the query in a browser, headrace top in a terminal"
        raise QueryError(where=where, wanted=wanted, found="no package IPython", hint=hint) from None
    shown = display(HTML(of_watched(query)), display_id=True)
    if shown is None:
        raise QueryError(where=where, wanted="a notebook, or IPython", found="a program without either", hint="query.ui opens in a browser")

    def follow() -> None:
        is_active, pause = True, threading.Event()
        with suppressed(_log, "a notebook does not show the query any more", Exception):
            while is_active:
                pause.wait(seconds)
                # Asked before the page is made: the last page is made after the end.
                is_active = query.isActive
                shown.update(HTML(of_watched(query)))

    threading.Thread(target=follow, name="headrace-notebook", daemon=True).start()


def of_rows(frame: DataFrame) -> str:
    """The first rows of a batch DataFrame."""
    rows = frame.limit(ROWS_SHOWN + 1).collect()
    caption = f"the first {ROWS_SHOWN} rows" if len(rows) > ROWS_SHOWN else ""
    return table(frame.columns, rows[:ROWS_SHOWN], caption)


def show_rows(frame: DataFrame) -> None:
    """Let notebooks show the first rows of a DataFrame of Spark's. They look for the method on the object."""
    # A DataFrame that refers to itself would live, with its plan in the JVM, until Python looks for cycles.
    weak = ref(frame)

    def page() -> str:
        found = weak()
        return "" if found is None else of_rows(found)

    vars(frame)["_repr_html_"] = page


class Decisions(tuple[Entry, ...]):
    """The decisions of a query's policy, oldest first. In a notebook, a table."""

    def _repr_html_(self) -> str:
        return of_decisions(self)
