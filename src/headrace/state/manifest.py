"""The manifest: what makes a version.

Only what a manifest names exists; every other file is garbage. A manifest is written once, exclusively and atomically, after all it
names is durable. It carries its own checksum, its number and the checksum of the version before, so that one that was damaged,
exchanged or put under another number is found; and what Spark's log said of the batch, so that the two cannot drift apart.

    checkpoint/headrace/
      query.json                  what this checkpoint belongs to
      manifests/000000000042.json
      runs/       state           staged/     output not yet known to be delivered
      leases/     versions that a reader still needs
      tokens/     who may write: the query with the highest number
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, CorruptStateError, InvariantError, VersionNotFoundError
from headrace.ids import NO_TOKEN, FencingToken, OperatorId, StoreId, Version, WriterId
from headrace.state.disk import disk_errors, is_plain_name, storage_error, sync_file
from headrace.state.recreation import broken_off
from headrace.state.routing import Routing
from headrace.state.run import RunRef

FORMAT = 5
"""5: the fencing token, the checksum of the version before, Spark's query id and the entries of its sources' logs."""
_KEYS = {"writer": "epoch", "stores": "operators"}
"""Fields of ``Manifest`` that have another name in the file. The names in the file change only with its format."""
FOLDERS = ("runs", "staged")
"""Where the files lie that a manifest may name."""


@dataclass(frozen=True)
class StagedFile:
    """Output of a version, waiting for its sink. It may be a run: a running aggregate's changed rows are its output."""

    file: str
    folder: str
    bytes: int
    crc: int
    rows: int
    operator: OperatorId
    """Whose output it is."""


@dataclass(frozen=True)
class SourceEntries:
    """The newest entries in Spark's log of one source: for a file source, which files its batches had."""

    source: str
    """The folder under ``sources``."""
    first: int
    last: int
    crc: int


@dataclass(frozen=True)
class StoreState:
    """The state of one store in one version."""

    runs: tuple[RunRef, ...] = ()
    closed_ms: int = 0
    """Every window that ends at or before this moment has been emitted (or dropped)."""


@dataclass(frozen=True)
class Manifest:
    """One version of a query."""

    version: Version
    writer: WriterId
    """The start of the query that wrote it."""
    stores: dict[StoreId, StoreState]
    staged: tuple[StagedFile, ...] = ()
    watermark_ms: int = 0
    watermark_nodes_ms: tuple[int | None, ...] = ()
    """Per ``withWatermark``, in the order of the plan; None while a node has seen no data since the query started."""
    watermark_idle: tuple[int, ...] = ()
    """Those that are idle and hold nobody back."""
    routing: dict[OperatorId, Routing] = field(default_factory=dict)
    """Per operator, who owned which slots."""
    offsets: tuple[str | None, ...] = ()
    """The sources' offsets that this state reflects (SEEP's tau)."""
    source_entries: tuple[SourceEntries, ...] = ()
    """... and what Spark's logs say that those offsets mean."""
    query_id: str = ""
    """Spark's id of the query, which stays the same over restarts."""
    token: FencingToken = NO_TOKEN
    """The fencing token of its writer."""
    previous_crc: int | None = None
    """The checksum of the version before, on which this one builds."""
    checkpoint_version: Version | None = None
    """The newest version whose state is backed up; with a checkpoint at every batch, this one."""
    counters: dict[str, int] = field(default_factory=dict)
    crc: int | None = field(default=None, compare=False)
    """Its own checksum, once it was written or read."""

    def whole(self, store: StoreId) -> tuple[RunRef, ...]:
        """A store's runs with each row once, also while windows are being recreated."""
        refs = list(self.stores[store].runs)
        routing = self.routing.get(store.operator)
        for recreation in routing.recreations if routing else ():
            refs = broken_off(refs, recreation)
        return tuple(refs)

    def runs_of(self, operator: OperatorId) -> list[RunRef]:
        """The runs of all stores of an operator."""
        return [ref for store, state in self.stores.items() if store.operator == operator for ref in state.runs]

    def files(self) -> set[tuple[str, str]]:
        """All (folder, file) that this version needs."""
        runs = {("runs", ref.file) for state in self.stores.values() for ref in state.runs}
        return runs | {(staged.folder, staged.file) for staged in self.staged}


