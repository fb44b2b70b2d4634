"""The instance task: what runs in a Spark task for one instance and one batch.

It sorts its rows, calls the kernel, writes the changed state as one run per store, stages the results, does its share of compaction, and
reports. The files that it writes count only when the driver's manifest names them.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError, MissingRunError
from headrace.ids import SLOTS, InstanceId
from headrace.logs import logger, set_level
from headrace.operators.kernel import MAIN, ROWS, Applied, OutputMode, View, Views
from headrace.operators.settled import SHUFFLED, rows_shuffled
from headrace.runtime.border import spark_batches, spark_schema
from headrace.runtime.failpoints import fail_point, receive_points
from headrace.runtime.phases import Phase
from headrace.runtime.reports import InstanceReport, error_text, to_text
from headrace.runtime.skew import rows_per_hash, rows_per_slot
from headrace.runtime.staged import write_staged
from headrace.runtime.task_files import Names, leave_report
from headrace.runtime.task_spec import TaskSpec
from headrace.runtime.whereabouts import executor_id, working_folder
from headrace.spark.worker import freeze_modules
from headrace.state.compact import Compactor
from headrace.state.durable import at_once, put_file
from headrace.state.layout import HASH, one_batch
from headrace.state.manifest import StagedFile
from headrace.state.recreation import Part
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.sequence import VersionStep, run_seq
from headrace.state.slots import SlotRanges, clip, join
from headrace.state.working import Working

_log = logger(__name__)

REPORT = "report"
REPORTS = f"{REPORT} string"
"""The schema of reports, as Spark reads it."""
SWEEP_EVERY = 10
"""An executor looks for working copies to remove once in this many versions."""


@dataclass(frozen=True)
class InstanceTask:
    """Called by Spark (``mapInArrow``) with an instance's rows. Yields the task's report.

    If results are not staged, it yields those instead, and writes the report to a file at its end. Several attempts may do so. The report
    of each is complete, and that of the last attempt counts.
    """

    spec: TaskSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return self.run_instance(InstanceId(context.partitionId()), batches)

    def at_home(self, instance: InstanceId, rows: pa.Table) -> pa.Table:
        """Run an instance at its home executor, which gets all its rows at once. Returns what the task yields."""
        schema = spark_schema(self.spec.operator.output_schema) if self.spec.passes_on else pa.schema([(REPORT, pa.string())])
        return pa.Table.from_batches(self.run_instance(instance, iter(rows.to_batches())), schema)

    def run_instance(self, instance: InstanceId, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task of one instance. Yields its report or its results; nothing for a number without an instance."""
        if instance < len(self.spec.routing.parts):
            set_level(self.spec.log_level)
            with self.spec.log_fields(instance):
                yield from self._attempted(instance, batches)

    def _attempted(self, instance: InstanceId, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        freeze_modules()
        receive_points(self.spec.fail_points)
        context = TaskContext.get()
        assert context is not None
        working = None if self.spec.working is None else Working(working_folder(self.spec.working))
        attempt = Attempt(self.spec, instance, context.taskAttemptId(), working)
        try:
            attempt.process(batches)
            for rows in attempt.going_on():
                yield from spark_batches(rows)
            text = to_text(attempt.finish())
        except HeadraceError as error:
            if isinstance(error, MissingRunError):
                error.executor = executor_id()
            text = error_text(error)
        if not self.spec.passes_on:
            yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=[REPORT])
            return
        leave_report(self.spec, attempt.names, text)

    def run_here(self, instance: InstanceId, attempt: int) -> InstanceReport:
        """Do an instance's flush in the driver. Its results are staged."""
        spec = self.spec
        here = Attempt(spec, instance, attempt, Working(working_folder(spec.working)) if spec.works_here and spec.working else None)
        with self.spec.log_fields(instance):
            here.process(iter(()))
            return here.finish()


