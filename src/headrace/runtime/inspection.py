"""Reads a checkpoint from outside its query, also while the query runs. Needs no Spark."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import CheckpointError, StorageError, VersionNotFoundError
from headrace.ids import SLOTS, StoreId, Version
from headrace.logs import logger, suppressed
from headrace.operators.description import store_from
from headrace.operators.kernel import View
from headrace.operators.store import Store
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.conversion import Conversion
from headrace.state.durable import DurableStore
from headrace.state.layout import SUB, Layout
from headrace.state.manifest import Manifest
from headrace.state.run import RunReader
from headrace.state.slots import SlotRanges, clip
from headrace.state.working import Working

_TRIES = 5
_log = logger(__name__)


@contextlib.contextmanager
def pinned(checkpoint: Checkpoint, version: Version | None = None) -> Iterator[Manifest]:
    """The manifest of a version, by default the newest. It is leased inside the block, so that the query does not remove its files."""
    for attempt in range(_TRIES):
        kept = checkpoint.manifests.versions()
        if not kept:
            raise VersionNotFoundError(
                where=checkpoint.location, wanted="a version", found="none", hint="the query has not finished a batch yet"
            )
        chosen = kept[-1] if version is None else version
        with lease(checkpoint, chosen):
            try:
                manifest = checkpoint.manifests.read(chosen)
            except VersionNotFoundError:
                # A running query may have removed the version before it was leased.
                if version is not None or attempt == _TRIES - 1:
                    raise
                continue
            yield manifest
            return


@contextlib.contextmanager
def lease(checkpoint: Checkpoint, version: Version) -> Iterator[None]:
    """Lease a version inside the block. A read-only checkpoint is read without a lease."""
    try:
        held = checkpoint.lease(version)
    except (OSError, StorageError) as refused:
        # The checkpoint is read-only. No query can run on it, so nothing removes its files.
        _log.info("the version is read without a lease: %s", refused, query=checkpoint.location, version=version)
        yield
        return
    try:
        yield
    finally:
        with suppressed(_log, f"{held} cannot be removed", OSError, StorageError, query=checkpoint.location, version=version):
            checkpoint.store.delete(held)


@contextlib.contextmanager
def reading(runs: DurableStore, layout: Layout, earlier: Iterable[Conversion] = ()) -> Iterator[RunReader]:
    """A reader of runs, outside of the query's tasks. What a store behind a network has of them is fetched for as long as the block.

    ``earlier`` are the conversions of runs that were written with an earlier layout.
    """
    if runs.local is not None:
        yield RunReader(runs, layout, earlier=earlier)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-read-", ignore_cleanup_errors=True) as folder:
        yield RunReader(runs, layout, Working(Path(folder)), earlier=earlier)


def store_about(checkpoint: Checkpoint, store: StoreId) -> dict[str, Any]:
    """The entry of query.json about a store."""
    stores = checkpoint.identity().get("operators", {})
    if str(store) not in stores:
        found = f"the operators {', '.join(stores) or 'none'}"
        raise CheckpointError(where=checkpoint.location, wanted=f"the operator '{store}'", found=found)
    about: dict[str, Any] = stores[str(store)]
    return about


def _described(checkpoint: Checkpoint, wanted: StoreId) -> tuple[Store, dict[str, Any]]:
    """A store, and the user's names for its columns."""
    about = store_about(checkpoint, wanted)
    if "kernel" not in about:
        raise CheckpointError(
            where=checkpoint.location,
            wanted="a description of the operator's state in query.json",
            found="none: an older Headrace wrote this checkpoint",
            hint="read the state with query.state()",
        )
    return store_from(about["kernel"]), about["kernel"]["names"]


def state_schema(checkpoint: Checkpoint, wanted: StoreId) -> pa.Schema:
    """The columns that `state_rows` gives, under names that differ from one another."""
    store, names = _described(checkpoint, wanted)
    layout = store.layout
    keys = [(name, kind) for name, (_, kind) in zip(names["keys"], layout.keys, strict=bool(names["keys"]))]
    sub = [(names["sub"], pa.timestamp("us", tz="UTC"))] if layout.has_sub and names["sub"] else []
    values = [(name, kind) for name, (_, kind) in zip(names["values"], layout.values, strict=True)]
    columns = dict([*keys, *sub, *values])
    return pa.schema(list(columns.items()))


def state_rows(checkpoint: Checkpoint, manifest: Manifest, wanted: StoreId, slots: SlotRanges = ((0, SLOTS),)) -> Iterator[pa.RecordBatch]:
    """The merged state of a store in some slots, in pieces ordered by key hash, with the column names of the user."""
    store, names = _described(checkpoint, wanted)
    layout = store.layout
    earlier = [Conversion.from_json(each) for each in store_about(checkpoint, wanted).get("earlier", ())]
    live_from = store.lifetime.live_from(manifest.watermark_ms) if layout.has_sub else None
    with reading(checkpoint.store.below("runs"), layout, earlier) as reader:
        for rows in View(reader, clip(manifest.whole(wanted), slots), slots).scan(store, sub_min=live_from):
            # An aggregate of the whole stream has a constant key without a name. It is not shown.
            columns = dict(zip(names["keys"], (rows.column(name) for name in layout.key_names), strict=bool(names["keys"])))
            if layout.has_sub and names["sub"]:
                columns[names["sub"]] = rows.column(SUB).cast(pa.timestamp("us", tz="UTC"))
            columns |= dict(zip(names["values"], (rows.column(name) for name in layout.value_names), strict=True))
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