def to_bytes(manifest: Manifest) -> bytes:
    return _framed(_body(manifest))


def _framed(text: bytes) -> bytes:
    return f'{{"format":{FORMAT},"crc":{_checksum(text, FORMAT)},"body":\n'.encode() + text + b"\n}"


def _body(manifest: Manifest) -> bytes:
    body = {_KEYS.get(name, name): value for name, value in vars(manifest).items() if name != "crc"}
    body["operators"] = {str(store): _state_json(state) for store, state in manifest.stores.items()}
    body["staged"] = [vars(s) for s in manifest.staged]
    body["source_entries"] = [vars(s) for s in manifest.source_entries]
    body["routing"] = {name: routing.to_json() for name, routing in manifest.routing.items()}
    return json.dumps(body, separators=(",", ":")).encode()


def _state_json(state: StoreState) -> dict[str, Any]:
    return {"closed_ms": state.closed_ms, "runs": [ref.to_json() for ref in state.runs]}


def from_bytes(data: bytes, path: str, version: Version | None = None) -> Manifest:
    """Read a manifest that must be intact, and of this version where one is given."""
    try:
        outer = json.loads(data)
        body: dict[str, Any] = outer["body"]
        intact = _checksum(data.split(b"\n", 1)[1].rsplit(b"\n", 1)[0], outer["format"]) == outer["crc"]
    except (ValueError, KeyError, IndexError, TypeError) as broken:
        raise _corrupt(path, "text that is no manifest") from broken
    if not intact:
        raise _corrupt(path, "another checksum than it carries")
    if outer["format"] != FORMAT:
        hint = "start with a new checkpointLocation, or go on with the Headrace that wrote it"
        raise CheckpointError(where=path, wanted=f"a manifest of format {FORMAT}", found=f"format {outer['format']}", hint=hint)
    try:
        manifest = Manifest(**_parsed(body), crc=outer["crc"])
    except (ValueError, KeyError, TypeError, AttributeError, InvariantError) as broken:
        raise _corrupt(path, f"something that Headrace never writes: {broken}") from broken
    if version is not None and manifest.version != version:
        raise _corrupt(path, f"the manifest of version {manifest.version} under the number {version}")
    return manifest


def _parsed(body: dict[str, Any]) -> dict[str, Any]:
    body["writer"] = WriterId(body.pop("epoch"))
    stores = {StoreId.parse(name): each for name, each in body.pop("operators").items()}
    body["stores"] = {
        store: StoreState(tuple(RunRef.from_json(ref) for ref in each["runs"]), each["closed_ms"]) for store, each in stores.items()
    }
    body["staged"] = tuple(StagedFile(**s) for s in body["staged"])
    for staged in body["staged"]:
        if staged.folder not in FOLDERS or not is_plain_name(staged.file):
            raise ValueError(f"a file outside of the checkpoint: {staged.folder}/{staged.file}")
    body["source_entries"] = tuple(SourceEntries(**s) for s in body["source_entries"])
    for entries in body["source_entries"]:
        if not is_plain_name(entries.source):
            raise ValueError(f"a source's log outside of the checkpoint: {entries.source}")
    body["routing"] = {OperatorId(name): Routing.from_json(r) for name, r in body["routing"].items()}
    for name in ("watermark_nodes_ms", "watermark_idle", "offsets"):
        body[name] = tuple(body[name])
    return body


