"""A query's checkpoint on disk: identity, versions, garbage collection."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointMismatchError, StorageError, require
from headrace.ids import NO_TOKEN, NO_VERSION, OperatorId, StoreId, Version
from headrace.logs import logger
from headrace.runtime.fencing import Fence, token_of, version_of
from headrace.runtime.identity_file import BEFORE, IDENTITY_FORMAT, SINCE, in_effect, of_state, read_identity, write_identity
from headrace.runtime.leases import leased_versions, take_lease
from headrace.runtime.noted_routing import NotedRouting
from headrace.runtime.places import IDENTITY, Places
from headrace.runtime.private import private_folder
from headrace.runtime.safety.chain import check_chain, check_journal, check_remembers, links, since_needed
from headrace.runtime.spark_log import SparkLog, check_together
from headrace.state.disk import disk_errors
from headrace.state.durable import FolderStore, at_once
from headrace.state.gaps import GapLog
from headrace.state.journal import Journal, Record
from headrace.state.layout import Layout
from headrace.state.manifest import Manifest, ManifestStore
from headrace.state.open_runs import OPEN
from headrace.state.requests import Settings
from headrace.state.routing import Routing

FOLDERS = ("runs", "staged")
"""What tasks write."""
FEW = 4
"""In a store behind a network, old versions are removed when there are so many."""
ROUTING = "routing.json"
_log = logger(__name__)


class Checkpoint:
    """The ``headrace`` folder of a checkpoint location."""

    def __init__(self, location: str, *, state: str = "", settings: Callable[[], Settings] = Settings) -> None:
        """``state`` is ``headrace.stateLocation``, if it was given; ``settings`` gives how to reach stores behind a network."""
        self.places = Places.of(location, state, settings)
        self.location = self.places.location
        self.store = self.places.store
        """The durable store."""
        self.manifests = ManifestStore(self.store)
        self.journal = Journal(self.store)
        self.gaps = GapLog(self.store)
        self._wanted: dict[str, Any] = {}
        self._kept = False
        self.fence = Fence(self.location, self.private, self.store)
        self.spark_log = SparkLog(self.places.logs, self.location)
        self.noted = NotedRouting(self.store, ROUTING)
        self._files: dict[Version, set[tuple[str, str]]] = {}
        self._swept = False
        self.beside = ThreadPoolExecutor(4, "headrace-store")
        """What is asked of a store behind a network while a batch runs."""
        self._collecting: Future[None] | None = None
        self._ahead: tuple[Version, Future[Record | None]] | None = None
        self.current: Manifest | None = None
        """The newest version of a query whose state is made durable from time to time only. No manifest file names it yet."""

    @property
    def name(self) -> str:
        """The last part of the location, for people."""
        return self.location.rstrip("/").rpartition("/")[2]

    @classmethod
    def existing(cls, location: str) -> Checkpoint:
        """Open a checkpoint for reading. Raises an error if there is none."""
        found = cls(location)
        if not found.is_there:
            raise found.places.without_state()
        return found

    @property
    def is_there(self) -> bool:
        """True if a query has been started on this checkpoint."""
        return self.store.size(IDENTITY) is not None

    @property
    def directory(self) -> Path:
        """The folder ``headrace``, if the checkpoint is in a folder."""
        folder = self.store.local
        require(folder is not None, f"{self.location} is a folder")
        return folder or Path()

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    @property
    def staged(self) -> Path:
        return self.directory / "staged"

    @property
    def leases(self) -> Path:
        return self.directory / "leases"

    def private(self) -> Path:
        """A folder of this machine, for the lock and the address of the control endpoint."""
        return private_folder(self.location) if self.store.local is None else self.store.local

    def open(self, stores: dict[StoreId, tuple[Layout, dict[str, object]]], about: dict[str, Any]) -> None:
        """Create the folder, unless it is there. ``runtime/identity.py`` has checked that its state fits this query.

        ``stores`` are the layout and the description of every store, and ``about`` says which operators and sources these are.
        """
        wanted = {
            "format": IDENTITY_FORMAT,
            "id": uuid.uuid4().hex[:16],
            **about,
            "operators": {
                str(store): {"layout": describe_layout(layout), "fingerprint": layout.fingerprint, **about}
                for store, (layout, about) in stores.items()
            },
        }
        if self.is_there:
            wanted["id"] = self.identity().get("id") or wanted["id"]
        else:
            self._create(wanted)
        self._wanted = wanted

    def query_id(self) -> str:
        """A name for the query that no other checkpoint has, unless it is a copy of this one. It stays through restarts."""
        return str(self._wanted["id"])

    def _create(self, wanted: dict[str, Any]) -> None:
        with _own_folder(self.location):
            if self.spark_log.newest("offsets") is not None:
                raise CheckpointMismatchError(
                    where=self.location,
                    wanted="an empty location or a checkpoint of this query",
                    found="a checkpoint of a plain Spark query",
                    hint="give the query a checkpointLocation of its own, or carry its state over: headrace migrate FILE.py OLD NEW",
                )
            if self.store.local is not None:
                for folder in (self.manifests.directory, self.runs, self.staged, self.leases):
                    folder.mkdir(parents=True, exist_ok=True)
            self.places.note()
            write_identity(self.store, wanted)

    def keep_identity(self) -> None:
        """Write to query.json what has changed since the last start: names, stores, and operators that were added or removed.

        Only the owner of the checkpoint may call this. If the state changes, it is called with the first commit. Until that version is
        committed, the query before the change counts, so that it finds its state even if this start fails.
        """
        self._kept = True
        before, is_undone = self._identity()
        if is_undone or json.loads(json.dumps(self._wanted, default=str)) != before:
            self.fence.check("changing query.json")
            change = {BEFORE: before, SINCE: self._newest() + 1} if self.changes_state() else {}
            write_identity(self.store, {**self._wanted, **change})

    def changes_state(self) -> bool:
        """True if the checkpoint has versions, and the query has other operators, or other columns or descriptions of their state."""
        return self.has_versions() and of_state(self.identity()) != of_state(json.loads(json.dumps(self._wanted, default=str)))

    def _newest(self) -> Version:
        """The newest version; `NO_VERSION` if there is none."""
        return max((*self.manifests.versions()[-1:], *self.journal.versions()[-1:]), default=NO_VERSION)

    def lock(self) -> None:
        """Raise an error if the lock file says that a query runs on this checkpoint. That query is not disturbed."""
        self.fence.lock()

    def claim(self) -> None:
        """Become the only writer of this checkpoint, until `release`, or until another query takes over."""
        self.fence.claim()
        if isinstance(self.store, FolderStore):
            self.store.mark = self.fence.writer
        if self.store.local is None:
            # From now on nobody else writes manifests, so lists are not needed.
            self.manifests.own()
        _log.info("this query has fencing token %s", self.fence.token, query=self.location)

    def release(self) -> None:
        """Free the checkpoint for another query. Any thread may call this, any number of times."""
        self.beside.shutdown(wait=True)
        self.fence.release()
        if self.store.local is not None:
            OPEN.close_all(self.runs)

    def check_logs(self, *, replays: bool = True) -> None:
        """Raise an error unless the kept versions form a chain and match Spark's log. ``replays``: the journal must have no holes."""
        check_chain(links(self.manifests, self.journal))
        if replays:
            check_remembers(self.location, self.journal, self.manifests.versions())
            since = since_needed(self.journal, self.spark_log.newest("commits"))
            check_journal(self.location, self.manifests.versions(), self.journal.versions(), since)
        check_together(self.spark_log, self.newest_facts())

    def newest_facts(self) -> Manifest | None:
        """What is known about the newest version, from its manifest, or from its record in the journal, which has no state."""
        durable, journaled = self.manifests.versions(), self.journal.versions()
        if journaled and (not durable or journaled[-1] > durable[-1]):
            record = self.journal.read(journaled[-1])
            return None if record is None else record.facts
        return self.manifests.read(durable[-1]) if durable else None

    def has_versions(self) -> bool:
        """True if a batch of the query was ever committed."""
        return bool(self.manifests.versions() or self.journal.versions())

    def origin(self, version: Version, before: Manifest | None) -> dict[str, Any]:
        """The fields of a manifest that say where it comes from: Spark's log of the batch, the writer, the version before."""
        return {
            "offsets": self.spark_log.needed_offsets(version),
            "source_entries": self.spark_log.entries_since(before),
            "query_id": self.spark_log.query_id(),
            "token": self.fence.token or NO_TOKEN,
            "previous_crc": before.crc if before else None,
        }

    def origin_soon(self, version: Version, before: Manifest | None) -> Callable[[], dict[str, Any]]:
        """Like ``origin``, which is found out while the batch runs if it takes requests. Spark has written its logs by then."""
        if self.places.logs.local is not None:
            return lambda: self.origin(version, before)
        return self.beside.submit(self.origin, version, before).result

    def commit(self, manifest: Manifest, *, sync: bool) -> Manifest:
        """Write a version's manifest, which makes the version exist. Raises an error if this query is no longer the writer."""
        self._may_commit(manifest, sync)
        committed = self.manifests.commit(manifest, sync=sync)
        _log.debug("committed", query=self.location, version=manifest.version)
        return committed

    def commit_record(self, record: Record, *, sync: bool) -> Record:
        """Write a version's record in the journal. Its state is on executors, and a checkpoint makes it durable later."""
        self._may_commit(record.facts, sync)
        written = self.journal.write(record, sync=sync)
        _log.debug("committed in the journal", query=self.location, version=record.version)
        return written

    def _may_commit(self, facts: Manifest, sync: bool) -> None:
        if sync:
            self.spark_log.sync(facts.version, facts.source_entries)
        self.fence.check(f"committing version {facts.version}")
        if self._wanted and not self._kept:
            self.keep_identity()

    def undo_undelivered(self) -> None:
        """Forget the newest version if Spark has not committed its batch, which is then computed anew. Call it while no query runs."""
        newest, delivered = self._newest(), self.spark_log.newest("commits")
        if newest != NO_VERSION and (delivered is None or delivered < newest):
            self.store.delete(self.manifests.key(newest), self.journal.key(newest))
            self.current = None

    def identity(self) -> dict[str, Any]:
        """What query.json says of the query that wrote the newest version. Raises an error if it is damaged or of another format."""
        return self._identity()[0]

    def _identity(self) -> tuple[dict[str, Any], bool]:
        """The identity, and True if the file also has a change of the query that no version was made with."""
        return in_effect(read_identity(self.store), self._newest)

    def ask_ahead(self, version: Version) -> None:
        """Called when a batch begins: look for the version's record while its manifest is looked for, if that takes requests."""
        self._ahead = None if self.store.local is not None else (version, self.beside.submit(self.journal.read, version))

    def record_of(self, version: Version) -> Record | None:
        """The record of the batch's version in the journal; None if there is none."""
        if self._ahead is None or self._ahead[0] != version:
            return self.journal.read(version)
        found, self._ahead = self._ahead[1].result(), None
        return found

    def collect_soon(self, collect: Callable[[], None]) -> None:
        """Remove what is old: at once, or beside the next batch if that takes requests. Then that batch raises the errors, at its end."""
        if self.store.local is not None:
            collect()
            return
        if self._collecting is not None:
            self._collecting.result()
        self._collecting = self.beside.submit(collect)

    def collect_garbage(self, keep: int) -> None:
        """Remove versions that are neither among the newest nor leased, and the files that only they needed."""
        self.fence.check("removing old versions")
        if not self._swept:
            # Remove what earlier attempts at this version left. It is committed now, so those attempts can no longer commit.
            self.sweep()
            self._swept = True
        versions = self.manifests.versions()
        old = versions[:-keep]
        if len(old) < (FEW if self.store.local is None else 1):
            return
        leased = self.leased()
        stale = [v for v in old if v not in leased]
        if not stale:
            return
        files = {v: self.files_of(v) for v in versions}
        # Manifests are removed first, so that no reader sees a version without its files. A reader takes its lease before it reads the
        # manifest. So a reader that came meanwhile finds no manifest, or its lease is seen now and the version is restored.
        retired: dict[Version, bytes] = {}
        at_once(self.store, [partial(self._retire, version, retired) for version in stale])
        wanted = self.leased().intersection(stale)
        for version in wanted:
            self.manifests.restore(version, retired[version])
        kept = set().union(*(files[v] for v in versions if v not in stale or v in wanted), set())
        gone = [version for version in stale if version not in wanted]
        self.store.delete(*(f"{folder}/{file}" for version in gone for folder, file in files[version] - kept))
        for version in gone:
            self._files.pop(version, None)

    def _retire(self, version: Version, retired: dict[Version, bytes]) -> None:
        retired[version] = self.manifests.retire(version)

    def files_of(self, version: Version) -> set[tuple[str, str]]:
        """The (folder, file) pairs that a version needs. Manifests do not change, so each is read once."""
        if version not in self._files:
            self._files[version] = self.manifests.read(version).files()
        return self._files[version]

    def remember(self, manifest: Manifest) -> None:
        """Keep a manifest's file names, so that garbage collection need not read it from disk."""
        self._files[manifest.version] = manifest.files()

    def sweep(self) -> int:
        """Remove files that no manifest names, such as those of crashed attempts. Returns how many. Call it only while no batch runs.

        Files of versions that are not committed stay, because their writer may be about to commit. So do files of a query that has taken
        over from this one.
        """
        self.fence.check("removing files that no version names")
        versions, mine = self.manifests.versions(), self.fence.token or NO_TOKEN
        needed: set[tuple[str, str]] = set().union(*(self.files_of(v) for v in versions), set())
        unnamed = []
        for folder in FOLDERS:
            for name in (key.rpartition("/")[2] for key in self.store.keys(f"{folder}/")):
                committed = bool(versions) and version_of(name) <= versions[-1]
                if committed and token_of(name) <= mine and (folder, name) not in needed:
                    unnamed.append(f"{folder}/{name}")
        self.store.delete(*unnamed)
        for prefix in (self.manifests.PREFIX, self.journal.PREFIX, *(f"{folder}/" for folder in FOLDERS)):
            self.store.clean(prefix, lambda mark: token_of(f"-e{mark}.") <= mine)
        if unnamed:
            _log.info("removed %d files that no version names", len(unnamed), query=self.location)
        return len(unnamed)

    def lease(self, version: Version) -> str:
        """Pin a version: garbage collection leaves it alone until the lease is deleted, its process ends or an hour has passed.

        Returns the lease's key in the store.
        """
        return take_lease(self.store, version)

    def leased(self) -> set[Version]:
        """The versions that readers still need."""
        return leased_versions(self.store)

    def latest(self) -> Manifest | None:
        """The manifest of the newest version; None if there is none."""
        if self.current is not None:
            return self.current
        versions = self.manifests.versions()
        return self.manifests.read(versions[-1]) if versions else None

    def routing(self) -> dict[OperatorId, Routing]:
        """The routing of each operator: that of the newest version, or a change that was made after it."""
        latest = self.newest_facts()
        found = dict(latest.routing) if latest else {}
        noted = self.noted.read()
        return found | {name: routing for name, routing in noted.items() if name not in found or routing.epoch > found[name].epoch}

    def note_routing(self, routing: dict[OperatorId, Routing]) -> None:
        """Write a changed routing to disk, so that a restart keeps it. The next version will contain it."""
        self.fence.check("changing the routing")
        self.noted.write(routing)


def describe_layout(layout: Layout) -> list[str]:
    """A layout as text, one line per column."""
    return [f"{f.name}: {f.type}" for f in layout.schema]


@contextlib.contextmanager
def _own_folder(location: str) -> Iterator[None]:
    """Inside, an error of the disk becomes one that says what is wrong with the checkpointLocation."""
    wanted = "a checkpointLocation: a folder that can be made, or that the query may write to"
    try:
        with disk_errors(location, wanted):
            yield
    except (FileExistsError, FileNotFoundError) as refused:
        hint = "a file is in the way: give the path of a folder, or remove the file"
        raise StorageError(path=location, wanted=wanted, found=f"{refused.strerror}: {refused.filename}", hint=hint) from refused
