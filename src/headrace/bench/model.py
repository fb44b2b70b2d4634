"""The parts of a benchmark: options, lanes, batches, and the outcome of a lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from headrace.errors import HeadraceError

OURS = "ours"
ROCKSDB = "spark-rocksdb"
MEMORY = "spark-memory"
OFFLINE = "spark-offline"
"""Spark with RocksDB. Between two runs of the query, Spark's offline tool changes the number of partitions."""
BASELINES = (ROCKSDB, MEMORY)

PRELOAD_ROWS_MAX = 1_000_000

Option = bool | int | float | str
Options = Mapping[str, Option]


@dataclass(frozen=True)
class Lane:
    """What is measured: an engine that runs one query with its parameters."""

    name: str
    engine: str
    params: dict[str, Any]
    """Parameters for the benchmark's query module; ``rows`` is the number of rows in a batch."""
    preload_rows: int = 0
    """The number of rows in a batch while the state is preloaded; 0 if it is not preloaded."""
    preload_batches: int = 0
    warmup_batches: int = 3
    changes: bool = False
    """True if ``change`` of the query module changes the running query halfway through its time."""

    changes_each_turn: bool = False
    """True if it is changed once in every turn, instead of once in all. Such a lane has all its turns, however long each one takes."""
    master: str | None = None
    """Spark's master, if it is not all cores of this machine."""
    conf: dict[str, str] = field(default_factory=dict)
    """Spark settings of this lane. ``--conf`` wins over them."""
    group: str = ""
    """Lanes of one group take turns with each other. One group ends before the next begins."""

    @property
    def rows(self) -> int:
        return int(self.params["rows"])


@dataclass(frozen=True)
class MeasuredBatch:
    """One micro-batch, from Spark's progress."""

    id: int
    start_ms: float
    """When it began, since the epoch."""
    duration_ms: float
    rows: int
    phases_ms: dict[str, float] = field(default_factory=dict)

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.duration_ms


@dataclass(frozen=True)
class Verdict:
    """Whether the result of a lane equals the batch answer over the rows that it read."""

    equal: bool
    digest: str
    expected: str
    rows: int
    detail: str = ""


@dataclass
class LaneResult:
    """The outcome of a lane. A lane that failed has a reason, and what was measured before."""

    lane: Lane
    turns: list[list[MeasuredBatch]] = field(default_factory=list)
    verdict: Verdict | None = None
    failed: str | None = None
    unchecked: str | None = None
    """Why there is no verdict, if only the check failed."""
    cpu: list[tuple[float, int]] = field(default_factory=list)
    """For each turn: CPU seconds of the lane's processes, and the rows of the batches that ended in it."""
    paused_ms: float | None = None
    """When its last pause began, since the epoch."""
    changed_ms: float | None = None
    """When the lane was last told to change, since the epoch."""
    headrace: list[dict[str, Any]] = field(default_factory=list)
    """Headrace's own progress of the last batches; empty for Spark's engines."""

    @property
    def batches(self) -> list[MeasuredBatch]:
        return [batch for turn in self.turns for batch in turn]

    @property
    def measured_ms(self) -> float:
        return sum(turn[-1].end_ms - turn[0].start_ms for turn in self.turns if turn)

    @property
    def equal(self) -> bool:
        return self.verdict is not None and self.verdict.equal


Results = Mapping[str, LaneResult]


@dataclass(frozen=True)
class Figure:
    """A measured value and its limit."""

    name: str
    seen: float
    limit: float
    """The value must be below this."""
    unit: str
    asked: str = ""
    """What the limit is, if it is not a plain number."""

    @property
    def holds(self) -> bool:
        return self.seen < self.limit


@dataclass(frozen=True)
class DirectResult:
    """The outcome of a benchmark without lanes."""

    figures: tuple[Figure, ...]
    ours: float
    """A rate per second, as for the baselines: more is better."""
    baselines: dict[str, float]
    equal: bool
    """True if the measured functions also gave the right results."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Additional keys of the RESULT line."""
    tables: tuple[Table, ...] = ()
    """Additional tables, before the table of figures."""


