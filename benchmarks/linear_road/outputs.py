"""Writes answers to files: one file per kind, with the benchmark's columns, without a header."""

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
"""The columns of each file. A balance is that at the time of the question, so its ResultTime is its Time."""


class Outputs:
    """Writes answers as they arrive."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._sinks = {name: (folder / f"{name}.csv").open("wb") for name in FILES}

    def write(self, answers: pa.Table, emitted: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """``emitted`` is the time of each answer in seconds of the road's time. It is written in whole seconds, rounded up."""
        whole = answers.append_column("Emit", pa.array(np.ceil(emitted).astype(np.int64)))
        for kind, (name, columns) in enumerate(FILES.items()):
            mine = whole.filter(pc.equal(whole["kind"], kind))
            told = pa.Table.from_arrays([mine[column] for column in columns], names=[str(at) for at in range(len(columns))])
            csv.write_csv(told, self._sinks[name], csv.WriteOptions(include_header=False))
            self._sinks[name].flush()

    def close(self) -> None:
        for sink in self._sinks.values():
            sink.close()
