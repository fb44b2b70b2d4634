"""The instance task: what runs in a Spark task for one instance and one batch.

It sorts its rows, asks the kernel, writes one run with what changed, stages the output, does its share of compaction, and reports.
Nothing it writes counts until the driver's manifest names it. File names carry version, operator, instance, epoch and task attempt,
so that no attempt, of this run of the query or of a dead one, can overwrite another's file.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import HeadraceError, require
from headrace.ids import SLOTS, slot_of
from headrace.operators.aggregate import ROWS
from headrace.operators.kernel import MAIN, Applied, Expiring, Moment, Operator, OutputMode, View, Views
from headrace.operators.windowed import WindowedAggregate
from headrace.runtime.border import spark_batches, spark_schema
from headrace.runtime.failpoints import fail_point
from headrace.runtime.reports import InstanceReport, error_text, to_text
from headrace.runtime.whereabouts import executor_id, working_folder
from headrace.runtime.worker import freeze_modules
from headrace.state.blocks import write_arrow
from headrace.state.compact import Compactor
from headrace.state.disk import disk_errors, removed_on_failure
from headrace.state.layout import HASH, hashes, one_batch
from headrace.state.manifest import StagedFile
from headrace.state.recreation import Part
from headrace.state.routing import Routing
from headrace.state.run import RunReader, RunRef, Step, run_seq, write_run
from headrace.state.slots import SlotRanges, clip, join
from headrace.state.working import Working

REPORT = "report"
REPORTS = f"{REPORT} string"
"""Spark's schema of reports."""
HEAVY_SLOT = 1 / 8
"""The part of an instance's rows that makes a slot worth a closer look ..."""
HEAVY_KEYS = 16
"""... at this many of its keys."""
SWEEP_EVERY = 10
"""Versions after which an executor looks for copies that it needs no longer."""


@dataclass(frozen=True)
class TaskSpec:
    """All that an instance task needs to know; plain data, pickled into the task."""

    directory: str
    operator: Operator
    operator_id: str
    version: int
    epoch: str
    moment: Moment
    refs: dict[str, tuple[RunRef, ...]]
    """Per store."""
    routing: Routing
    ones: tuple[str, ...]
    counts_rows: str | None
    sync: bool
    depth_max: int
    compact_rows: int
    compact_factor: float
    passes_on: bool
    """Results go straight on to the next operator of the job, or to a sink that keeps nothing, instead of being staged."""
    working: str | None = None
    """Where an executor keeps its own copies of runs, see ``working_folder``; None where the directory is as near."""
    until_ms: int | None = None
    """Set for the flush: close what falls due up to this watermark. Rows come only from other operators' flush."""

    @property
    def step(self) -> Step:
        return Step.PROCESS if self.until_ms is None else Step.FLUSH


