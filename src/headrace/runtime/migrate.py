"""Moving a query over from plain Spark: its logs, offsets, watermark and state, from Spark's checkpoint into a new one of ours.

The old checkpoint is only read. The new one begins with a version that stands for the last batch that Spark has committed:

    Spark's log       offsets, commits and the sources' logs are copied, with the sources in the order in which our query reads them
    the watermark     the version has the watermark of that batch, and the watermarks that the batch has reached take effect in the next one
    the state         Spark's reader gives the rows of each store, and they become runs that are older than all others

So the next batch begins where Spark has stopped, and what has fallen due in the meantime is emitted with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.compile.dataflow import Op
from headrace.compile.migration import aggregates, duplicates, joins, user_states
from headrace.compile.migration.registry import Carried, carried
from headrace.errors import CheckpointError, UnsupportedError
from headrace.graph.nodes import Rows, SharedNode, StatefulNode, UnionNode
from headrace.ids import OperatorId, StoreId, Version
from headrace.runtime.changes import Policy
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.identity import recognise
from headrace.runtime.initial import write_rows
from headrace.runtime.places import CHECKPOINT_OPTION, FOLDER, IDENTITY
from headrace.runtime.spark_log import COMPACT, NO_OFFSET, SparkLog
from headrace.runtime.start import QueryPlan, first_routing, settings_of, stores_of, streaming_of
from headrace.spark.hadoop import check_file_system, for_hadoop
from headrace.spark.plan_text import sources_in
from headrace.spark.spark_state import SparkState, states_of
from headrace.state.durable import DurableStore
from headrace.state.manifest import Counters, Manifest, StoreState
from headrace.state.run import RunRef
from headrace.state.stores import address_of, open_store

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
    old: str
    """Where Spark's checkpoint is."""
    logs: DurableStore
    """Spark's checkpoint."""
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
        """Write the new checkpoint; returns the number of rows of each store. If this fails, its files are removed."""
        session, config = self.plan.session, self.plan.config
        checkpoint = Checkpoint(new, state=config.stateLocation, settings=lambda: settings_of(session, config.storeRequestSeconds))
        check_file_system(session, checkpoint.location)
        stores = (checkpoint.places.logs, checkpoint.store)
        if any(_everything(store) for store in stores):
            raise CheckpointError(where=checkpoint.location, wanted="a place that does not exist yet, or is empty", found="files")
        try:
            return self._write(checkpoint)
        except BaseException:
            for store in stores:
                store.delete(*_everything(store))
            raise

    def counted(self) -> dict[StoreId, int]:
        """The number of rows of each store, without writing them."""
        return {StoreId(part.op.id, name): rows.count() for part in self.parts for name, rows in part.stores.items()}

    def offsets(self) -> list[tuple[str, str]]:
        """Our sources, each with the offset from which it goes on."""
        stored = SparkLog(self.logs, self.old).needed_offsets(self.batch)
        texts = sources_in(self.plan.flow.streaming)
        return [(text, stored[at] or "its beginning") for text, at in zip(texts, self.sources, strict=True)]

    def _write(self, checkpoint: Checkpoint) -> dict[StoreId, int]:
        plan, config = self.plan, self.plan.config
        found = recognise(plan.flow, checkpoint, Policy())
        checkpoint.open(stores_of(found.flow), found.about)
        checkpoint.claim()
        try:
            self._copy_logs(checkpoint.places.logs)
            runs: dict[StoreId, tuple[RunRef, ...]] = {}
            keys: dict[OperatorId, int] = {}
            for part in self.parts:
                for name, store in part.op.plan.operator.stores.items():
                    written: tuple[tuple[RunRef, ...], int] = (), 0
                    if name in part.stores:
                        prefix = f"migrated-{part.op.id}{f'.{name}' if name else ''}-e{checkpoint.fence.writer}"
                        written = write_rows(part.stores[name], checkpoint.store.below("runs"), prefix, store.layout, config.durable)
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

    def _copy_logs(self, target: DurableStore) -> None:
        """Spark's logs, with the sources in our order."""
        log = SparkLog(self.logs, self.old)
        keys = ["metadata", *(f"commits/{number}" for number in log.numbers("commits"))]
        copied = {key: key for key in keys}
        for place, at in enumerate(self.sources):
            copied |= {key: f"sources/{place}/{key.rpartition('/')[2]}" for key in self.logs.keys(f"sources/{at}/")}
        data = {name: self.logs.get(key) for key, name in copied.items()}
        # A source of our own, which only makes batches come, begins now.
        own = [NO_OFFSET] * (len(sources_in(streaming_of(self.plan.flow))) - len(self.sources))
        for number in log.numbers("offsets"):
            lines = self.logs.get(f"offsets/{number}").decode().split("\n")
            data[f"offsets/{number}"] = "\n".join([*lines[:2], *(lines[2 + at] for at in self.sources), *own]).encode()
        for name, content in data.items():
            if target.local is not None:
                (target.local / name).parent.mkdir(parents=True, exist_ok=True)
            target.put(name, content)


