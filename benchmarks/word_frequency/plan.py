"""The plan of a run: its options, parsed and checked, and its cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.word_frequency.cell import Cell
from benchmarks.word_frequency.windows import Window, windows_of
from benchmarks.word_frequency.words import Pool, Wanted, generated, of_text
from headrace.bench.model import OURS, Options, engines_of
from headrace.errors import HeadraceError

PARTS = ("latency", "interval", "throughput")
INTERVAL_RATE = 1000
"""Fragments per second in the comparison of intervals, as in SEEP, section 6.3."""
SLIDING_ROWS = 4_000
"""The most fragments in a batch with sliding windows: Spark makes sixty rows of each word."""
WARM_ROWS = 2_000


@dataclass(frozen=True)
class Plan:
    """The parsed options."""

    parts: list[str]
    rates: list[float]
    words: list[int]
    window: Window
    intervals_s: list[float]
    windows: list[Window]
    rows: int
    seconds: float
    settle_s: float
    warm_s: float
    engines: list[str]


def read(options: Options) -> Plan:
    """Parse the options, or raise an error that names the wrong one."""
    parts = [part.strip() for part in str(options["parts"]).split(",")]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise HeadraceError(where="bench word-frequency --parts", wanted=f"some of {','.join(PARTS)}", found=", ".join(unknown))
    skew = float(options["skew"])
    if skew > 1:
        raise HeadraceError(where="bench word-frequency --skew", wanted="a share from 0 to 1", found=str(skew))
    seconds = float(options["seconds"])
    (window,) = windows_of("--window", str(options["window"]))[:1]
    if window.slides:
        hint = "a window that slides gives its counts when it closes, long after its fragments came; --windows measures those"
        raise HeadraceError(where="bench word-frequency --window", wanted="running or 30s", found=window.name, hint=hint)
    return Plan(
        parts,
        numbers("--rates", options["rates"], 1),
        [int(words) for words in numbers("--words", options["words"], 1)],
        window,
        numbers("--intervals", options["intervals"], 0),
        windows_of("--windows", str(options["windows"])),
        int(options["rows"]),
        seconds,
        min(2.0, seconds / 2),
        float(options["warm"]),
        engines_of(options),
    )


def numbers(option: str, text: object, least: float) -> list[float]:
    """Numbers that are separated by commas.

    >>> numbers("--rates", "100, 1000", 1)
    [100.0, 1000.0]
    """
    try:
        found = [float(part) for part in str(text).split(",")]
    except ValueError:
        found = []
    if not found or min(found) < least:
        wanted = f"numbers from {least:g} on, separated by commas"
        raise HeadraceError(where=f"bench word-frequency {option}", wanted=wanted, found=repr(text))
    return found


def pools(options: Options, plan: Plan, folder: Path) -> dict[int, tuple[str, Pool]]:
    """Pools by the size of their dictionary, with the file that the source reads. A text has a fixed dictionary."""
    if str(options["text"]) != "none":
        made = [of_text(Path(str(options["text"])))]
    else:
        skew, hot, seed = float(options["skew"]), int(options["hot"]), int(options["seed"])
        made = [generated(Wanted(words, seed, skew, hot)) for words in plan.words]
    return {pool.words: (str(pool.write(folder / f"words-{pool.words}.arrow")), pool) for pool in made}


@dataclass(frozen=True)
class Cells:
    """The cells of a plan, part by part."""

    plan: Plan
    pools: dict[int, tuple[str, Pool]]

    def warm(self, engine: str) -> Cell:
        """A warm-up cell, which is not measured: a JVM compiles its code for a minute or more."""
        return self._cell(engine, self._middle, self.plan.window, rows=min(WARM_ROWS, self.plan.rows), seconds=self.plan.warm_s)

    def latency(self) -> Iterator[Cell]:
        """SEEP's Fig. 14. Engines take turns, so that a disturbance of the machine affects all."""
        for words in self.pools:
            for rate in self.plan.rates:
                for engine in self.plan.engines:
                    yield self._cell(engine, words, self.plan.window, rate=rate)
                    if engine == OURS:
                        yield self._cell(engine, words, self.plan.window, rate=rate, sync=False)

    def interval(self) -> Iterator[Cell]:
        """SEEP's Fig. 15, and the share of the state that a checkpoint holds (Floe's Fig. 7), with the largest dictionary."""
        for interval_s in self.plan.intervals_s:
            seconds = max(self.plan.seconds, 3 * interval_s)
            yield self._cell(
                OURS, max(self.pools), self.plan.window, rate=INTERVAL_RATE, interval_s=interval_s, seconds=seconds, recovers=True
            )

    def throughput(self) -> Iterator[Cell]:
        for window in self.plan.windows:
            rows = min(SLIDING_ROWS, self.plan.rows) if window.slides else self.plan.rows
            for engine in self.plan.engines:
                yield self._cell(engine, self._middle, window, rows=rows)

    @property
    def _middle(self) -> int:
        sizes = sorted(self.pools)
        return sizes[len(sizes) // 2]

    def _cell(
        self,
        engine: str,
        words: int,
        window: Window,
        rate: float = 0.0,
        rows: int = 0,
        seconds: float = 0.0,
        interval_s: float = 0.0,
        sync: bool = True,
        recovers: bool = False,
    ) -> Cell:
        path, pool = self.pools[words]
        plan = self.plan
        return Cell(
            engine, window, words, path, len(pool.head), rate, rows, seconds or plan.seconds, plan.settle_s, interval_s, sync, recovers
        )
