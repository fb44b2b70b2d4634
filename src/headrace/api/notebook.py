"""What Jupyter shows of streams, queries, decisions and state: small tables. All names and values are shown as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any
from weakref import ref

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.control.governor import Entry
from headrace.control.wording import counted, size_text

ROWS_SHOWN = 20


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
