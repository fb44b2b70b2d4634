"""Moving a query over from plain Spark: its logs, offsets, watermark and state, from Spark's checkpoint into a new one of ours.

The old checkpoint is only read. The new one begins with a version that stands for the last batch that Spark has committed:

    Spark's log       offsets, commits and the sources' logs are copied, with the sources in the order in which our query reads them
    the watermark     the version has the watermark of that batch, and the watermarks that the batch has reached take effect in the next one
    the state         Spark's reader gives the rows of each store, and they become runs that are older than all others

So the next batch begins where Spark has stopped, and what has fallen due in the meantime is emitted with it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from headrace.compile.dataflow import Op
from headrace.compile.migration import aggregates, duplicates, joins, user_states
from headrace.compile.migration.registry import Carried, carried
from headrace.errors import CheckpointError, UnsupportedError
from headrace.graph.nodes import Rows, SharedNode, StatefulNode, UnionNode
from headrace.ids import OperatorId, StoreId, Version
from headrace.runtime.checkpoint import FOLDER, Checkpoint, local_path
from headrace.runtime.identity import recognise
from headrace.runtime.initial import write_rows
from headrace.runtime.spark_log import NO_OFFSET, SparkLog
from headrace.runtime.start import QueryPlan, first_routing, stores_of
from headrace.spark.plan_text import sources_in
from headrace.spark.spark_state import SparkState, states_of
from headrace.state.manifest import Counters, Manifest, StoreState
from headrace.state.run import RunRef

BUILT_IN = (aggregates, duplicates, joins, user_states)
"""The modules that carry state over. Importing a module registers its functions."""


@dataclass(frozen=True)
class Part:
    """One operator that is carried over."""

    op: Op
    state: SparkState
    stores: Carried


@dataclass(frozen=True)
class Migration:
    """What is carried over from one checkpoint."""

    plan: QueryPlan
    old: Path
    batch: Version
    """The last batch that Spark has committed."""
    watermark_ms: int
    """The watermark by which that batch closed windows."""
    reached_ms: int
    """The watermark after it."""
    sources: tuple[int, ...]
    """For each source of ours its place among Spark's."""
    parts: tuple[Part, ...]

    def write(self, new: str) -> dict[StoreId, int]:
        """Write the new checkpoint; returns the number of rows of each store. If this fails, nothing is left of it."""
        target = local_path(new)
        if target.exists() and any(target.iterdir()):
            raise CheckpointError(where=str(target), wanted="a folder that does not exist yet, or is empty", found="files")
        existed = target.exists()
        try:
            return self._write(Checkpoint(new))
        except BaseException:
            shutil.rmtree(target if not existed else target / FOLDER, ignore_errors=True)
            raise

    def counted(self) -> dict[StoreId, int]:
        """The number of rows of each store, without writing them."""
        return {StoreId(part.op.id, name): rows.count() for part in self.parts for name, rows in part.stores.items()}

    def offsets(self) -> list[tuple[str, str]]:
        """Our sources, each with the offset from which it goes on."""
        stored = SparkLog(self.old).needed_offsets(self.batch)
        texts = sources_in(self.plan.flow.streaming)
        return [(text, stored[at] or "its beginning") for text, at in zip(texts, self.sources, strict=True)]

    def _write(self, checkpoint: Checkpoint) -> dict[StoreId, int]:
        plan, config = self.plan, self.plan.config
        found = recognise(plan.flow, checkpoint, config.operatorChanges)
        checkpoint.open(stores_of(found.flow), found.about)
        checkpoint.claim()
        try:
            self._copy_logs(checkpoint.location)
            runs: dict[StoreId, tuple[RunRef, ...]] = {}
            keys: dict[OperatorId, int] = {}
            for part in self.parts:
                for name, store in part.op.plan.operator.stores.items():
                    written: tuple[tuple[RunRef, ...], int] = (), 0
                    if name in part.stores:
                        prefix = f"migrated-{part.op.id}{f'.{name}' if name else ''}-e{checkpoint.fence.writer}"
                        written = write_rows(part.stores[name], checkpoint.runs, prefix, store.layout, config.durable)
                    runs[StoreId(part.op.id, name)] = written[0]
                    if len(part.op.plan.operator.stores) == 1:
                        keys[part.op.id] = written[1]
            checkpoint.commit(
                Manifest(
                    version=self.batch,
                    writer=checkpoint.fence.writer,
                    stores={store: StoreState(refs, self.watermark_ms) for store, refs in runs.items()},
                    watermark_ms=self.watermark_ms,
                    watermark_nodes_ms=(self.reached_ms,) if self.reached_ms else (),
                    routing=first_routing(found.flow, config, plan.session, {}, plan.run.elastic),
                    **checkpoint.origin(self.batch, None),
                    checkpoint_version=self.batch,
                    counters=Counters(keys=keys),
                ),
                sync=config.durable,
            )
            return {store: sum(ref.rows for ref in refs) for store, refs in runs.items()}
        finally:
            checkpoint.release()

    def _copy_logs(self, target: Path) -> None:
        """Spark's logs, with the sources in our order."""
        for name in ("metadata", ".metadata.crc"):
            if (self.old / name).exists():
                shutil.copy2(self.old / name, target / name)
        shutil.copytree(self.old / "commits", target / "commits")
        (target / "offsets").mkdir()
        for path in (self.old / "offsets").iterdir():
            if path.name.isdigit():
                head, lines = path.read_text().split("\n")[:2], path.read_text().split("\n")[2:]
                (target / "offsets" / path.name).write_text("\n".join([*head, *(lines[at] for at in self.sources)]))
        for place, at in enumerate(self.sources):
            if (self.old / "sources" / str(at)).exists():
                shutil.copytree(self.old / "sources" / str(at), target / "sources" / str(place))


