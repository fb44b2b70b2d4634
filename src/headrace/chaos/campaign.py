"""The campaign: a user's query gets its faults one after the other, and is compared with Spark's batch answer after each."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.chaos.faults import Done, NotPossible, perform
from headrace.chaos.judge import Expectation, Verdict, judge
from headrace.chaos.life import Died, Life, Refused
from headrace.chaos.mutations import MUTATIONS
from headrace.chaos.outcome import Outcome, Record
from headrace.chaos.plan import FILES_FIRST, Fault, batches_of
from headrace.chaos.recorder import delivery_times, read_rows
from headrace.chaos.rig import Rig, Setup
from headrace.errors import HeadraceError
from headrace.runtime.checkpoint import Checkpoint
from headrace.spark.gateway import spark_home

STATE_EVERY = 10
"""State is compared after so many faults, and at the end: reading it takes a checkpoint, after which little is left to lose."""
SQL = "spark.sql."


@dataclass(frozen=True)
class Rules:
    """How a campaign judges."""

    expectation: Expectation = Expectation.EQUAL
    each: bool = True
    """True to compare after every fault; False to compare at the end only."""
    rows_max: int = 1000
    """The most rows of a source in a batch."""
    order_by: str = ""
    """The column by which the rows of the sources are put in order."""
    mutate: str = ""
    """A corruption of the results, made on purpose after the last fault: the campaign must find it."""


@dataclass
class Campaign:
    """One seed's faults against one query."""

    seed: int
    faults: tuple[Fault, ...]
    setup: Setup
    rules: Rules
    work: Path
    tell: Callable[[Record], None]
    show: Callable[[str], None] = lambda text: None
    stopping: threading.Event = field(default_factory=threading.Event)
    records: list[Record] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """Rows a batch, by source."""

    def __post_init__(self) -> None:
        self.rig = Rig(self.work, self.setup)
        self.began_s = time.time()
        self.answer: Life | None = None
        self.files = batches_of(self.faults)

    def run(self) -> list[Record]:
        """Run all faults, or those until ``stopping`` is set. All processes are ended at the end."""
        try:
            self._set_up()
            for fault in self.faults:
                if self.stopping.is_set():
                    break
                self._add(self._fault(fault))
                if self.records[-1].outcome.fails:
                    self._begin_anew()
            if self.records and not self.records[-1].outcome.fails:
                self._add(self._last())
        finally:
            self.rig.kill()
            if self.answer is not None:
                self.answer.kill()
        return self.records

    def _add(self, record: Record) -> None:
        self.records.append(record)
        self.tell(record)

    def _set_up(self) -> None:
        """Cut the input, start the query, and compare it before any fault."""
        self.work.mkdir(parents=True, exist_ok=True)
        self.show("plain Spark cuts the input into batches")
        settings = {name: value for name, value in self.setup.settings.items() if name.startswith(SQL)}
        request = {"settings": settings, "target": self.setup.target, "work": str(self.work)}
        command = [sys.executable, "-m", "headrace.chaos.answer", json.dumps(request)]
        environment = {**os.environ, "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")}
        self.answer = Life(command, self.work / "answer.log", environment)
        try:
            self.answer.answer()
            asked = {"batches": self.files, "rows_max": self.rules.rows_max, "order_by": self.rules.order_by}
            self.rows = self.answer.ask("prepare", **asked)["rows"]
            self.show("the query starts")
            self.rig.feed(FILES_FIRST)
            self.rig.settle()
            verdict = self._compare(state=True)
        except Refused as refused:
            hint = f"see {self.work}/program.log and answer.log"
            raise HeadraceError(f"the query does not run: {refused.kind}", where="chaos", found=refused.text, hint=hint) from None
        if not verdict.right:
            late = sum(each["late"] for each in self.rig.batches)
            hint = "rows that come late count in Spark's batch answer: see docs/chaos.md" if late else "; ".join(verdict.examples)
            found = f"{verdict}{f', and {late} rows that came late' if late else ''}"
            raise HeadraceError(where="chaos, before any fault", wanted="results equal to Spark's batch answer", found=found, hint=hint)

    def _begin_anew(self) -> None:
        """After a failure the remaining faults get a new checkpoint; what failed is kept."""
        self.show("a new checkpoint")
        self.rig.begin_anew()
        self.rig.feed(FILES_FIRST)
        self.rig.settle()

    def _fault(self, fault: Fault) -> Record:
        began_s, done = time.time(), Done()
        self.show(f"fault {fault.number + 1} of {len(self.faults)}: {fault.kind}")
        known = len(self.rig.batches)
        outcome, detail, verdict = Outcome.SURVIVED, "", Verdict()
        try:
            perform(self.rig, fault, done)
            if done.refused:
                outcome, detail = Outcome.REFUSED, done.refused
            if self.rules.each:
                verdict = self._compare(state=fault.number % STATE_EVERY == STATE_EVERY - 1)
            if not verdict.right:
                outcome, detail = Outcome.WRONG, "; ".join([str(verdict), *verdict.examples, *filter(None, [detail])])
        except NotPossible as why:
            outcome, detail = Outcome.SKIPPED, str(why)
        except (Refused, Died) as failed:
            outcome, detail = Outcome.STUCK, failed.brief() if isinstance(failed, Refused) else str(failed)
        except Exception as failed:
            outcome, detail = Outcome.BROKEN, f"{type(failed).__name__}: {failed}"
        what = ", ".join(filter(None, done.what))
        return self._record(fault.number, fault.kind, what, outcome, detail, began_s, verdict, done.struck_s, known)

    def _record(
        self,
        number: int,
        kind: str,
        what: str,
        outcome: Outcome,
        detail: str,
        began_s: float,
        verdict: Verdict,
        struck_s: float = 0.0,
        known: int | None = None,
    ) -> Record:
        batches = self.rig.batches[known:] if known is not None else []
        version = self.rig.batches[-1]["version"] if self.rig.batches else -1
        return Record(
            self.seed,
            number,
            kind,
            what,
            outcome,
            detail,
            round(time.time() - began_s, 2),
            version,
            at_s=round((struck_s or began_s) - self.began_s, 2),
            recovery_s=self._recovery_s(struck_s, version) if struck_s and not outcome.fails else None,
            lost=verdict.lost,
            doubled=verdict.doubled,
            wrong=verdict.wrong,
            rebuilt=sum(each["rebuilt"] for each in batches),
            missing=batches[-1]["missing"] if batches else 0,
            interruptions=sum(each["interruptions"] for each in batches),
        )

    def _recovery_s(self, struck_s: float, version: int) -> float:
        """From the fault until the newest version was delivered to all sinks; its file came right after the fault."""
        times = [at_s for at_s, each, _ in delivery_times(self.rig.results) if each == version and at_s > struck_s]
        return round(max(times, default=time.time()) - struck_s, 3)

    def _last(self) -> Record:
        """Compare everything, state too, when all faults are over."""
        began_s = time.time()
        self.show("comparing results and state at the end")
        try:
            self.rig.settle()
            if self.rules.mutate:
                MUTATIONS[self.rules.mutate](self.rig.results)
            verdict = self._compare(state=True)
        except (Refused, Died) as failed:
            detail = failed.brief() if isinstance(failed, Refused) else str(failed)
            return self._record(len(self.faults), "end", "", Outcome.STUCK, detail, began_s, Verdict())
        outcome = Outcome.SURVIVED if verdict.right else Outcome.WRONG
        what = f"mutation {self.rules.mutate}" if self.rules.mutate else "results and state"
        return self._record(len(self.faults), "end", what, outcome, "; ".join([str(verdict), *verdict.examples]), began_s, verdict)

    def _compare(self, state: bool = False) -> Verdict:
        """Compare the sinks with Spark's batch answer over what was fed, and state with it where it has the same columns."""
        assert self.answer is not None
        folder = self.work / "answer"
        watermark_ms = self.rig.batches[-1]["watermark_ms"]
        asked: dict[str, Any] = {"sinks": self.rig.sinks, "due": self.setup.due, "folder": str(folder)}
        self.answer.ask("answer", fed=self.rig.fed, watermark_ms=watermark_ms, **asked)
        wanted = {each["name"]: read_rows(folder / f"{each['name']}.arrow") for each in self.rig.sinks}
        verdict, counted = Verdict(), self._counted()
        for sink in self.rig.recorded():
            verdict += sink.verdict(wanted[sink.name], self.rules.expectation, counted)
        return verdict + self._compare_state(wanted) if state else verdict

    def _counted(self) -> int:
        """How many rows the query says that it has lost, under the guarantee gap. A gap of unknown size allows everything."""
        gaps = Checkpoint(str(self.rig.checkpoint)).gaps.read()
        return sys.maxsize if any(gap.rows is None for gap in gaps) else sum(gap.rows or 0 for gap in gaps)

    def _compare_state(self, wanted: dict[str, list[tuple[Any, ...]]]) -> Verdict:
        """In update and complete mode an aggregate's state holds every result; rows that were filtered out later are there too."""
        folder, verdict = self.work / "state", Verdict()
        sinks = [each for each in self.rig.recorded() if each.mode != "append" and each.keys]
        if not sinks or self.rules.expectation is Expectation.COUNTED_GAP:
            return verdict
        for operator, columns in self.rig.alive.ask("state", folder=str(folder)).items():
            for sink in sinks:
                if not set(sink.columns) <= set(columns):
                    continue
                at = [columns.index(name) for name in sink.columns]
                rows = [tuple(row[each] for each in at) for row in read_rows(folder / f"{operator}.arrow")]
                keys = {repr([row[each] for each in sink.keys]) for row in wanted[sink.name]}
                held = [row for row in rows if repr([row[each] for each in sink.keys]) in keys]
                verdict += judge(held, wanted[sink.name], what=f"state of {operator}", columns=sink.columns, keys=sink.keys)
                break
        return verdict

    def clean(self) -> None:
        """Remove what a campaign without failures has left."""
        shutil.rmtree(self.work, ignore_errors=True)
        if self.setup.master.startswith("local-cluster["):
            # Executors of such a cluster leave their folders with Spark itself.
            for app in self.rig.apps:
                shutil.rmtree(Path(spark_home()) / "work" / app, ignore_errors=True)
