"""Files that come by the clock, or as soon as the ones before were taken. They are hard links to blocks, which costs nothing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.overload.query import ROUNDS
from benchmarks.top_k.offering import Taken

POLL_S = 0.01
OFFERS_LEAST, LONGER = 7, 6
"""A closed loop has at least so many batches, unless that takes this many times as long as asked for."""


@dataclass(frozen=True)
class Block:
    """The rows of some files: keys, and by branch the digest of each row as plain Python computes it."""

    path: Path
    keys: npt.NDArray[np.int64]
    digests: dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Came:
    """A file that was offered."""

    name: str
    at_s: float
    block: int


def blocks(folder: Path, count: int, rows: int, keys: int, seed: int = 1) -> list[Block]:
    """Blocks of random rows."""
    folder.mkdir(parents=True)
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        k, v = random.integers(0, keys, rows), random.integers(0, 1 << 40, rows)
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"k": k, "v": v}), path)
        found.append(Block(path, k, _digests(k, v)))
    return found


def _digests(k: npt.NDArray[np.int64], v: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    found: dict[str, list[int]] = {branch: [] for branch in ROUNDS}
    for key, value in zip(k.tolist(), v.tolist(), strict=True):
        text = f"{key}-{value}"
        for done in range(1, max(ROUNDS.values()) + 1):
            text = hashlib.sha256(text.encode()).hexdigest()
            for branch, rounds in ROUNDS.items():
                if rounds == done:
                    found[branch].append(int(text[:4], 16))
    return {branch: np.array(each) for branch, each in found.items()}


@dataclass
class Feed:
    """The files of one lane."""

    folder: Path
    blocks: list[Block]
    came: list[Came] = field(default_factory=list)
    late_s: float = 0.0
    """The greatest delay of a file, caused by the measuring machine."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    def add(self) -> None:
        block = len(self.came) % len(self.blocks)
        hidden, name = self.folder / f".{len(self.came)}", f"{len(self.came)}.parquet"
        os.link(self.blocks[block].path, hidden)
        self.came.append(Came(name, time.time(), block))
        hidden.rename(self.folder / name)

    def open(self, seconds: float, files_per_s: float, alive: Callable[[], bool]) -> None:
        """Offer files by the clock."""
        began_s = time.time()
        for at in range(round(seconds * files_per_s)):
            due_s = began_s + at / files_per_s
            time.sleep(max(0.0, due_s - time.time()))
            if not alive():
                return
            self.add()
            self.late_s = max(self.late_s, time.time() - due_s)

    def closed(self, seconds: float, batch_s: float, rate_files: float, taken: Taken, alive: Callable[[], bool]) -> None:
        """Offer the files of a batch as soon as those before were taken. Their number is chosen so that a batch takes `batch_s`.

        On a busy machine this takes longer than `seconds`, until there were a few batches.
        """
        first_s, count, began_s, offers = time.time(), max(1, round(rate_files * batch_s)), time.time(), 0
        while alive() and (time.time() < first_s + seconds or (offers < OFFERS_LEAST and time.time() < first_s + LONGER * seconds)):
            if taken.count() >= len(self.came):
                offers += 1
                took_s = time.time() - began_s
                if len(self.came):
                    count = max(1, round(count * min(1.5, max(0.5, batch_s / max(took_s, 0.05)))))
                began_s = time.time()
                for _ in range(count):
                    self.add()
            time.sleep(POLL_S)
