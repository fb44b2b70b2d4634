"""A query's checkpoint on disk: identity, versions, garbage collection."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError, StateSchemaError, StorageError
from headrace.ids import NO_TOKEN, OperatorId, StoreId, Version
from headrace.logs import logger
from headrace.runtime.fencing import Fence, token_of, version_of
from headrace.runtime.leases import leased_versions, take_lease
from headrace.runtime.noted_routing import NotedRouting, body_crc
from headrace.runtime.safety.chain import check_chain, check_journal, check_remembers, links, since_needed
from headrace.runtime.spark_log import SparkLog, check_together
from headrace.state.disk import disk_errors, sync_file
from headrace.state.durable import FolderStore
from headrace.state.gaps import GapLog
from headrace.state.journal import Journal, Record
from headrace.state.layout import Layout
from headrace.state.manifest import Manifest, ManifestStore
from headrace.state.open_runs import OPEN
from headrace.state.routing import Routing

FOLDER = "headrace"
IDENTITY_FORMAT = 3
"""The format of query.json. 3: it identifies operators by name and fingerprint, and has a checksum."""
ROUTING = "routing.json"
IDENTITY = "query.json"
_log = logger(__name__)
_PARTS = {"identities": dict, "sources": list, "retired": list}


def local_path(location: str) -> Path:
    """The checkpoint location as a local path. Refuses URIs of other schemes than ``file:``."""
    if not location.strip():
        raise CheckpointError(where="checkpointLocation", wanted="a path", found="an empty string", hint="name a folder")
    url = urlparse(location)
    if url.scheme not in ("", "file"):
        raise CheckpointError(
            where=f"checkpointLocation {location!r}",
            wanted="a path, or a file: URI, that driver and executors share",
            found=f"the scheme {url.scheme!r}",
            hint="mount the storage, or keep the checkpoint on a local or network disk",
        )
    return Path(url.path if url.scheme else location).absolute()


class Checkpoint:
    """The ``headrace`` folder of a checkpoint location."""

    def __init__(self, location: str) -> None:
        self.location = local_path(location)
        self.directory = self.location / FOLDER
        self.store = FolderStore(self.directory)
        """The durable store of manifests, records, tokens and runs."""
        self.manifests = ManifestStore(self.store)
        self.runs = self.directory / "runs"
        self.staged = self.directory / "staged"
        self.leases = self.directory / "leases"
        self.journal = Journal(self.store)
        self.gaps = GapLog(self.store)
        self._wanted: dict[str, Any] = {}
        self._kept = False
        self.fence = Fence(self.directory, self.store)
        self.spark_log = SparkLog(self.location)
        self.noted = NotedRouting(self.directory / ROUTING)
        self._files: dict[Version, set[tuple[str, str]]] = {}
        self._swept = False
        self.current: Manifest | None = None
        """The newest version of a query whose state is made durable from time to time only. No manifest file names it yet."""

    @classmethod
    def existing(cls, location: str) -> Checkpoint:
        """Open a checkpoint for reading. Raises an error if there is none."""
        found = cls(location)
        if not found.is_there:
            raise CheckpointError(
                where=str(found.location), wanted="a checkpoint of a Headrace query", found="none", hint=_hint(found.location)
            )
        return found

    @property
    def is_there(self) -> bool:
        """True if a query has been started on this checkpoint."""
        with disk_errors(self.location, "a folder for the query's checkpoint"):
            return (self.directory / IDENTITY).exists()

    def open(self, stores: dict[StoreId, tuple[Layout, dict[str, object]]], about: dict[str, Any]) -> None:
        """Create the folder, or check that it belongs to this query, by the layout and description of every store.

        ``about`` says which operators and sources these are; see ``runtime/identity.py``.
        """
        wanted = {
            "format": IDENTITY_FORMAT,
            **about,
            "operators": {
                str(store): {"layout": describe_layout(layout), "fingerprint": layout.fingerprint, **about}
                for store, (layout, about) in stores.items()
            },
        }
        if self.is_there:
            self._check_identity(self.identity(), wanted)
        else:
            self._create(wanted)
        self._wanted = wanted

    def _create(self, wanted: dict[str, Any]) -> None:
        with _own_folder(self.location):
            if self.spark_log.newest("offsets") is not None:
                raise CheckpointMismatchError(
                    where=str(self.location),
                    wanted="an empty location or a checkpoint of this query",
                    found="a checkpoint of a plain Spark query",
                    hint="give the query a checkpointLocation of its own, or carry its state over: headrace migrate FILE.py OLD NEW",
                )
            for folder in (self.manifests.directory, self.runs, self.staged, self.leases):
                folder.mkdir(parents=True, exist_ok=True)
            self._write_identity(wanted)

    def keep_identity(self) -> None:
        """Write to query.json what has changed since the last start: names, and operators that were added or removed.

        Only the owner of the checkpoint may call this. If the change drops state, it is called with the first commit. Until then the state
        is still there, and a program that has the operator must find it, even if this start fails.
        """
        self._kept = True
        if json.loads(json.dumps(self._wanted, default=str)) != self.identity():
            self.fence.check("changing query.json")
            with disk_errors(self.directory / IDENTITY, "to write what query the checkpoint belongs to"):
                self._write_identity(self._wanted)

    def drops_state(self) -> bool:
        """True if the checkpoint has state of an operator that the query no longer has."""
        return self.has_versions() and not set(self._wanted["retired"]) <= set(self.identity()["retired"])

    def _write_identity(self, identity: dict[str, Any]) -> None:
        path = self.directory / IDENTITY
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w") as file:
            file.write(json.dumps({"crc": _identity_crc(identity), **identity}, indent=2, default=str))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_file(self.directory)

    def lock(self) -> None:
        """Raise an error if the lock file says that a query runs on this checkpoint. That query is not disturbed."""
        self.fence.lock()

    def claim(self) -> None:
        """Become the only writer of this checkpoint, until `release`, or until another query takes over."""
        self.fence.claim()
        self.store.mark = self.fence.writer
        _log.info("this query has fencing token %s", self.fence.token, query=self.location)

    def release(self) -> None:
        """Free the checkpoint for another query. Any thread may call this, any number of times."""
        self.fence.release()
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

    def identity(self) -> dict[str, Any]:
        """Read query.json. Raises an error if it is damaged or of another format."""
        path = self.directory / IDENTITY
        try:
            with disk_errors(path, "to read what query the checkpoint belongs to"):
                data: dict[str, Any] = json.loads(path.read_bytes())
            crc, form = data.pop("crc", None), data["format"]
            if not isinstance(data["operators"], dict):
                raise TypeError("operators")
            if form == IDENTITY_FORMAT and not all(isinstance(data[name], kind) for name, kind in _PARTS.items()):
                raise TypeError("identities")
        except (ValueError, KeyError, TypeError, AttributeError) as broken:
            raise _corrupt_identity(path, "text that is none") from broken
        if crc is None and form in range(IDENTITY_FORMAT):
            hint = "start with a new checkpointLocation, or go on with the Headrace that wrote it"
            raise CheckpointError(where=str(path), wanted=f"format {IDENTITY_FORMAT}", found=f"format {form}", hint=hint)
        if crc != _identity_crc(data):
            raise _corrupt_identity(path, "another checksum than it carries")
        return data

    def _check_identity(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Raise an error if a store has another layout than in the checkpoint. `runtime/identity.py` has matched the stores."""
        for name, mine in wanted["operators"].items():
            theirs = found["operators"].get(name)
            same = ("fingerprint", "window", "keys", "calls")
            if theirs is None or not self.has_versions() or all(theirs.get(each) == mine.get(each) for each in same):
                continue
            changes = _differences(theirs, mine)
            kind = StateSchemaError if theirs["keys"] == mine["keys"] else CheckpointMismatchError
            raise kind(
                where=f"{self.location}, {name}",
                wanted="the state that the query now needs: " + "; ".join(f"{k} {new}" for k, (_, new) in changes.items()),
                found="; ".join(f"{k} {old}" for k, (old, _) in changes.items()),
                hint="undo the change, or start with a new checkpointLocation and read the stream from its beginning",
            )

    def collect_garbage(self, keep: int) -> None:
        """Remove versions that are neither among the newest nor leased, and the files that only they needed."""
        self.fence.check("removing old versions")
        if not self._swept:
            # Remove what earlier attempts at this version left. It is committed now, so those attempts can no longer commit.
            self.sweep()
            self._swept = True
        versions = self.manifests.versions()
        old = versions[:-keep]
        leased = self.leased() if old else set()
        stale = [v for v in old if v not in leased]
        if not stale:
            return
        files = {v: self.files_of(v) for v in versions}
        with disk_errors(self.directory, "to remove versions that nobody needs"):
            # Manifests are removed first, so that no reader sees a version without its files. A reader takes its lease before it reads the
            # manifest. So a reader that came meanwhile finds no manifest, or its lease is seen now and the version is restored.
            retired = {version: self.manifests.retire(version) for version in stale}
            wanted = self.leased().intersection(stale)
            for version in wanted:
                self.manifests.restore(version, retired[version])
            kept = set().union(*(files[v] for v in versions if v not in stale or v in wanted), set())
            for version in stale:
                if version in wanted:
                    continue
                for folder, file in files[version] - kept:
                    self.store.delete(f"{folder}/{file}")
                del self._files[version]

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
        removed = 0
        with disk_errors(self.directory, "to remove files that no version names"):
            for folder in (self.runs, self.staged):
                for path in folder.iterdir():
                    committed = bool(versions) and version_of(path.name) <= versions[-1]
                    if committed and token_of(path.name) <= mine and (folder.name, path.name) not in needed:
                        path.unlink(missing_ok=True)
                        removed += 1
            for prefix in (self.manifests.PREFIX, self.journal.PREFIX):
                self.store.clean(prefix, lambda mark: token_of(f"-e{mark}.") <= mine)
        if removed:
            _log.info("removed %d files that no version names", removed, query=self.location)
        return removed

    def lease(self, version: Version) -> Path:
        """Pin a version: garbage collection leaves it alone until the lease is released, its process ends or an hour has passed."""
        return take_lease(self.leases, version)

    def leased(self) -> set[Version]:
        """The versions that readers still need."""
        return leased_versions(self.leases)

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