def planned_migration(plan: QueryPlan, frame: DataFrame, old: str) -> Migration:
    """Read Spark's checkpoint and match it with the query. ``frame`` is the DataFrame that Spark ran. Writes nothing."""
    location = local_path(old)
    if (location / FOLDER).exists():
        raise CheckpointError(where=str(location), wanted="a checkpoint of plain Spark", found="one of Headrace")
    log = SparkLog(location)
    last = log.newest("commits")
    if last is None:
        raise CheckpointError(where=str(location), wanted="a checkpoint of a query that has finished a batch", found="no commits")
    batch = Version(last)
    offsets = log.needed_offsets(batch)
    states = states_of(plan.session, location, batch)
    nodes = [node for output in plan.outputs for node in _nodes(output.rows)]
    if len(states) != len(nodes):
        raise UnsupportedError(
            where=plan.run.where,
            wanted=f"the {len(states)} operators whose state is in {location}: {', '.join(each.name for each in states)}",
            found=f"{len(nodes)}: {', '.join(type(each).__name__.removesuffix('Node') for each in nodes)}",
            hint="the program must be the one that wrote the checkpoint",
        )
    ops = {id(op.node): op for op in plan.flow.ops}
    parts: dict[int, Part] = {}
    for node, state in zip(nodes, states, strict=True):
        # Spark computes a part that is read twice two times, and has its state twice.
        if id(node) not in parts:
            op = ops[id(node)]
            parts[id(node)] = Part(op, state, carried(node, op.plan, state))
    sources = _source_order(plan, frame, len(offsets), location)
    used, reached = _watermarks(location, last)
    return Migration(plan, location, batch, used, reached, sources, tuple(parts.values()))


def _nodes(rows: Rows) -> Iterator[StatefulNode]:
    """The operators of a query in the order of Spark's numbers: each before those that it reads, the left side before the right one."""
    node = rows.origin
    if node is None:
        return
    if isinstance(node, SharedNode):
        yield from _nodes(node.input)
        return
    if not isinstance(node, UnionNode):
        yield node
    for each in node.inputs:
        yield from _nodes(each)


def _watermarks(location: Path, batch: int) -> tuple[int, int]:
    """The watermark that a batch of Spark's used, and the one that it reached."""
    used = json.loads((location / "offsets" / str(batch)).read_text().split("\n")[1]).get("batchWatermarkMs", 0)
    reached = json.loads((location / "commits" / str(batch)).read_text().split("\n")[1] or "{}").get("nextBatchWatermarkMs", 0)
    return int(used), max(int(used), int(reached))


def _source_order(plan: QueryPlan, frame: DataFrame, stored: int, location: Path) -> tuple[int, ...]:
    """For each source of ours its place among Spark's. A source that Spark reads twice must have been read equally far."""
    theirs, ours = sources_in(frame), sources_in(plan.flow.streaming)
    if len(theirs) != stored:
        raise UnsupportedError(
            where=str(location), wanted=f"a program with the {stored} sources whose offsets are here", found="; ".join(theirs) or "none"
        )
    log = SparkLog(location)
    found: list[int] = []
    for text in ours:
        same = [at for at, each in enumerate(theirs) if each == text]
        free = [at for at in same if at not in found]
        if not free:
            raise UnsupportedError(where=str(location), wanted="; ".join(theirs), found=text, hint="the sources must be the same")
        found.append(free[0])
    for at in (at for at in range(stored) if at not in found):
        twin = next(each for each in found if theirs[each] == theirs[at])
        for number in log.numbers("offsets"):
            offsets = log.offsets(Version(number)) or ()
            if offsets[at] != offsets[twin] or not _same_entries(location / "sources", at, twin):
                raise UnsupportedError(
                    "Spark has read this source twice, and we read it once",
                    where=str(location),
                    wanted="both to have read the same rows in each batch",
                    found=f"{offsets[twin] or NO_OFFSET} and {offsets[at] or NO_OFFSET} in batch {number}",
                )
    return tuple(found)


def _same_entries(sources: Path, one: int, other: int) -> bool:
    """True if the logs of two sources have the same files in each batch. Sources other than files have no log."""

    def entries(at: int) -> dict[str, set[tuple[object, object]]]:
        folder = sources / str(at)
        paths = [path for path in folder.iterdir() if path.name.removesuffix(".compact").isdigit()] if folder.exists() else []
        read = {path.name: [json.loads(line) for line in path.read_text().split("\n")[1:] if line] for path in paths}
        return {name: {(each.get("path"), each.get("batchId")) for each in lines} for name, lines in read.items()}

    return entries(one) == entries(other)
