"""Which files a program's batches were made of, and the same batches for a run that nobody disturbs.

Spark notes new files in its source's log first and the batch in its log of offsets second. A kill in between makes the next life take
the files noted and the next ones in one batch: no row is lost or read twice, but versions, and what is late, are those of other batches.
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
    """A log of Spark's: the lines of each entry, without the first, which is the format's version."""
    for path in log.iterdir():
        if not path.name.startswith("."):
            yield int(path.name.split(".")[0]), path.read_text().splitlines()[1:]


def batches(program: Program) -> list[list[Path]]:
    """The files of each version, in the order of versions."""
    files: dict[int, set[Path]] = {}
    for _, lines in _entries(program.checkpoint / "sources" / "0"):
        for entry in map(json.loads, lines):
            files.setdefault(entry["batchId"], set()).add(Path(unquote(urlparse(entry["path"]).path)))
    ends = [json.loads(lines[1])["logOffset"] for _, lines in sorted(_entries(program.checkpoint / "offsets"))]
    begins = [-1, *ends[:-1]]
    return [sorted(set.union(*(files[at] for at in range(begin + 1, end + 1)))) for begin, end in zip(begins, ends, strict=True)]


def as_read_by(program: Program, folder: Path) -> Path:
    """A source that gives an undisturbed run the program's batches, a file each: the program's own where that is so already."""
    found = batches(program)
    if all(len(files) == 1 for files in found):
        return program.source
    folder.mkdir(parents=True)
    for version, files in enumerate(found):
        path = folder / f"{version:05d}.parquet"
        pq.write_table(pa.concat_tables([pq.read_table(each) for each in files]), path)
        os.utime(path, (BEGIN_S + version, BEGIN_S + version))
    return folder