def _everything(store: DurableStore, prefix: str = "") -> list[str]:
    """All keys of a store."""
    below = [key for folder in store.folders(prefix) for key in _everything(store, f"{prefix}{folder}/")]
    return [key for key in store.keys(prefix) if key.removeprefix(prefix) not in store.folders(prefix)] + below


def planned_migration(plan: QueryPlan, frame: DataFrame, old: str) -> Migration:
    """Read Spark's checkpoint and match it with the query. ``frame`` is the DataFrame that Spark ran. Writes nothing."""
    session = plan.session
    location = address_of(old, CHECKPOINT_OPTION)
    check_file_system(session, location)
    logs = open_store(location, settings_of(session, plan.config.storeRequestSeconds))
    if logs.size(f"{FOLDER}/{IDENTITY}") is not None:
        raise CheckpointError(where=location, wanted="a checkpoint of plain Spark", found="one of Headrace")
    log = SparkLog(logs, location)
    last = log.newest("commits")
    if last is None:
        raise CheckpointError(where=location, wanted="a checkpoint of a query that has finished a batch", found="no commits")
    batch = Version(last)
    offsets = log.needed_offsets(batch)
    states = states_of(session, for_hadoop(location), batch)
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
    sources = _source_order(plan, frame, len(offsets), log)
    used, reached = _watermarks(logs, last)
    return Migration(plan, location, logs, batch, used, reached, sources, tuple(parts.values()))


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


def _watermarks(logs: DurableStore, batch: int) -> tuple[int, int]:
    """The watermark that a batch of Spark's used, and the one that it reached."""

    def noted(log: str, name: str) -> int:
        return int(json.loads(logs.get(f"{log}/{batch}").decode().split("\n")[1] or "{}").get(name, 0))

    used, reached = noted("offsets", "batchWatermarkMs"), noted("commits", "nextBatchWatermarkMs")
    return used, max(used, reached)


def _source_order(plan: QueryPlan, frame: DataFrame, stored: int, log: SparkLog) -> tuple[int, ...]:
    """For each source of ours its place among Spark's. A source that Spark reads twice must have been read equally far."""
    theirs, ours = sources_in(frame), sources_in(plan.flow.streaming)
    where = log.location
    if len(theirs) != stored:
        found = "; ".join(theirs) or "none"
        raise UnsupportedError(where=where, wanted=f"a program with the {stored} sources whose offsets are here", found=found)
    places: list[int] = []
    for text in ours:
        free = [at for at, each in enumerate(theirs) if each == text and at not in places]
        if not free:
            raise UnsupportedError(where=where, wanted="; ".join(theirs), found=text, hint="the sources must be the same")
        places.append(free[0])
    for at in (at for at in range(stored) if at not in places):
        twin = next(each for each in places if theirs[each] == theirs[at])
        for number in log.numbers("offsets"):
            offsets = log.needed_offsets(Version(number))
            if offsets[at] != offsets[twin] or _entries(log.store, at) != _entries(log.store, twin):
                raise UnsupportedError(
                    "Spark has read this source twice, and we read it once",
                    where=where,
                    wanted="both to have read the same rows in each batch",
                    found=f"{offsets[twin] or NO_OFFSET} and {offsets[at] or NO_OFFSET} in batch {number}",
                )
    return tuple(places)


def _entries(logs: DurableStore, source: int) -> dict[str, set[tuple[str, int]]]:
    """The files that a source's log lists, by entry. Sources other than files have no log."""
    keys = [key for key in logs.keys(f"sources/{source}/") if key.rpartition("/")[2].removesuffix(COMPACT).isdigit()]
    read = {key.rpartition("/")[2]: logs.get(key).decode().split("\n")[1:] for key in keys}
    return {
        name: {(str(each.get("path")), int(each.get("batchId", -1))) for each in map(json.loads, filter(None, lines))}
        for name, lines in read.items()
    }
