"""Compares what a query has delivered until a moment with Spark's batch answer, in a thread beside the next fault.

A moment says which parts the query has had, and when. All deliveries up to then are files, so the query may go on meanwhile. State must be
read from the query itself, so it is compared at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.chaos.judge import Expectation, Verdict, judge
from headrace.chaos.life import Life
from headrace.chaos.recorder import Recorded, read_rows


@dataclass(frozen=True)
class Moment:
    """A moment at which all that was fed has been delivered."""

    first: int
    """The first part that this checkpoint has had."""
    fed: int
    """The parts that the sources had, all together."""
    watermark_ms: int
    at_s: float
    """When. What is delivered later does not count."""
    counted: int
    """How many rows the query said that it had lost."""


@dataclass
class Judging:
    """The comparisons of a campaign, one after the other."""

    answer: Life
    """The process with plain Spark."""
    folder: Path
    due: dict[str, str]
    expectation: Expectation
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "chaos-judge"))

    def begin(self, moment: Moment, sinks: Sequence[Recorded]) -> Future[Verdict]:
        """Compare beside what follows."""
        return self._worker.submit(self.results, moment, sinks)

    def results(self, moment: Moment, sinks: Sequence[Recorded]) -> Verdict:
        """Compare the sinks."""
        return self._results(moment, sinks)[0]

    def all(self, moment: Moment, sinks: Sequence[Recorded], states: Callable[[Path], dict[str, list[str]]]) -> Verdict:
        """Compare the sinks, and state where it has their columns. ``states`` writes the state of each operator to a folder."""
        verdict, wanted = self._worker.submit(self._results, moment, sinks).result()
        # In update and complete mode an aggregate's state holds every result; rows that were filtered out later are there too.
        keyed = [each for each in sinks if each.mode != "append" and each.keys]
        if not keyed or self.expectation is Expectation.COUNTED_GAP:
            return verdict
        folder = self.folder / "state"
        for operator, columns in states(folder).items():
            for sink in keyed:
                if not set(sink.columns) <= set(columns):
                    continue
                at = [columns.index(name) for name in sink.columns]
                rows = [tuple(row[each] for each in at) for row in read_rows(folder / f"{operator}.arrow")]
                keys = {repr([row[each] for each in sink.keys]) for row in wanted[sink.name]}
                held = [row for row in rows if repr([row[each] for each in sink.keys]) in keys]
                verdict += judge(held, wanted[sink.name], what=f"state of {operator}", columns=sink.columns, keys=sink.keys)
                break
        return verdict

    def _results(self, moment: Moment, sinks: Sequence[Recorded]) -> tuple[Verdict, dict[str, list[tuple[Any, ...]]]]:
        folder = self.folder / "answer"
        names = [{"name": each.name, "mode": each.mode, "columns": list(each.columns)} for each in sinks]
        asked: dict[str, Any] = {"sinks": names, "due": self.due, "folder": str(folder)}
        self.answer.ask("answer", first=moment.first, fed=moment.fed, watermark_ms=moment.watermark_ms, **asked)
        wanted = {each.name: read_rows(folder / f"{each.name}.arrow") for each in sinks}
        verdict = Verdict()
        for sink in sinks:
            verdict += replace(sink, until_s=moment.at_s).verdict(wanted[sink.name], self.expectation, moment.counted)
        return verdict, wanted

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
