"""The campaign of one seed: a query gets its faults one after the other, and is compared with the reference after each."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from headrace.chaos.faults import NotPossible
from headrace.chaos.life import Died, Refused
from headrace.chaos.outcome import Outcome, Record
from headrace.errors import CorruptStateError
from tests.chaos import disk, oracle
from tests.chaos.damage import Damage
from tests.chaos.data import files_of
from tests.chaos.faults import FAULTS, Injected, deck, is_on_a_cluster
from tests.chaos.mutations import MUTATIONS
from tests.chaos.processes import REPEATED
from tests.chaos.query import QUERIES
from tests.chaos.reference import Reference, compute
from tests.chaos.rig import LOCAL, Rig
from tests.crash.harness import ROOT
from tests.work_folders import remove_work_folders

CLUSTER = "local-cluster[2,1,1024]"
ONE_CLUSTER = threading.Lock()
"""Clusters keep their folders with Spark itself, and the next one removes them."""
FILES_BEFORE = 3
FILES_PER_FAULT = 5
"""The most files of a seed. If no file is left, a fault hits a query without new rows."""


@dataclass
class Seed:
    """One query with its faults. All choices follow from the seed."""

    number: int
    faults: int
    spark: SparkSession
    work: Path
    tell: Callable[[Record], None]
    data: Path | None = None
    kinds: tuple[str, ...] = ()
    """Only these kinds of fault; none: the seed's deck."""
    mutation: str = ""
    """A deliberate corruption of the results, made after the last fault."""
    latent: list[Damage] = field(default_factory=list)
    """Damage that has had no effect so far."""

    def run(self) -> list[Record]:
        """Run all faults. Files are removed at the end, unless something went wrong."""
        with ONE_CLUSTER if is_on_a_cluster(self.number) else contextlib.nullcontext():
            return self._run()

    def _run(self) -> list[Record]:
        query = list(QUERIES)[self.number % len(QUERIES)]
        files = files_of(self.number, FILES_BEFORE + self.faults * FILES_PER_FAULT, self.data)
        master = CLUSTER if is_on_a_cluster(self.number) else LOCAL
        self.rig = Rig(self.work, files, Random(f"rig/{self.number}"), master, query=query)
        self.random = Random(f"seed/{self.number}")
        records: list[Record] = []
        try:
            self._set_up()
            for at, kind in enumerate(self.kinds or deck(self.number, self.faults)):
                records.append(self._fault(at, kind))
                self.tell(records[-1])
                if records[-1].outcome.fails:
                    self._begin_anew()
            if self.mutation:
                records.append(self._mutate())
                self.tell(records[-1])
        finally:
            self.rig.kill()
            for path in self.work.glob("*/checkpoint"):
                disk.unmount(path)
            if master != LOCAL:
                # Executors of a local cluster leave their folders with Spark itself.
                remove_work_folders()
        if not any(record.outcome.fails for record in records):
            shutil.rmtree(self.work)
        return records

    def _set_up(self) -> None:
        """Compute the reference with Spark, while the Spark of the query starts."""
        found: list[Reference] = []
        thread = threading.Thread(target=lambda: found.append(compute(self.spark, self.rig.files, self.work / "all", self.rig.query)))
        thread.start()
        disk.mount(self.rig.checkpoint)
        self.rig.feed(FILES_BEFORE)
        self.rig.settle()
        thread.join()
        (self.reference,) = found
        differences = self._differences()
        if differences:
            raise AssertionError(f"seed {self.number} is wrong before any fault: {'; '.join(differences)}")

    def _begin_anew(self) -> None:
        """After wrong results, the remaining faults get a new checkpoint."""
        kept = self.work / f"wrong-{self.rig.generation}"
        with contextlib.suppress(OSError):
            shutil.copytree(self.rig.checkpoint, kept)
        self.rig.begin_anew()
        self.latent.clear()
        disk.mount(self.rig.checkpoint)

    def _differences(self) -> list[str]:
        return oracle.differences(self.reference, self.rig.query, self.rig.fed, self.rig.output, self.rig.checkpoint)

    def _fault(self, number: int, kind: str) -> Record:
        began = time.monotonic()
        what, outcome, detail = "", Outcome.SURVIVED, ""
        try:
            self.rig.settle()
            what, outcome, detail = self._inject(kind)
            try:
                differences = self._differences()
            except CorruptStateError as found:
                # The query did not have to read the damaged file; readers of the state get an error.
                outcome, detail = Outcome.REFUSED, f"when the state was read: {found}"
                self._undo_latent()
                differences = self._differences()
            if differences:
                outcome, detail = Outcome.WRONG, "; ".join([*differences, *filter(None, [detail])])
        except NotPossible as why:
            outcome, detail = Outcome.SKIPPED, str(why)
        except (Refused, Died) as failed:
            outcome, detail = Outcome.STUCK, failed.brief() if isinstance(failed, Refused) else str(failed)
        except Exception as failed:
            outcome, detail = Outcome.BROKEN, f"{type(failed).__name__}: {failed}"
        return Record(self.number, number, kind, what, outcome, detail, time.monotonic() - began, self.rig.version)

    def _inject(self, kind: str) -> tuple[str, Outcome, str]:
        """Do the fault and wait until the query has settled. Returns what was done, and the outcome."""
        injected = Injected("")
        notes = []
        try:
            injected = FAULTS[kind](self.rig, self.random)
            if injected.damage is not None:
                notes.append(self._verified())
            self.rig.settle()
        except (Refused, Died) as refusal:
            ours = isinstance(refusal, Refused) and refusal.ours
            notes.insert(0, refusal.brief() if isinstance(refusal, Refused) else str(refusal))
            self._recover(injected)
            return injected.what, Outcome.REFUSED if ours else Outcome.BARE, "; ".join(filter(None, notes))
        if injected.undo is not None and injected.always:
            injected.undo()
        if injected.damage is not None:
            self.latent.append(injected.damage)
        if REPEATED in injected.what:
            return "", Outcome.WRONG, injected.what
        return injected.what, Outcome.SURVIVED, "; ".join(filter(None, notes))

    def _recover(self, injected: Injected) -> None:
        """Repair as an operator would: undo the damage and restart; then undo older damage too; at last restart the process."""
        self.rig.active = False
        steps: list[Callable[[], None]] = [injected.undo or (lambda: None), self._undo_latent, self.rig.kill]
        for at, step in enumerate(steps):
            step()
            try:
                self.rig.settle()
                return
            except (Refused, Died):
                self.rig.active = False
                if at == len(steps) - 1:
                    raise

    def _undo_latent(self) -> None:
        for damage in reversed(self.latent):
            if damage.untouched():
                damage.undo()
        self.latent.clear()

    def _verified(self) -> str:
        """True if ``headrace state verify`` finds the damage."""
        command = [sys.executable, "-m", "headrace", "state", "verify", str(self.rig.checkpoint)]
        checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if "Traceback" in checked.stderr:
            return f"verify fails: {checked.stderr.splitlines()[-1]}"
        return "verify finds it" if checked.returncode else "verify is content"

    def _mutate(self) -> Record:
        """Make a corruption that the campaign must find."""
        began = time.monotonic()
        self.rig.settle()
        self.rig.stop()
        MUTATIONS[self.mutation](self.rig)
        differences = self._differences()
        outcome = Outcome.WRONG if differences else Outcome.SURVIVED
        seconds = time.monotonic() - began
        return Record(self.number, self.faults, "mutation", self.mutation, outcome, "; ".join(differences), seconds, self.rig.version)
