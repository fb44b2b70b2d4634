"""Decisions of a policy for the terminal, 80 columns wide or more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from headrace.control.governor import Entry, Outcome
from headrace.control.wording import counted

STYLES = {Outcome.PERFORMED: "green", Outcome.MANUAL: "green", Outcome.FAILED: "red"}


def decision_table(entries: Sequence[Entry]) -> Table:
    """Each decision with its time, and the reason below it."""
    table = Table.grid(padding=(0, 2))
    for entry in entries:
        when = datetime.fromtimestamp(entry.at_s).strftime("%H:%M:%S")
        table.add_row(Text(when, "dim"), Text.assemble((title(entry), "bold"), "  ", (outcome(entry), STYLES.get(entry.outcome, "yellow"))))
        table.add_row("", Text(entry.why))
    return table


def title(entry: Entry) -> str:
    """Operator, decision and instances.

    >>> from headrace.ids import OperatorId
    >>> title(Entry(0, OperatorId("sum"), "scale out", Outcome.PERFORMED, "busy", 2, 4))
    'sum: scale out 2 → 4'
    """
    count = "" if entry.instances == entry.instances_before else f" {entry.instances_before} → {entry.instances}"
    return f"{entry.operator or 'all operators'}: {entry.what}{count}"


def outcome(entry: Entry) -> str:
    """What became of the decision, and how often it was made."""
    return str(entry.outcome) if entry.times == 1 else f"{entry.outcome}, {entry.times:,} times"


def last_line(entries: Sequence[Entry]) -> Text:
    """One line about decisions that changed nothing."""
    quiet = [entry for entry in entries if entry.outcome is Outcome.STEADY]
    times, last = sum(entry.times for entry in quiet), max(quiet, key=lambda entry: entry.last_s)
    return Text(f"{counted(times, 'time')} nothing was to be done (--all shows when); at last: {last.why}")