def check_follows(manifest: Manifest, before: Manifest, path: str) -> None:
    """Raise an error unless a manifest was written on top of this one, its predecessor by number."""
    if manifest.previous_crc != before.crc:
        found = "none" if manifest.previous_crc is None else f"{manifest.previous_crc:08x}"
        raise CorruptStateError(
            path=path,
            wanted=f"version {manifest.version}, written on top of the version {before.version} here (checksum {before.crc or 0:08x})",
            found=f"one that was written on top of another (checksum {found})",
            hint="manifests of several runs were mixed: restore the whole folder 'headrace' and Spark's logs from one backup",
        )


def _checksum(text: bytes, form: int) -> int:
    """Of the text and of the format's number, so that damage to either shows."""
    return zlib.crc32(text, form)


def _corrupt(path: str, found: str) -> CorruptStateError:
    hint = "restore the file from a backup, or remove this version and the query's later progress; nothing was guessed"
    return CorruptStateError(where=path, wanted="an intact manifest", found=found, path=path, hint=hint)


class ManifestStore:
    """The manifests of one checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, version: Version) -> Path:
        return self.directory / f"{version:012d}.json"

    def versions(self) -> list[Version]:
        """The versions that are kept, oldest first."""
        return sorted(Version(int(name[:-5])) for name in self._names() if name.endswith(".json") and name[:-5].isdigit())

    def _names(self) -> list[str]:
        try:
            with disk_errors(self.directory, "to list the manifests"):
                return os.listdir(self.directory)
        except FileNotFoundError:
            return []

    def read(self, version: Version) -> Manifest:
        try:
            data = self.path(version).read_bytes()
        except FileNotFoundError as missing:
            kept = self.versions()
            raise VersionNotFoundError(
                where=str(self.directory.parent),
                wanted=f"version {version}",
                found=f"versions {kept[0]} to {kept[-1]}" if kept else "no version",
                hint="only the last versions are kept; the option headrace.versionsToKeep says how many",
            ) from missing
        except OSError as refused:
            raise storage_error(refused, self.path(version), "to read a manifest") from refused
        return from_bytes(data, str(self.path(version)), version)

    def read_if_exists(self, version: Version) -> Manifest | None:
        return self.read(version) if self.path(version).exists() else None

    def commit(self, manifest: Manifest, *, sync: bool) -> Manifest:
        """Make the version exist; returns it with its checksum. Two drivers cannot both succeed: linking to a name that exists fails."""
        text = _body(manifest)
        path = self.path(manifest.version)
        temporary = self.directory / f".{manifest.version:012d}-{manifest.writer}.tmp"
        with disk_errors(path, "to write a manifest"):
            if sync:
                # Tasks have synced the content of their files; the files' names must be on disk too before this version's is.
                for folder in sorted({folder for folder, _ in manifest.files()}):
                    sync_file(self.directory.parent / folder)
            try:
                with open(temporary, "wb") as file:
                    file.write(_framed(text))
                    file.flush()
                    if sync:
                        os.fsync(file.fileno())
                self._link(temporary, manifest.version)
            finally:
                temporary.unlink(missing_ok=True)
            if sync:
                sync_file(self.directory)
        return replace(manifest, crc=_checksum(text, FORMAT))

    def _link(self, temporary: Path, version: Version) -> None:
        found = "that another one has just written the same version"
        try:
            os.link(temporary, self.path(version))
            # A driver that slept may come when the version was written by another, and already removed as old.
            if max(self.versions()) > version:
                self.path(version).unlink()
                found = "that another one has gone on to later versions"
                raise FileExistsError(found)
        except FileExistsError as exists:
            raise CheckpointError(
                where=str(self.path(version)),
                wanted="to be the only query on this checkpoint",
                found=found,
                hint="stop one of the two; this one has changed nothing",
            ) from exists

    def retire(self, version: Version) -> None:
        """Take a version out of sight; its manifest can be restored until it is forgotten."""
        self.path(version).rename(self._retired(version))

    def restore(self, version: Version) -> None:
        self._retired(version).rename(self.path(version))

    def forget(self, version: Version) -> None:
        self._retired(version).unlink(missing_ok=True)

    def _retired(self, version: Version) -> Path:
        return self.directory / f".{version:012d}-retired.tmp"
