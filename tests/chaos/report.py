"""What the campaign prints and writes: each fault as it happens, a table of kinds and outcomes, and both as files."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.outcome import Outcome, Record

COLOURS = {Outcome.SURVIVED: "green", Outcome.REFUSED: "green", Outcome.BARE: "yellow", Outcome.SKIPPED: "dim"}


class Report:
    """Everything goes to the terminal and to ``log.txt``; ``faults.json`` is complete after every fault."""

    def __init__(self, folder: Path, console: Console) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.console = folder, console
        self.records: list[Record] = []
        self._began = time.monotonic()
        self._lock = threading.RLock()
        """A lock, since several seeds may report at once."""
        self._log = open(folder / "log.txt", "w", encoding="utf-8")  # noqa: SIM115

    def say(self, text: str, style: str = "") -> None:
        with self._lock:
            self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
            self._log.write(text + "\n")
            self._log.flush()

    def add(self, record: Record) -> None:
        with self._lock:
            self._add(record)

    def _add(self, record: Record) -> None:
        self.records.append(record)
        totals = ", ".join(f"{n} {outcome}" for outcome, n in Counter(r.outcome for r in self.records).items())
        text = f"seed {record.seed} fault {record.number + 1}: {record.kind}"
        text += f" ({record.what})" if record.what else ""
        text += f": {record.outcome}" + (f" [{record.detail}]" if record.detail else "")
        text += f" | version {record.version}, {record.seconds:.1f} s | {len(self.records)} so far: {totals}"
        self.say(text, COLOURS.get(record.outcome, "bold red"))
        everything = {"seconds": round(time.monotonic() - self._began, 1), "faults": [asdict(r) for r in self.records]}
        (self.folder / "faults.json").write_text(json.dumps(everything, indent=1, ensure_ascii=False))

    @property
    def failures(self) -> list[Record]:
        return [record for record in self.records if record.outcome.fails]

    def finish(self) -> bool:
        """Print the table. Returns True if nothing was lost."""
        counts = Counter((record.kind, record.outcome) for record in self.records)
        seen = [outcome for outcome in Outcome if any(o is outcome for _, o in counts)]
        table = Table("fault", *seen, "all")
        for kind in sorted({record.kind for record in self.records}):
            row = [counts[kind, outcome] for outcome in seen]
            table.add_row(kind, *(str(n or "") for n in row), str(sum(row)))
        sums = [sum(counts[kind, outcome] for kind, o in list(counts) if o is outcome) for outcome in seen]
        table.add_section()
        table.add_row("all", *map(str, sums), str(len(self.records)))
        self.console.print(table)
        Console(file=self._log, width=140).print(table)
        seeds = len({record.seed for record in self.records})
        took = time.monotonic() - self._began
        said = f"{len(self.records)} fault(s) over {seeds} seed(s) in {took:.0f} s: "
        said += f"{len(self.failures)} FAILED" if self.failures else "nothing lost, nothing doubled"
        self.say(f"chaos: {said}; log and JSON in {self.folder}", "bold red" if self.failures else "bold green")
        self._log.close()
        return not self.failures
