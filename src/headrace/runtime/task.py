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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.ids import SLOTS, slot_of
from headrace.operators.aggregate import ROWS
from headrace.operators.kernel import Applied, Moment, Operator, OutputMode, View
from headrace.runtime.failpoints import fail_point
from headrace.runtime.reports import InstanceReport, error_text, to_text
from headrace.state.compact import Compactor
from headrace.state.layout import HASH, hashes
from headrace.state.manifest import StagedFile
from headrace.state.run import RunReader, RunRef, write_arrow, write_run
from headrace.state.slots import SlotRanges, clip, join

REPORT = "report"


@dataclass(frozen=True)
class TaskSpec:
    """All that an instance task needs to know; plain data, pickled into the task."""

    directory: str
    operator: Operator
    operator_id: str
    version: int
    epoch: str
    moment: Moment
    refs: tuple[RunRef, ...]
    routing: tuple[SlotRanges, ...]
    ones: tuple[str, ...]
    counts_rows: str | None
    sync: bool
    depth_max: int
    compact_rows: int
    compact_factor: float
    direct: bool
    """Results go straight on to the sink instead of being staged (only for a sink that keeps nothing)."""
    until_ms: int | None = None
    """Set for the flush: no input, close what falls due up to this watermark."""


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
        instance, attempt = context.partitionId(), context.taskAttemptId()
        try:
            results, report = self.run(batches, instance, attempt)
        except HeadraceError as error:
            results, text = [], error_text(error)
        else:
            text = to_text(report)
        if not self.spec.direct:
            yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=[REPORT])
            return
        yield from results
        path = Path(self.spec.directory) / "staged" / Names(self.spec, instance, attempt).report()
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").rename(path)

    def run(self, batches: Iterator[pa.RecordBatch], instance: int, attempt: int) -> tuple[list[pa.RecordBatch], InstanceReport]:
        spec = self.spec
        fail_point("task-begin", spec.version)
        began, cpu_began = time.perf_counter(), time.process_time()
        names = Names(spec, instance, attempt)
        ranges = spec.routing[instance]
        reader = RunReader(Path(spec.directory) / "runs", spec.operator.layout)
        rows = self._read(batches)
        with self._phase("clip"):
            view = View(reader, clip(spec.refs, ranges, reader), ranges)
        with self._phase("kernel"):
            applied = self._apply(rows, view)
        with self._phase("write"):
            fail_point("run-before", spec.version)
            new = self._write_changed(applied, names, ranges, reader)
            fail_point("run-after", spec.version)
            staged, results = self._stage(applied, new, names)
            fail_point("staged-after", spec.version)
        with self._phase("compact"):
            refs, compacted = self._compact([*new, *view.refs], reader, ranges, applied, names)
        fail_point("task-end", spec.version)
        report = InstanceReport(
            instance=instance,
            runs=tuple(join(refs)),
            staged=tuple(staged),
            rows=applied.rows,
            rows_shuffled=rows.num_rows,
            rows_late=applied.rows_late,
            rows_out=sum(s.rows for s in staged) + sum(r.num_rows for r in results),
            keys=applied.keys,
            keys_new=applied.keys_new,
            rows_per_slot=_per_slot(rows),
            cpu_s=time.process_time() - cpu_began,
            wall_s=time.perf_counter() - began,
            phases_ms=self.phases_ms,
            rows_compacted=compacted,
            private_bytes=_private_bytes(),
            host=socket.gethostname(),
        )
        return results, report

    def _read(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows of the batch for this instance, in the kernel's types."""
        with self._phase("read"):
            parts = [b for b in batches if b.num_rows and self.spec.until_ms is None]
            schema = self.spec.operator.layout.schema
            if not parts:
                return self.spec.operator.layout.empty()
            table = pa.Table.from_batches(parts).combine_chunks()
            columns = {name: table.column(name).chunk(0) for name in table.schema.names}
            for name in self.spec.ones:
                if name not in columns:
                    columns[name] = pa.array(np.ones(table.num_rows, dtype=np.int64))
            if self.spec.counts_rows is not None:
                columns[ROWS] = columns[self.spec.counts_rows]
            columns[HASH] = columns[HASH].view(pa.uint64())
            for field_ in schema:
                if columns[field_.name].type != field_.type:
                    columns[field_.name] = columns[field_.name].cast(field_.type)
            return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _apply(self, rows: pa.RecordBatch, view: View) -> Applied:
        spec = self.spec
        if spec.until_ms is None:
            return spec.operator.apply(rows, view, spec.moment)
        return Applied(emitted=list(spec.operator.close(view, spec.moment, spec.until_ms)))

    def _write_changed(self, applied: Applied, names: Names, ranges: SlotRanges, reader: RunReader) -> list[RunRef]:
        spec = self.spec
        if applied.changed is None or not applied.changed.num_rows:
            return []
        ref = write_run(
            reader.directory, names.run(), applied.changed, spec.operator.layout, seq=spec.version, lo=0, hi=SLOTS, sync=spec.sync
        )
        # The rows all lie in the instance's own slots; a reference may only claim those.
        return clip([ref], ranges, reader if len(ranges) > 1 else None) if len(ranges) > 1 else [_claim(ref, ranges)]

    def _stage(self, applied: Applied, new: list[RunRef], names: Names) -> tuple[list[StagedFile], list[pa.RecordBatch]]:
        spec = self.spec
        names_out = spec.operator.output_schema.names
        if spec.direct:
            if applied.emits_changed:
                return [], [] if applied.changed is None else [applied.changed.select(names_out)]
            return [], applied.emitted
        if applied.emits_changed:
            rows = 0 if applied.changed is None else applied.changed.num_rows
            return [StagedFile(r.file, "runs", r.bytes, r.crc, rows) for r in new[:1]], []
        emitted = [rows for rows in applied.emitted if rows.num_rows]
        if not emitted:
            return [], []
        rows = pa.concat_batches(emitted)
        file = names.staged()
        length, crc = write_arrow(Path(spec.directory) / "staged" / file, rows, sync=spec.sync)
        return [StagedFile(file, "staged", length, crc, rows.num_rows)], []

    def _compact(
        self, refs: list[RunRef], reader: RunReader, ranges: SlotRanges, applied: Applied, names: Names
    ) -> tuple[list[RunRef], int]:
        spec = self.spec
        if spec.until_ms is not None:
            return refs, 0
        live_from = None if spec.moment.mode is OutputMode.COMPLETE else spec.operator.live_from(spec.moment.watermark_ms)
        changed = applied.changed.num_rows if applied.changed is not None else 0
        budget = max(spec.compact_rows, int(spec.compact_factor * changed))
        compactor = Compactor(
            reader.directory, spec.operator.layout, spec.operator.combine, reader, spec.depth_max, spec.sync, names.compacted, spec.version
        )
        return compactor.compact(refs, ranges, budget, live_from)

    def _phase(self, name: str) -> Phase:
        return Phase(self.phases_ms, name)


@dataclass
class Names:
    """File names that nobody else can give."""

    spec: TaskSpec
    instance: int
    attempt: int
    compactions: int = 0

    def run(self) -> str:
        return self._name("run")

    def staged(self) -> str:
        return self._name("flush" if self.spec.until_ms is not None else "out")

    def report(self) -> str:
        return self._name("flush-report" if self.spec.until_ms is not None else "report").replace(".arrow", ".json")

    def compacted(self) -> str:
        self.compactions += 1
        return self._name(f"c{self.compactions}")

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


def _claim(ref: RunRef, ranges: SlotRanges) -> RunRef:
    from dataclasses import replace

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
    weights = rows.column(ROWS).to_numpy() if ROWS in rows.schema.names else None
    counts = np.bincount(slot_of(hashes(rows)), weights=weights, minlength=SLOTS).astype(np.int64)
    slots = np.flatnonzero(counts)
    return tuple(zip(slots.tolist(), counts[slots].tolist(), strict=True))


def _private_bytes() -> int:
    """Memory of this process that is its own: mapped state is shared with the page cache and does not count."""
    try:
        with open("/proc/self/status") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
