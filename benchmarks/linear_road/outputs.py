"""Answers as files: one for each kind, in the benchmark's columns, without a header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

FILES = {
    "toll": ("kind", "a", "Time", "Emit", "b", "c"),
    "accident": ("kind", "Time", "Emit", "a", "b"),
    "balance": ("kind", "Time", "Emit", "a", "Time", "c"),
    "daily": ("kind", "Time", "Emit", "a", "c"),
    "travel": ("kind", "a", "Time", "Emit", "b", "c"),
}
"""What stands in each file. A balance is that of the moment of the question, so its ResultTime is its Time."""


class Outputs:
    """Writes what comes, as it comes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._sinks = {name: (folder / f"{name}.csv").open("wb") for name in FILES}

    def write(self, answers: pa.Table, emitted: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """``emitted``: the moment of each answer, in seconds of the road's time; told in whole seconds, rounded up."""
        whole = answers.append_column("Emit", pa.array(np.ceil(emitted).astype(np.int64)))
        for kind, (name, columns) in enumerate(FILES.items()):
            mine = whole.filter(pc.equal(whole["kind"], kind))
            told = pa.Table.from_arrays([mine[column] for column in columns], names=[str(at) for at in range(len(columns))])
            csv.write_csv(told, self._sinks[name], csv.WriteOptions(include_header=False))
            self._sinks[name].flush()

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
