"""The campaign: a user's query gets its faults one after the other, and is compared with Spark's batch answer after each."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.chaos.faults import Done, NotPossible, perform
from headrace.chaos.judge import Expectation, Verdict
from headrace.chaos.judging import Judging, Moment
from headrace.chaos.life import Died, Life, Refused
from headrace.chaos.mutations import MUTATIONS
from headrace.chaos.outcome import Outcome, Record
from headrace.chaos.plan import FILES_FIRST, Fault, batches_of, begins_checkpoint
from headrace.chaos.recorder import delivery_times
from headrace.chaos.rig import Rig, Setup
from headrace.errors import HeadraceError
from headrace.runtime.checkpoint import Checkpoint
from headrace.spark.gateway import spark_home

STATE_EVERY = 10
"""State is compared after so many faults, and at the end: reading it takes a checkpoint, after which little is left to lose."""
SQL = "spark.sql."
END = "end"
"""The kind of the last comparison."""


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
        self.judging: Judging | None = None
        self._pending: tuple[Record, Future[Verdict]] | None = None
        self.files = batches_of(self.faults)

    def run(self) -> list[Record]:
        """Run all faults, or those until ``stopping`` is set. All processes are ended at the end."""
        try:
            with self.rig.spent.on("other"):
                self._set_up()
                for fault in self.faults:
                    if self.stopping.is_set():
                        break
                    self._run(fault)
                self._add_pending()
                if self.records and not self.records[-1].outcome.fails:
                    self._add(self._last())
        finally:
            self.rig.kill()
            if self.judging is not None:
                self.judging.close()
            if self.answer is not None:
                self.answer.kill()
        return self.records

    def _run(self, fault: Fault) -> None:
        """Do one fault. What came out of it is compared beside the next one, except when state is compared, too."""
        compares_state = fault.number % STATE_EVERY == STATE_EVERY - 1
        if begins_checkpoint(fault) and self._add_pending():
            self._renew()
        record, moment = self._fault(fault)
        if not self._add_pending():
            record, moment = replace(record, outcome=Outcome.SKIPPED, detail="the fault before it went wrong"), None
        assert self.judging is not None
        if moment is None:
            self._add(record)
        elif compares_state:
            found: Future[Verdict] = Future()
            try:
                found.set_result(self._compare_all())
            except Exception as failed:
                found.set_exception(failed)
            self._add(self._conclude(record, found))
        else:
            self._pending = record, self.judging.begin(moment, self.rig.recorded())

    def _add_pending(self) -> bool:
        """Conclude the fault whose results are being compared. False if something was wrong with it."""
        if self._pending is not None:
            (record, verdict), self._pending = self._pending, None
            self._add(self._conclude(record, verdict))
            return not self.records[-1].outcome.fails
        return True

    def _add(self, record: Record) -> None:
        self.records.append(record)
        self.tell(record)
        if record.outcome.fails and record.kind != END:
            self._begin_anew()

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
            self.judging = Judging(self.answer, self.work, self.setup.due, self.rules.expectation)
            asked = {"batches": self.files, "rows_max": self.rules.rows_max, "order_by": self.rules.order_by}
            self.rows = self.answer.ask("prepare", **asked)["rows"]
            self.show("the query starts")
            self.rig.feed(FILES_FIRST)
            self.rig.settle()
            verdict = self._compare_all()
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

    def _renew(self) -> None:
        """Begin a new checkpoint with the rows that come next, so that comparisons do not take longer and longer."""
        self.show("a new checkpoint")
        self.rig.renew()
        self.rig.feed(FILES_FIRST)
        self.rig.settle()

    def _fault(self, fault: Fault) -> tuple[Record, Moment | None]:
        """Do a fault. Returns its record, and the moment at which results are to be compared; None if they are not."""
        began_s, done = time.time(), Done()
        self.show(f"fault {fault.number + 1} of {len(self.faults)}: {fault.kind}")
        known = len(self.rig.batches)
        outcome, detail, moment = Outcome.SURVIVED, "", None
        try:
            perform(self.rig, fault, done)
            if done.refused:
                outcome, detail = Outcome.REFUSED, done.refused
            moment = self._moment() if self.rules.each else None
        except NotPossible as why:
            outcome, detail = Outcome.SKIPPED, str(why)
        except (Refused, Died) as failed:
            outcome, detail = Outcome.STUCK, failed.brief() if isinstance(failed, Refused) else str(failed)
        except Exception as failed:
            outcome, detail = Outcome.BROKEN, f"{type(failed).__name__}: {failed}"
        what = ", ".join(filter(None, done.what))
        return self._record(fault.number, fault.kind, what, outcome, detail, began_s, Verdict(), done.struck_s, known), moment

    def _conclude(self, record: Record, verdict: Future[Verdict]) -> Record:
        """The record of a fault when its results have been compared."""
        try:
            with self.rig.spent.on("comparing"):
                found = verdict.result()
        except (Refused, Died) as failed:
            return replace(record, outcome=Outcome.STUCK, detail=failed.brief() if isinstance(failed, Refused) else str(failed))
        except Exception as failed:
            return replace(record, outcome=Outcome.BROKEN, detail=f"{type(failed).__name__}: {failed}")
        if found.right:
            return record
        detail = "; ".join([str(found), *found.examples, *filter(None, [record.detail])])
        wrong = replace(record, outcome=Outcome.WRONG, detail=detail, recovery_s=None)
        return replace(wrong, lost=found.lost, doubled=found.doubled, wrong=found.wrong)

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
            verdict = self._compare_all()
        except (Refused, Died) as failed:
            detail = failed.brief() if isinstance(failed, Refused) else str(failed)
            return self._record(len(self.faults), END, "", Outcome.STUCK, detail, began_s, Verdict())
        outcome = Outcome.SURVIVED if verdict.right else Outcome.WRONG
        what = f"mutation {self.rules.mutate}" if self.rules.mutate else "results and state"
        return self._record(len(self.faults), END, what, outcome, "; ".join([str(verdict), *verdict.examples]), began_s, verdict)

    def _moment(self) -> Moment:
        """Now: all that was fed has been delivered."""
        return Moment(self.rig.first, self.rig.fed, self.rig.batches[-1]["watermark_ms"], time.time(), self._counted())

    def _compare_all(self) -> Verdict:
        """Compare the sinks with Spark's batch answer over what was fed, and state with it where it has the same columns."""
        assert self.judging is not None
        with self.rig.spent.on("comparing"):
            return self.judging.all(self._moment(), self.rig.recorded(), lambda folder: self.rig.alive.ask("state", folder=str(folder)))

    def _counted(self) -> int:
        """How many rows the query says that it has lost, under the guarantee gap. A gap of unknown size allows everything."""
        gaps = Checkpoint(str(self.rig.checkpoint)).gaps.read()
        return sys.maxsize if any(gap.rows is None for gap in gaps) else sum(gap.rows or 0 for gap in gaps)

    def clean(self) -> None:
        """Remove what a campaign without failures has left."""
        shutil.rmtree(self.work, ignore_errors=True)
        if self.setup.master.startswith("local-cluster["):
            # Executors of such a cluster leave their folders with Spark itself.
            for app in self.rig.apps:
                shutil.rmtree(Path(spark_home()) / "work" / app, ignore_errors=True)
