"""The files of each batch of a program, and the same batches for an undisturbed run.

Spark writes new files to the log of the source first, and the batch to the offset log second. After a kill in between, the restarted
query reads these files and the next ones in one batch. No row is lost or read twice, but batches, and so late rows, are different.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from tests.crash.harness import BEGIN_S, Program


def _entries(log: Path) -> Iterator[tuple[int, list[str]]]:
    """A log of Spark's: the lines of each entry without the first, which is the version of the format."""
    for path in log.iterdir():
        if not path.name.startswith("."):
            yield int(path.name.split(".")[0]), path.read_text().splitlines()[1:]


def batches(checkpoint: Path) -> list[list[Path]]:
    """The files of each version, in the order of versions."""
    files: dict[int, set[Path]] = {}
    for _, lines in _entries(checkpoint / "sources" / "0"):
        for entry in map(json.loads, lines):
            files.setdefault(entry["batchId"], set()).add(Path(unquote(urlparse(entry["path"]).path)))
    ends = [json.loads(lines[1])["logOffset"] for _, lines in sorted(_entries(checkpoint / "offsets"))]
    begins = [-1, *ends[:-1]]
    return [sorted(set.union(*(files[at] for at in range(begin + 1, end + 1)))) for begin, end in zip(begins, ends, strict=True)]


def as_read_by(program: Program, folder: Path) -> Path:
    """A source with one file for each batch of the program, for an undisturbed run. It is the program's own source if that fits."""
    found = batches(program.checkpoint)
    if all(len(files) == 1 for files in found):
        return program.source
    folder.mkdir(parents=True)
    for version, files in enumerate(found):
        path = folder / f"{version:05d}.parquet"
        pq.write_table(pa.concat_tables([pq.read_table(each) for each in files]), path)
        os.utime(path, (BEGIN_S + version, BEGIN_S + version))
    return folder