def _differences(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = ("keys", "window", "calls", "layout")
    return {n: (theirs.get(n), mine.get(n)) for n in names if theirs.get(n) != mine.get(n)}


def _identity_crc(identity: dict[str, Any]) -> int:
    # The checksum is of the identity as it will be read back: values that JSON lacks become text.
    return body_crc(json.loads(json.dumps(identity, default=str)))


def _corrupt_identity(path: Path, found: str) -> CorruptStateError:
    return CorruptStateError(
        path=str(path),
        wanted="the description of the query that this checkpoint belongs to",
        found=found,
        hint="restore the file from a backup; nothing was guessed",
    )


@contextlib.contextmanager
def _own_folder(location: Path) -> Iterator[None]:
    """Inside, an error of the disk becomes one that says what is wrong with the checkpointLocation."""
    wanted = "a checkpointLocation: a folder that can be made, or that the query may write to"
    try:
        with disk_errors(location, wanted):
            yield
    except (FileExistsError, FileNotFoundError) as refused:
        hint = "a file is in the way: give the path of a folder, or remove the file"
        raise StorageError(path=str(location), wanted=wanted, found=f"{refused.strerror}: {refused.filename}", hint=hint) from refused


def _hint(location: Path) -> str:
    if not location.exists():
        return "the folder does not exist; give the checkpointLocation of the query"
    return "give the checkpointLocation of the query, the folder that holds 'headrace'"