@dataclass
class InstanceTask:
    """Called by Spark (``mapInArrow``) with an instance's rows. Yields its report; or, if results go on directly, those, and leaves the
    report in a file: any attempt that got as far as that has done all its work, so any attempt's report will do."""

    spec: TaskSpec
    phases_ms: dict[str, float] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return self.of(context.partitionId(), batches)

    def at(self, instance: int, rows: pa.Table) -> pa.Table:
        """The same for an instance at home, which is given all its rows at once."""
        schema = spark_schema(self.spec.operator.output_schema) if self.spec.passes_on else pa.schema([(REPORT, pa.string())])
        return pa.Table.from_batches(self.of(instance, iter(rows.to_batches())), schema)

    def of(self, instance: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        if instance >= len(self.spec.routing.parts):
            return
        freeze_modules()
        context = TaskContext.get()
        assert context is not None
        attempt = context.taskAttemptId()
        working = None if self.spec.working is None else Working(working_folder(self.spec.working))
        try:
            results, report = self.run(batches, instance, attempt, working)
        except HeadraceError as error:
            results, text = [], error_text(error)
        else:
            text = to_text(report)
        if not self.spec.passes_on:
            yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=[REPORT])
            return
        for rows in results:
            yield from spark_batches(rows)
        path = Path(self.spec.directory) / "staged" / Names(self.spec, instance, attempt).report()
        with disk_errors(path, "to leave a report for the driver"), removed_on_failure(path.with_suffix(".tmp")):
            path.with_suffix(".tmp").write_text(text)
            path.with_suffix(".tmp").rename(path)

    def run(
        self, batches: Iterator[pa.RecordBatch], instance: int, attempt: int, working: Working | None = None
    ) -> tuple[list[pa.RecordBatch], InstanceReport]:
        spec = self.spec
        fail_point("task-begin", spec.version)
        began, cpu_began = time.perf_counter(), time.process_time()
        names = Names(spec, instance, attempt)
        part = spec.routing.parts[instance]
        operator = _bounded(spec.operator, part)
        rows = self._read(batches)
        with self._phase("clip"):
            views = self._views(part, working)
        with self._phase("kernel"):
            applied = operator.apply(rows, views, spec.moment)
        with self._phase("write"):
            fail_point("run-before", spec.version)
            new = self._write_changed(applied, names, views, part, spec.step)
            fail_point("run-after", spec.version)
        if spec.until_ms is not None:
            applied = self._close(operator, applied, names, views, part)
        with self._phase("write"):
            staged, results = self._stage(applied, new, names)
            fail_point("staged-after", spec.version)
        compacted = 0
        if spec.until_ms is None:
            with self._phase("compact"):
                compacted = sum(self._compact(name, view, applied, names) for name, view in views.items())
        fail_point("task-end", spec.version)
        per_slot = _per_slot(rows)
        report = InstanceReport(
            instance=instance,
            operator=spec.operator_id,
            runs={name: tuple(join(_of_generation(view.refs, part))) for name, view in views.items()},
            staged=tuple(staged),
            rows=applied.rows,
            rows_shuffled=rows.num_rows,
            rows_late=applied.rows_late,
            rows_out=sum(s.rows for s in staged) + sum(r.num_rows for r in results),
            keys=applied.keys,
            keys_new=applied.keys_new,
            rows_per_slot=per_slot,
            rows_per_hash=_per_hash(rows, per_slot),
            cpu_s=time.process_time() - cpu_began,
            wall_s=time.perf_counter() - began,
            phases_ms=self.phases_ms,
            rows_compacted=compacted,
            private_bytes=_private_bytes(),
            host=socket.gethostname(),
            executor=executor_id(),
            fetched_bytes=working.fetched_bytes if working else 0,
        )
        self._remove_superseded(names, views, staged)
        if working is not None and spec.version % SWEEP_EVERY == 0:
            working.sweep(self._is_stale)
        return results, report

    def _read(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows of the batch for this instance, in the kernel's types."""
        with self._phase("read"):
            schema = self.spec.operator.input_schema
            # What a flush without input is fed is only there to start its tasks.
            parts = [b for b in batches if b.num_rows and HASH in b.schema.names]
            if not parts:
                return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
            rows = one_batch(pa.Table.from_batches(parts), schema)
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            for name in self.spec.ones:
                if name not in columns:
                    columns[name] = pa.array(np.ones(rows.num_rows, dtype=np.int64))
            if self.spec.counts_rows is not None:
                columns[ROWS] = columns[self.spec.counts_rows]
            return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _is_stale(self, file: str) -> bool:
        """Whether a copy of this operator's will not be asked for again: the state no longer names it, and it is too old to be new."""
        version, _, rest = file.partition("-")
        known = {ref.file for refs in self.spec.refs.values() for ref in refs}
        return rest.startswith(f"{self.spec.operator_id}-i") and int(version[1:]) < self.spec.version - 1 and file not in known

    def _views(self, part: Part, working: Working | None) -> Views:
        views = {}
        for name, store in self.spec.operator.stores.items():
            reader = RunReader(Path(self.spec.directory) / "runs", store.layout, working)
            views[name] = View(reader, clip(part.own(self.spec.refs.get(name, ())), part.slots, reader), part.slots)
        return views

    def _close(self, operator: Operator, applied: Applied, names: Names, views: Views, part: Part) -> Applied:
        """Close on top of what this task has just written; both are its results."""
        assert self.spec.until_ms is not None
        with self._phase("kernel"):
            closed = operator.close(views, self.spec.moment, self.spec.until_ms)
        with self._phase("write"):
            self._write_changed(closed, names, views, part, Step.CLOSE)
        return replace(applied, emitted=[*applied.emitted, *closed.emitted])

    def _write_changed(self, applied: Applied, names: Names, views: Views, part: Part, step: Step) -> list[RunRef]:
        """Write what changed as one run per store, and put it on top of the store's view; returns the main store's."""
        spec, new = self.spec, []
        for name, rows in applied.changed.items():
            if not rows.num_rows:
                continue
            view = views[name]
            directory, layout = view.reader.directory, spec.operator.stores[name].layout
            ref = write_run(directory, names.run(name, step), rows, layout, seq=run_seq(spec.version, step), lo=0, hi=SLOTS, sync=spec.sync)
            view.reader.keep(ref.file)
            # The rows all lie in slots that the instance may write; a reference may only claim those.
            writes = part.writes
            claimed = clip([ref], writes, view.reader) if len(writes) > 1 else [_claim(ref, writes)]
            claimed = [each for each in claimed if each.rows] if part.spread else claimed
            views[name] = replace(view, refs=[*claimed, *view.refs])
            if name == MAIN:
                new = claimed
        return new

    def _stage(self, applied: Applied, new: list[RunRef], names: Names) -> tuple[list[StagedFile], list[pa.RecordBatch]]:
        spec = self.spec
        names_out = spec.operator.output_schema.names
        if spec.passes_on:
            if applied.emits_changed:
                return [], [applied.changed[MAIN].select(names_out)] if MAIN in applied.changed else []
            return [], [rows for rows in applied.emitted if rows.num_rows]
        if applied.emits_changed:
            return [StagedFile(r.file, "runs", r.bytes, r.crc, applied.changed[MAIN].num_rows, spec.operator_id) for r in new[:1]], []
        emitted = [rows for rows in applied.emitted if rows.num_rows]
        if not emitted:
            return [], []
        rows = pa.concat_batches(emitted)
        file = names.staged()
        length, crc = write_arrow(Path(spec.directory) / "staged" / file, rows, sync=spec.sync)
        return [StagedFile(file, "staged", length, crc, rows.num_rows, spec.operator_id)], []

    def _compact(self, name: str, view: View, applied: Applied, names: Names) -> int:
        """Compact a store in place of its view's references; returns the rows merged."""
        spec, store = self.spec, self.spec.operator.stores[name]
        live_from = None if spec.moment.mode is OutputMode.COMPLETE else store.live_from(spec.moment.watermark_ms)
        changed = applied.changed[name].num_rows if name in applied.changed else 0
        budget = max(spec.compact_rows, int(spec.compact_factor * changed))
        directory = view.reader.directory
        seq = run_seq(spec.version, spec.step)
        compactor = Compactor(directory, store.layout, store.combine, view.reader, spec.depth_max, spec.sync, names.compacted, seq)
        if isinstance(store, Expiring):
            moment = spec.moment
            compactor = replace(compactor, unexpired=partial(store.unexpired, watermark_ms=moment.watermark_ms, now_ms=moment.now_ms))
        view.refs[:], compacted = compactor.compact(view.refs, view.ranges, budget, live_from)
        return compacted

    def _remove_superseded(self, names: Names, views: Views, staged: list[StagedFile]) -> None:
        """Runs that this task wrote and then merged away: no report names them, so no manifest will, and nobody would ever remove them."""
        named = {ref.file for view in views.values() for ref in view.refs} | {file.file for file in staged}
        for file in set(names.runs) - named:
            next(iter(views.values())).reader.remove(file)

    def _phase(self, name: str) -> Phase:
        return Phase(self.phases_ms, name)


_STEP_NAMES: dict[Step, tuple[str, ...]] = {Step.PROCESS: (), Step.FLUSH: ("flush",), Step.CLOSE: ("close",)}


@dataclass
class Names:
    """File names that nobody else can give."""

    spec: TaskSpec
    instance: int
    attempt: int
    compactions: int = 0
    runs: list[str] = field(default_factory=list)

    def run(self, store: str, step: Step) -> str:
        self.runs.append(self._name("-".join([*_STEP_NAMES[step], "run", *([store] if store else [])])))
        return self.runs[-1]

    def staged(self) -> str:
        return self._name("flush" if self.spec.until_ms is not None else "out")

    def report(self) -> str:
        return self._name("flush-report" if self.spec.until_ms is not None else "report").replace(".arrow", ".json")

    def compacted(self) -> str:
        self.compactions += 1
        self.runs.append(self._name(f"c{self.compactions}"))
        return self.runs[-1]

    def _name(self, kind: str) -> str:
        s = self.spec
        return f"v{s.version:012d}-{s.operator_id}-i{self.instance}-e{s.epoch}-a{self.attempt}-{kind}.arrow"


@dataclass
class Phase:
    """Adds the time spent in a block to a table of phases."""

    table: dict[str, float]
    name: str
    began: float = 0.0

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.table[self.name] = self.table.get(self.name, 0.0) + (time.perf_counter() - self.began) * 1000


def _bounded(operator: Operator, part: Part) -> Operator:
    """The kernel of one side of a recreation: it has only some of the windows."""
    if part.starts_us == (None, None):
        return operator
    require(isinstance(operator, WindowedAggregate), "only windows are recreated")
    assert isinstance(operator, WindowedAggregate)
    return replace(operator, starts_us=part.starts_us, counts_from_us=part.counts_from_us)


def _of_generation(refs: list[RunRef], part: Part) -> list[RunRef]:
    return [replace(ref, generation=part.generation) for ref in refs] if part.generation else refs


def _claim(ref: RunRef, ranges: SlotRanges) -> RunRef:
    ((lo, hi),) = ranges
    return replace(ref, lo=lo, hi=hi)


def reports_left(spec: TaskSpec) -> list[str]:
    """The reports that tasks left in files; they are read once."""
    kind = "flush-report" if spec.until_ms is not None else "report"
    left = []
    for path in (Path(spec.directory) / "staged").glob(f"v{spec.version:012d}-{spec.operator_id}-i*-e{spec.epoch}-a*[0-9]-{kind}.json"):
        left.append(path.read_text())
        path.unlink()
    return left


def _per_slot(rows: pa.RecordBatch) -> tuple[tuple[int, int], ...]:
    if not rows.num_rows:
        return ()
    counts = np.bincount(slot_of(hashes(rows)), weights=_weights(rows), minlength=SLOTS).astype(np.int64)
    slots = np.flatnonzero(counts)
    return tuple(zip(slots.tolist(), counts[slots].tolist(), strict=True))


def _per_hash(rows: pa.RecordBatch, per_slot: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The heaviest keys of the slots that are much of all: should such a slot have to be cut, it is around these."""
    total, weights = sum(count for _, count in per_slot), _weights(rows)
    heavy = [slot for slot, count in per_slot if count > HEAVY_SLOT * total]
    if not heavy:
        return ()
    h, heaviest = hashes(rows), []
    slots = slot_of(h)
    for slot in heavy:
        mine = np.flatnonzero(slots == slot)
        each, which = np.unique(h[mine], return_inverse=True)
        counts = np.bincount(which, weights=None if weights is None else weights[mine])
        heaviest += [(int(each[at]), int(counts[at])) for at in np.argsort(-counts)[:HEAVY_KEYS]]
    return tuple(heaviest)


def _weights(rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """How many of the user's rows each is, where they were combined."""
    return rows.column(ROWS).to_numpy() if ROWS in rows.schema.names else None


def _private_bytes() -> int:
    """Memory of this process that is its own: mapped state is shared with the page cache and does not count."""
    try:
        with open("/proc/self/status") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
