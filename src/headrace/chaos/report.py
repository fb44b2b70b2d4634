"""What a campaign prints and writes: each fault as it happens, a table of kinds and outcomes, and both as files."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.chaos.outcome import Outcome, Record

COLOURS = {Outcome.SURVIVED: "green", Outcome.REFUSED: "green", Outcome.BARE: "yellow", Outcome.SKIPPED: "dim"}
LOG_COLUMNS = 140


class Report:
    """Everything goes to the terminal and to ``log.txt``; ``faults.json`` is complete after every fault."""

    def __init__(self, folder: Path, console: Console, about: Mapping[str, Any] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.console, self.about = folder, console, dict(about or {})
        self.records: list[Record] = []
        self._began = time.monotonic()
        self._lock = threading.RLock()
        """A lock, since several seeds may report at once."""
        self._log = open(folder / "log.txt", "w", encoding="utf-8")  # noqa: SIM115

    def say(self, text: str, style: str = "", brief: str = "") -> None:
        """Print and log a text. ``brief`` is printed in its place, cut to the width of the terminal."""
        with self._lock:
            if brief:
                self.console.print(brief, style=style, highlight=False, markup=False, no_wrap=True, overflow="ellipsis", crop=True)
            else:
                self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
            self._log.write(text + "\n")
            self._log.flush()

    def add(self, record: Record) -> None:
        """Tell about a fault, in full."""
        self._add(record, "")

    def add_briefly(self, record: Record) -> None:
        """Tell about a fault: a line of the terminal's width if it went well; the log has all of it."""
        self._add(record, "" if record.outcome.fails else line(record))

    def _add(self, record: Record, brief: str) -> None:
        with self._lock:
            self.records.append(record)
            totals = ", ".join(f"{n} {outcome}" for outcome, n in Counter(r.outcome for r in self.records).items())
            text = f"seed {record.seed} fault {record.number + 1}: {record.kind}"
            text += f" ({record.what})" if record.what else ""
            text += f": {record.outcome}" + (f" [{record.detail}]" if record.detail else "")
            text += f" | version {record.version}, {record.seconds:.1f} s"
            text += f", next right result after {record.recovery_s:.2f} s" if record.recovery_s is not None else ""
            text += f", {record.rebuilt} version(s) rebuilt" if record.rebuilt else ""
            text += f", {record.missing} copies missing" if record.missing else ""
            text += f" | {len(self.records)} so far: {totals}"
            self.say(text, COLOURS.get(record.outcome, "bold red"), brief)
            everything = {**self.about, "seconds": self.seconds, "faults": [asdict(r) for r in self.records]}
            (self.folder / "faults.json").write_text(json.dumps(everything, indent=1, ensure_ascii=False))

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._began, 1)

    @property
    def failures(self) -> list[Record]:
        return [record for record in self.records if record.outcome.fails]

    def finish(self) -> bool:
        """Print the table. Returns True if nothing was lost."""
        self.table(outcomes(self.records))
        seeds = len({record.seed for record in self.records})
        said = f"{len(self.records)} fault(s) over {seeds} seed(s) in {self.seconds:.0f} s: "
        said += f"{len(self.failures)} FAILED" if self.failures else "nothing lost, nothing doubled"
        self.say(f"chaos: {said}; log and JSON in {self.folder}", "bold red" if self.failures else "bold green")
        self.close()
        return not self.failures

    def table(self, table: Table) -> None:
        """Print and log a table."""
        self.console.print(table)
        Console(file=self._log, width=LOG_COLUMNS).print(table)

    def close(self) -> None:
        self._log.close()


def line(record: Record) -> str:
    """A fault in one line, what matters most first.

    >>> line(Record(7, 11, "kill-executor", "executor 2, 0.41 s after 1 file(s)", Outcome.SURVIVED, "", 4.0, 37, recovery_s=2.514))
    '  12 kill-executor               2.5 s right     v37 executor 2, 0.41 s after 1 file(s)'
    """
    after = f"{record.recovery_s:.1f} s" if record.recovery_s is not None else ""
    words = {Outcome.SURVIVED: "right", Outcome.REFUSED: "restarted", Outcome.SKIPPED: "skipped"}
    what = record.detail if record.outcome is Outcome.SKIPPED or record.kind == "end" else record.what
    return f"{record.number + 1:>4} {record.kind:<26}{after:>7} {words.get(record.outcome, record.outcome):<9} v{record.version} {what}"


def outcomes(records: Sequence[Record]) -> Table:
    """How often each kind of fault had each outcome."""
    counts = Counter((record.kind, record.outcome) for record in records)
    seen = [outcome for outcome in Outcome if any(o is outcome for _, o in counts)]
    table = Table("fault", *seen, "all")
    for kind in sorted({record.kind for record in records}):
        row = [counts[kind, outcome] for outcome in seen]
        table.add_row(kind, *(str(n or "") for n in row), str(sum(row)))
    sums = [sum(counts[kind, outcome] for kind, o in list(counts) if o is outcome) for outcome in seen]
    table.add_section()
    table.add_row("all", *map(str, sums), str(len(records)))
    return table


def summary(records: Sequence[Record]) -> Table:
    """By kind of fault: how many, what came out, and the time to the next right result. It fits 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0), title="faults", title_justify="left", title_style="bold")
    table.add_column("kind", no_wrap=True)
    for name in ("faults", "right", "ended", "lost", "doubled", "wrong", "median s", "max s"):
        table.add_column(name, justify="right", no_wrap=True)
    kinds = sorted({record.kind for record in records})
    for kind in kinds:
        table.add_row(kind, *figures([record for record in records if record.kind == kind]))
    if len(kinds) > 1:
        table.add_section()
        table.add_row("all", *figures(records), style="bold")
    return table


def figures(records: Sequence[Record]) -> list[str]:
    """The figures of some faults, in the order of the table. Faults that were not possible do not count."""
    done = [record for record in records if record.outcome is not Outcome.SKIPPED]
    times = [record.recovery_s for record in done if record.recovery_s is not None]
    return [
        str(len(done)),
        str(sum(not record.outcome.fails for record in done)),
        str(sum(record.outcome in (Outcome.REFUSED, Outcome.BARE) for record in done)),
        str(sum(record.lost for record in done)),
        str(sum(record.doubled for record in done)),
        str(sum(record.wrong for record in done)),
        f"{statistics.median(times):.1f}" if times else "",
        f"{max(times):.1f}" if times else "",
    ]


def costs(records: Sequence[Record]) -> str:
    """What the faults cost beside time."""
    rebuilt, short = sum(record.rebuilt for record in records), sum(bool(record.missing) for record in records)
    restarted = sum(record.outcome in (Outcome.REFUSED, Outcome.BARE) for record in records)
    return f"{rebuilt} versions were rebuilt; copies were missing after {short} faults; {restarted} restarts of the query"