@dataclass(frozen=True)
class Benchmark:
    """A folder of ``benchmarks/``. Only lanes import its ``query.py`` and ``check.py``, so this class needs no Spark."""

    name: str
    line: str
    options: dict[str, Option]
    """The benchmark's own options with their defaults. The type of a default is the type of the option."""
    lanes: Callable[[Options], Sequence[Lane]]
    alternates: bool = True
    """True if lanes take turns. Otherwise one lane ends before the next begins, and ``--turns`` is ignored."""
    turns: Callable[[Options], int] | None = None
    """The number of turns, if the benchmark's own options decide it. Then ``--turns`` is ignored."""
    extra: Callable[[Results, Options], dict[str, Any]] = lambda results, options: {}
    """Additional keys of the RESULT line; they may replace the usual ones."""
    tables: Callable[[Results, Options], list[Table]] = lambda results, options: []
    """Additional tables."""
    measure: Callable[[Options], DirectResult] | None = None
    """Used instead of lanes: plain functions, measured in this process without Spark. Their options include ``seconds``."""
    seconds: float = 30.0
    """The measured time if ``--seconds`` is not given."""


def engines_of(options: Options) -> list[str]:
    """Headrace and the baselines in ``--baselines``, separated by commas; ``none`` for no baseline."""
    named = [name for name in str(options["baselines"]).split(",") if name and name != "none"]
    unknown = [name for name in named if name not in BASELINES]
    if unknown:
        raise HeadraceError(where="--baselines", wanted=f"none, or some of {','.join(BASELINES)}", found=", ".join(unknown))
    return [OURS, *named]


def numbers_of(options: Options, name: str) -> list[int]:
    """The numbers above 0 in an option, separated by commas, in ascending order; ``none`` for no number."""
    text = str(options[name])
    parts = [] if text == "none" else [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise HeadraceError(where=f"--{name}", wanted="numbers above 0, separated by commas", found=repr(text))
    return sorted({int(part) for part in parts})


def preload(keys: int, rows: int) -> dict[str, int]:
    """The number of batches that touch every key once, so that the state is full when measuring begins."""
    size = max(rows, min(keys, PRELOAD_ROWS_MAX))
    return {"preload_rows": size, "preload_batches": -(-keys // size)}


def parse_options(benchmark: Benchmark, args: Sequence[str]) -> dict[str, Option]:
    """Parse the benchmark's options from ``--name value``, ``--name=value`` and, for flags, ``--name``."""
    where = f"bench {benchmark.name}"
    chosen = dict(benchmark.options)
    rest = list(args)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in chosen:
            known = ", ".join("--" + option.replace("_", "-") for option in benchmark.options)
            raise HeadraceError(
                where=where, wanted=f"an option of this benchmark ({known}) or of all (see headrace bench --help)", found=word
            )
        default = benchmark.options[name]
        if isinstance(default, bool):
            chosen[name] = value.lower() not in ("false", "no", "0")
            continue
        if not value:
            if not rest:
                raise HeadraceError(where=where, wanted=f"a value for {word}", found="none")
            value = rest.pop(0)
        chosen[name] = _value(where, word, value, default)
    return chosen


def _value(where: str, word: str, text: str, default: Option) -> Option:
    if isinstance(default, str):
        return text
    try:
        parsed = type(default)(text.replace("_", ""))
    except ValueError:
        raise HeadraceError(where=where, wanted=f"a number for {word}", found=repr(text)) from None
    # An option that is 0 by default can also be given as 0.
    if parsed < 0 or (parsed == 0 and default != 0):
        raise HeadraceError(where=where, wanted=f"a number {'above' if default else 'from'} 0 for {word}", found=text)
    return parsed