class Attempt:
    """One attempt of an instance task. Call ``process``, then iterate over ``going_on``, then call ``finish``.

    Results are written or passed on while they are computed, because they may be much larger than rows and state.
    """

    def __init__(self, spec: TaskSpec, instance: InstanceId, number: int, working: Working | None = None) -> None:
        self.spec, self.instance, self.working = spec, instance, working
        self.names = Names(spec, instance, number)
        self.part = spec.routing.parts[instance]
        self.phases_ms: dict[str, float] = {}
        self.began, self.cpu_began = time.perf_counter(), time.process_time()
        self.rows_out = 0
        self.staged: list[StagedFile] = []

    def process(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Read the rows, run the kernel, and write the changed state. If results are staged, write them too."""
        spec, part = self.spec, self.part
        fail_point("task-begin", spec.version)
        operator = spec.operator.bounded(part)
        self.rows = self.read_rows(batches)
        with self._phase("clip"):
            self.views = self.open_views(part, self.working)
        with self._phase("kernel"):
            self.applied = operator.apply(self.rows, self.views, spec.moment)
        with self._phase("write"):
            fail_point("run-before", spec.version)
            new = self._write_changed(self.applied, spec.step)
            fail_point("run-after", spec.version)
        self.results = self.applied.results()
        if spec.until_ms is not None:
            # The flush closes windows after this task's own rows were added. Both give results.
            with self._phase("kernel"):
                closed = operator.close(self.views, spec.moment, spec.until_ms)
            with self._phase("write"):
                self._write_changed(closed, VersionStep.CLOSE)
            self.results = chain(self.results, closed.results())
        if not spec.passes_on:
            self._stage(new)
            fail_point("staged-after", spec.version)

    def going_on(self) -> Iterator[pa.RecordBatch]:
        """The results that go directly to the next operator or sink; none if they were staged."""
        if self.spec.passes_on:
            for rows in self._computed():
                self.rows_out += rows.num_rows
                yield rows
            fail_point("staged-after", self.spec.version)

    def finish(self) -> InstanceReport:
        """Do a share of compaction, and return the report."""
        spec, rows, applied = self.spec, self.rows, self.applied
        compacted = 0
        if spec.until_ms is None:
            with self._phase("compact"):
                compacted = sum(self._compact(name, view) for name, view in self.views.items())
        fail_point("task-end", spec.version)
        self._upload()
        per_slot = rows_per_slot(rows)
        report = InstanceReport(
            instance=self.instance,
            operator=spec.operator_id,
            runs={name: tuple(join(_of_generation(view.refs, self.part))) for name, view in self.views.items()},
            staged=tuple(self.staged),
            rows=applied.rows,
            rows_shuffled=rows_shuffled(rows),
            rows_late=applied.rows_late,
            rows_out=self.rows_out,
            keys=applied.keys,
            keys_new=applied.keys_new,
            rows_per_slot=per_slot,
            rows_per_hash=rows_per_hash(rows, per_slot),
            cpu_s=time.process_time() - self.cpu_began,
            wall_s=time.perf_counter() - self.began,
            phases_ms=self.phases_ms,
            rows_compacted=compacted,
            private_bytes=_private_bytes(),
            host=socket.gethostname(),
            executor=executor_id(),
            fetched_bytes=self.working.fetched_bytes if self.working else 0,
        )
        self._remove_superseded()
        if self.working is not None and spec.version % SWEEP_EVERY == 0:
            self.working.sweep(self._is_stale)
        looks = spec.store.local is None or spec.version % SWEEP_EVERY == 0
        if looks and self.working is not None and spec.cache_bytes and not spec.writes_home:
            self.working.trim(spec.cache_bytes)
        _log.debug("%d rows, %d results, %d rows compacted, %.0f ms", report.rows, report.rows_out, compacted, report.wall_s * 1000)
        return report

    def _computed(self) -> Iterator[pa.RecordBatch]:
        """The operator's results. The time to compute them is counted as the kernel's."""
        spec = self.spec
        if self.applied.emits_changed:
            if MAIN in self.applied.changed:
                yield self.applied.changed[MAIN].select(spec.operator.output_schema.names)
            return
        while True:
            with self._phase("kernel"):
                rows = next(self.results, None)
            if rows is None:
                return
            yield rows

    def read_rows(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows of the batch for this instance, in the kernel's types."""
        with self._phase("read"):
            schema = self.spec.operator.input_schema
            # A flush without input gets dummy rows, which only start its tasks.
            parts = [b for b in batches if b.num_rows and HASH in b.schema.names]
            if not parts:
                return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
            rows = one_batch(pa.Table.from_batches(parts), schema)
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            for name in self.spec.ones:
                if name not in columns:
                    columns[name] = pa.array(np.ones(rows.num_rows, dtype=np.int64))
            if self.spec.counts_rows is not None and SHUFFLED not in columns:
                columns[ROWS] = columns[self.spec.counts_rows]
            return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _is_stale(self, file: str) -> bool:
        """True if no task needs this working copy again: the operator's state does not name it, and it is not of a recent version."""
        version, _, rest = file.partition("-")
        known = {ref.file for refs in self.spec.refs.values() for ref in refs}
        old = rest.startswith(f"{self.spec.operator_id}-i") and int(version[1:]) < self.spec.version - 1
        return old and file not in known and file not in self.spec.pinned

    def open_views(self, part: Part, working: Working | None) -> Views:
        """The instance's state before the batch, by store."""
        views = {}
        for name, store in self.spec.operator.stores.items():
            folder, home = self.spec.store.below("runs"), self.spec.writes_home
            reader = RunReader(folder, store.layout, working, writes_home=home, earlier=self.spec.earlier.get(name, ()))
            views[name] = View(reader, clip(part.own(self.spec.refs.get(name, ())), part.slots, reader), part.slots)
        return views

    def _write_changed(self, applied: Applied, step: VersionStep) -> list[RunRef]:
        """Write the changed rows as one run per store, and add it to the store's view. Returns the references of the main store."""
        spec, part, new = self.spec, self.part, []
        for name, rows in applied.changed.items():
            if not rows.num_rows:
                continue
            view = self.views[name]
            directory, layout = view.reader.writes_to, spec.operator.stores[name].layout
            file, seq = self.names.run(name, step), run_seq(spec.version, step)
            ref = write_run(directory, file, rows, layout, seq=seq, lo=0, hi=SLOTS, sync=spec.sync)
            view.reader.keep(ref.file)
            # All rows are in slots that the instance may write, so the reference must name only those slots.
            writes = part.writes
            claimed = clip([ref], writes, view.reader) if len(writes) > 1 else [_claim(ref, writes)]
            claimed = [each for each in claimed if each.rows] if part.spread else claimed
            self.views[name] = replace(view, refs=[*claimed, *view.refs])
            if name == MAIN:
                new = claimed
        return new

    def _stage(self, new: list[RunRef]) -> None:
        """Write results to a staged file. If the new run contains exactly the results and others can read it, it is the staged file."""
        spec = self.spec
        if self.applied.emits_changed and not spec.writes_home:
            rows = self.applied.changed[MAIN].num_rows if new else 0
            self.staged = [StagedFile(r.file, "runs", r.bytes, r.crc, rows, spec.operator_id) for r in new[:1]]
        else:
            file, begin_ms = self.names.staged(), self.phases_ms.get("kernel", 0.0)
            with self._phase("write"):
                path = self._staged_folder() / file
                rows, length, crc = write_staged(path, spec.operator.output_schema, self._computed(), sync=spec.sync)
            # The time to compute them was counted as the kernel's.
            self.phases_ms["write"] -= self.phases_ms.get("kernel", 0.0) - begin_ms
            self.staged = [StagedFile(file, "staged", length, crc, rows, spec.operator_id)] if rows else []
        self.rows_out = sum(s.rows for s in self.staged)

    def _staged_folder(self) -> Path:
        """Where staged results are written. What is not written to the store itself is uploaded in the end."""
        if self.spec.store.local is not None:
            return self.spec.store.local / "staged"
        assert self.working is not None
        return self.working.make_folder()

    def _upload(self) -> None:
        """Bring what this task has written to a store behind a network: new runs, unless they stay at home, and staged results."""
        spec, working = self.spec, self.working
        if spec.store.local is not None or working is None:
            return
        own, calls = set(self.names.runs), list[Callable[[], None]]()
        for view in self.views.values() if not spec.writes_home else ():
            calls += [partial(view.reader.upload, ref.file) for ref in {ref.file: ref for ref in view.refs if ref.file in own}.values()]
        # A run that was merged away may still be what is staged.
        named = {ref.file for view in self.views.values() for ref in view.refs}
        staged = [f"{each.folder}/{each.file}" for each in self.staged if each.folder == "staged" or each.file not in named]
        calls += [partial(put_file, spec.store, key, working.path(key.partition("/")[2])) for key in staged]
        with self._phase("upload"):
            at_once(spec.store, calls)

    def _compact(self, name: str, view: View) -> int:
        """Compact a store, and replace its view's references. Returns the number of rows merged."""
        spec, store, moment = self.spec, self.spec.operator.stores[name], self.spec.moment
        live_from = None if moment.mode is OutputMode.COMPLETE else store.lifetime.live_from(moment.watermark_ms)
        changed = self.applied.changed[name].num_rows if name in self.applied.changed else 0
        budget = max(spec.compact_rows, int(spec.compact_factor * changed))
        unexpired = partial(store.lifetime.unexpired, watermark_ms=moment.watermark_ms, now_ms=moment.now_ms)
        compactor = Compactor(
            view.reader.writes_to,
            store.layout,
            store.combine,
            view.reader,
            spec.depth_max,
            spec.sync,
            new_file=self.names.compacted,
            boundaries=spec.boundaries,
            unexpired=unexpired,
        )
        view.refs[:], compacted = compactor.compact(view.refs, view.ranges, budget, live_from)
        return compacted

    def _remove_superseded(self) -> None:
        """Remove runs that this task wrote and then merged away. No report names them, so nothing else would remove them."""
        named = {ref.file for view in self.views.values() for ref in view.refs} | {file.file for file in self.staged}
        for file in set(self.names.runs) - named:
            next(iter(self.views.values())).reader.remove(file)

    def _phase(self, name: str) -> Phase:
        return Phase(self.phases_ms, name)


def _of_generation(refs: list[RunRef], part: Part) -> list[RunRef]:
    return [replace(ref, generation=part.generation) for ref in refs] if part.generation else refs


def _claim(ref: RunRef, ranges: SlotRanges) -> RunRef:
    ((lo, hi),) = ranges
    return replace(ref, lo=lo, hi=hi)


def _private_bytes() -> int:
    """The private memory of this process. Mapped state does not count, because it is shared with the page cache."""
    try:
        with open("/proc/self/status") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
