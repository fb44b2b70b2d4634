"""A query's checkpoint on disk: identity, versions, garbage collection, leases."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError, StateSchemaError
from headrace.state.layout import Layout
from headrace.state.manifest import Manifest, ManifestStore, sync_directory
from headrace.state.routing import Routing

FOLDER = "headrace"
ROUTING = "routing.json"
LEASE_SECONDS_MAX = 3600
FORMAT = 3
"""Of query.json. Since 3 it says which operator is which."""
_PARTS = {"identities": dict, "sources": list, "retired": list}


def local_path(location: str) -> Path:
    """The checkpoint location as a path of this machine."""
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
        self.manifests = ManifestStore(self.directory / "manifests")
        self.runs = self.directory / "runs"
        self.staged = self.directory / "staged"
        self.leases = self.directory / "leases"
        self._wanted: dict[str, Any] = {}
        self._files: dict[int, set[tuple[str, str]]] = {}
        self._claimed: int | None = None
        self._claiming = threading.Lock()

    @classmethod
    def existing(cls, location: str) -> Checkpoint:
        """For readers: the checkpoint must be there."""
        found = cls(location)
        if not (found.directory / "query.json").exists():
            raise CheckpointError(
                where=str(found.location), wanted="a checkpoint of a Headrace query", found="none", hint=_hint(found.location)
            )
        return found

    @property
    def is_there(self) -> bool:
        """Whether a query has begun here."""
        return (self.directory / "query.json").exists()

    def open(self, stores: dict[str, tuple[Layout, dict[str, object]]], about: dict[str, Any]) -> None:
        """Create the folder, or check that it belongs to this query, by the layout and description of every store.

        ``about`` says which operators and sources these are; see ``runtime/identity.py``.
        """
        identity = self.directory / "query.json"
        wanted = {
            "format": FORMAT,
            **about,
            "operators": {
                name: {"layout": describe_layout(layout), "fingerprint": layout.fingerprint, **about}
                for name, (layout, about) in stores.items()
            },
        }
        if identity.exists():
            self._check_identity(self.identity(), wanted)
        else:
            if (self.location / "offsets").exists() and any((self.location / "offsets").iterdir()):
                raise CheckpointMismatchError(
                    where=str(self.location),
                    wanted="an empty location or a checkpoint of this query",
                    found="a checkpoint of a plain Spark query",
                    hint="give the query a checkpointLocation of its own",
                )
            for folder in (self.manifests.directory, self.runs, self.staged, self.leases):
                folder.mkdir(parents=True, exist_ok=True)
            self._write_identity(wanted)
        self._wanted = wanted

    def keep_identity(self) -> None:
        """Note what has changed since the query last ran: names, operators that came or went. Only the owner may."""
        if json.loads(json.dumps(self._wanted, default=str)) != self.identity():
            self._write_identity(self._wanted)

    def _write_identity(self, identity: dict[str, Any]) -> None:
        path = self.directory / "query.json"
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w") as file:
            file.write(json.dumps(identity, indent=2, default=str))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_directory(self.directory)

    def claim(self) -> None:
        """Be the only query on this checkpoint, until released. The lock of a process that died is freed by its kernel."""
        handle = os.open(self.directory / "owner", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(handle, 1000, 0).decode(errors="replace")
            os.close(handle)
            raise CheckpointError(
                where=str(self.location),
                wanted="to be the only query on this checkpoint",
                found=f"a query that is running on it ({owner})",
                hint="stop that one first, or give this one a checkpointLocation of its own; nothing was changed",
            ) from None
        except OSError:
            # A disk without locks: what is left is that two queries cannot both commit a version.
            os.close(handle)
            return
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        self._claimed = handle

    def release(self) -> None:
        """Let another query have the checkpoint; any thread may call it, any number of times."""
        with self._claiming:
            handle, self._claimed = self._claimed, None
        if handle is not None:
            os.close(handle)

    def identity(self) -> dict[str, Any]:
        path = self.directory / "query.json"
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            if not isinstance(data["operators"], dict):
                raise TypeError("operators")
            if data["format"] == FORMAT and not all(isinstance(data[name], kind) for name, kind in _PARTS.items()):
                raise TypeError("identities")
        except (ValueError, KeyError, TypeError) as broken:
            raise CorruptStateError(
                path=str(path),
                wanted="the description of the query that this checkpoint belongs to",
                found="text that is none",
                hint="restore the file from a backup; nothing was guessed",
            ) from broken
        if data["format"] != FORMAT:
            raise CheckpointMismatchError(
                where=str(self.location),
                wanted=f"a checkpoint of format {FORMAT}",
                found=f"one of format {data['format']}, which another version of Headrace wrote",
                hint="go on with that version, or start with a new checkpointLocation",
            )
        return data

    def _check_identity(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Stores that both have are of one shape; which there are was checked before."""
        for name, mine in wanted["operators"].items():
            theirs = found["operators"].get(name)
            same = ("fingerprint", "window", "keys", "calls")
            if theirs is None or not self.manifests.versions() or all(theirs.get(each) == mine.get(each) for each in same):
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
        versions = self.manifests.versions()
        old = versions[:-keep]
        leased = self.leased() if old else set()
        stale = [v for v in old if v not in leased]
        if not stale:
            return
        files = {v: self._files_of(v) for v in versions}
        # Manifests go first: a version without its files must never be seen. A reader takes its lease before it reads the manifest,
        # so one that came in between finds no manifest, or its lease is seen now.
        for version in stale:
            self.manifests.retire(version)
        wanted = self.leased().intersection(stale)
        for version in wanted:
            self.manifests.restore(version)
        kept = set().union(*(files[v] for v in versions if v not in stale or v in wanted), set())
        for version in stale:
            if version in wanted:
                continue
            for folder, file in files[version] - kept:
                (self.directory / folder / file).unlink(missing_ok=True)
            self.manifests.forget(version)
            del self._files[version]

    def _files_of(self, version: int) -> set[tuple[str, str]]:
        """What a version needs; manifests do not change, so each is read once."""
        if version not in self._files:
            self._files[version] = self.manifests.read(version).files()
        return self._files[version]

    def remember(self, manifest: Manifest) -> None:
        """Spare garbage collection from reading a manifest that was just written."""
        self._files[manifest.version] = manifest.files()

    def sweep(self) -> int:
        """Remove files that no manifest names: what crashed attempts and zombies left. Only while no batch runs."""
        needed: set[tuple[str, str]] = set().union(*(self.manifests.read(v).files() for v in self.manifests.versions()), set())
        removed = 0
        for folder in (self.runs, self.staged):
            for path in folder.iterdir():
                if (folder.name, path.name) not in needed:
                    path.unlink(missing_ok=True)
                    removed += 1
        for path in self.manifests.directory.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        return removed

    def lease(self, version: int) -> Path:
        """Pin a version: garbage collection leaves it alone until the lease is released, its process ends or an hour has passed."""
        path = self.leases / f"{uuid.uuid4().hex}.json"
        path.write_text(json.dumps({"version": version, "pid": os.getpid(), "host": os.uname().nodename, "since": time.time()}))
        return path

    def leased(self) -> set[int]:
        versions = set()
        for path in self.leases.glob("*.json"):
            try:
                lease = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if _lease_is_dead(lease):
                path.unlink(missing_ok=True)
            else:
                versions.add(int(lease["version"]))
        return versions

    def source_offsets(self, version: int) -> tuple[str | None, ...]:
        """Where the sources stand at a version, from Spark's own log (SEEP's tau); a source that had nothing yet has none."""
        try:
            lines = (self.location / "offsets" / str(version)).read_text().splitlines()
        except OSError:
            return ()
        return tuple(None if line == "-" else line for line in lines[2:])

    def latest(self) -> Manifest | None:
        versions = self.manifests.versions()
        return self.manifests.read(versions[-1]) if versions else None


    def routing(self) -> dict[str, Routing]:
        """Who owns which slots, per operator: by the newest version, or by a change made since."""
        latest = self.latest()
        found = dict(latest.routing) if latest else {}
        try:
            noted = {name: Routing.from_json(body) for name, body in json.loads((self.directory / ROUTING).read_text()).items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # No state hangs on it: any routing gives the same results, so that of the newest version will do.
            noted = {}
        return found | {name: routing for name, routing in noted.items() if name not in found or routing.epoch > found[name].epoch}

    def note_routing(self, routing: dict[str, Routing]) -> None:
        """Keep a change that no version has yet."""
        temporary = self.directory / f".{ROUTING}.tmp"
        temporary.write_text(json.dumps({name: each.to_json() for name, each in routing.items()}))
        temporary.replace(self.directory / ROUTING)


def describe_layout(layout: Layout) -> list[str]:
    return [f"{f.name}: {f.type}" for f in layout.schema]


def _differences(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = ("keys", "window", "calls", "layout")
    return {n: (theirs.get(n), mine.get(n)) for n in names if theirs.get(n) != mine.get(n)}


def _lease_is_dead(lease: dict[str, Any]) -> bool:
    if time.time() - float(lease["since"]) > LEASE_SECONDS_MAX:
        return True
    if lease.get("host") != os.uname().nodename:
        return False
    try:
        os.kill(int(lease["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _hint(location: Path) -> str:
    if not location.exists():
        return "the folder does not exist; give the checkpointLocation of the query"
    return "give the checkpointLocation of the query, the folder that holds 'headrace'"
