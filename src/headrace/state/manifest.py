"""Manifests: one file per version, which lists the files and facts that the version consists of.

A version exists once its manifest does. Files that no manifest names are garbage. A manifest is written once, atomically, after all files
that it names are durable. It contains its own checksum, its version and the checksum of the manifest before. So a manifest that was
damaged, exchanged or renamed is detected. It also records what Spark's log said about the batch, so that state and offsets cannot
diverge.

    checkpoint/headrace/
      query.json                  the query that the checkpoint belongs to
      manifests/000000000042.json
      runs/       state           staged/     output that may not have been delivered yet
      leases/     versions that a reader still needs
      tokens/     fencing tokens: only the query with the highest one may write
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, CorruptStateError, InvariantError, VersionNotFoundError
from headrace.ids import FIRST_VERSION, NO_TOKEN, FencingToken, OperatorId, StoreId, Version, WriterId
from headrace.state.disk import is_plain_name
from headrace.state.drops import Drops
from headrace.state.durable import DurableStore
from headrace.state.recreation import broken_off
from headrace.state.routing import Routing
from headrace.state.run import RunRef

FORMAT = 5
"""The format of manifest files. Format 5 added the fencing token, the checksum of the version before, Spark's query id and the entries of
its source logs."""
_KEYS = {"writer": "epoch", "stores": "operators"}
"""Fields of ``Manifest`` that have another name in the file. The names in the file change only with its format."""
_KEYS_OF = "keys."
"""The prefix of the counters of keys in the file."""
FOLDERS = ("runs", "staged")
"""The folders of files that a manifest may name."""


@dataclass(frozen=True)
class StagedFile:
    """A file with results of a version, for its sinks. It may be a run: the changed rows of a running aggregate are its results."""

    file: str
    folder: str
    bytes: int
    crc: int
    rows: int
    operator: OperatorId
    """The operator that computed the results."""


@dataclass(frozen=True)
class SourceEntries:
    """Which entries Spark's log of one source had. For a file source, an entry lists the files of a batch."""

    source: str
    """The name of the log's folder under ``sources``."""
    first: int
    last: int
    crc: int
    """The checksum of the entries ``first`` to ``last``."""


@dataclass(frozen=True)
class StoreState:
    """The state of one store in one version."""

    runs: tuple[RunRef, ...] = ()
    closed_ms: int = 0
    """The watermark of the version. All windows that end at or before it are closed."""


@dataclass(frozen=True)
class Counters:
    """Counts for the progress."""

    rows: int = 0
    """Rows that the operators got in this version."""
    rows_late: int = 0
    """The rows among them that were dropped as late."""
    keys: Mapping[OperatorId, int] = field(default_factory=dict)
    """By operator: its keys since the query began. Operators that do not look up every key are left out."""

    def to_json(self) -> dict[str, int]:
        return {**{f"{_KEYS_OF}{name}": count for name, count in self.keys.items()}, "rows": self.rows, "rows_late": self.rows_late}

    @classmethod
    def from_json(cls, body: dict[str, int]) -> Counters:
        keys = {OperatorId(name.removeprefix(_KEYS_OF)): count for name, count in body.items() if name.startswith(_KEYS_OF)}
        return cls(keys=keys, **{name: count for name, count in body.items() if not name.startswith(_KEYS_OF)})


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest file: everything that a version consists of."""

    version: Version
    writer: WriterId
    """The start of the query that wrote it."""
    stores: dict[StoreId, StoreState]
    staged: tuple[StagedFile, ...] = ()
    watermark_ms: int = 0
    watermark_nodes_ms: tuple[int | None, ...] = ()
    """The watermark of each ``withWatermark`` call, in the order of the plan; None if it has seen no rows since the query started."""
    watermark_idle: tuple[int, ...] = ()
    """The indices of ``withWatermark`` calls that are idle. They do not hold the query's watermark back."""
    routing: dict[OperatorId, Routing] = field(default_factory=dict)
    """The routing of each operator by which the version was computed."""
    offsets: tuple[str | None, ...] = ()
    """The offsets of the sources up to which the state reflects their rows (SEEP's tau)."""
    source_entries: tuple[SourceEntries, ...] = ()
    """The entries of Spark's source logs that these offsets refer to."""
    query_id: str = ""
    """Spark's id of the query. It is the same after every restart."""
    token: FencingToken = NO_TOKEN
    """The fencing token of its writer."""
    previous_crc: int | None = None
    """The checksum of the manifest before (see ``follows``); None for the first one."""
    checkpoint_version: Version | None = None
    """This version itself, if every version is made durable. With ``headrace.checkpointSeconds``, the durable version before this one, or
    -1 for the first."""
    counters: Counters = field(default_factory=Counters)
    drops: Drops | None = None
    """The rows that it dropped, because there were more than the query could process; None if it dropped none."""
    crc: int | None = field(default=None, compare=False)
    """Its own checksum; None until it is written."""

    @property
    def follows(self) -> Version:
        """The version of the manifest that this one was written on top of: the version before, or the durable version before."""
        durable = self.checkpoint_version
        return Version(self.version - 1) if durable is None or durable == self.version else durable

    def whole(self, store: StoreId) -> tuple[RunRef, ...]:
        """References that contain each row of a store exactly once, also during a window recreation."""
        refs = list(self.stores[store].runs)
        routing = self.routing.get(store.operator)
        for recreation in routing.recreations if routing else ():
            refs = broken_off(refs, recreation)
        return tuple(refs)

    def runs_of(self, operator: OperatorId) -> list[RunRef]:
        """The runs of all stores of an operator."""
        return [ref for store, state in self.stores.items() if store.operator == operator for ref in state.runs]

    def files(self) -> set[tuple[str, str]]:
        """All files that this version needs, as (folder, file)."""
        runs = {("runs", ref.file) for state in self.stores.values() for ref in state.runs}
        return runs | {(staged.folder, staged.file) for staged in self.staged}


def to_bytes(manifest: Manifest) -> bytes:
    """The content of the manifest's file."""
    return _framed(_body(manifest))


def _framed(text: bytes) -> bytes:
    return f'{{"format":{FORMAT},"crc":{_checksum(text, FORMAT)},"body":\n'.encode() + text + b"\n}"


def _body(manifest: Manifest) -> bytes:
    return json.dumps(to_json(manifest), separators=(",", ":")).encode()


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The content of a manifest as plain data, without its checksum."""
    body = {_KEYS.get(name, name): value for name, value in vars(manifest).items() if name != "crc"}
    body["operators"] = {str(store): _state_json(state) for store, state in manifest.stores.items()}
    body["staged"] = [vars(s) for s in manifest.staged]
    body["source_entries"] = [vars(s) for s in manifest.source_entries]
    body["counters"] = manifest.counters.to_json()
    body["routing"] = {name: routing.to_json() for name, routing in manifest.routing.items()}
    if manifest.drops is None:
        # Older versions of Headrace do not know the field, and can read what was written without it.
        del body["drops"]
    else:
        body["drops"] = manifest.drops.to_json()
    return body


def _state_json(state: StoreState) -> dict[str, Any]:
    return {"closed_ms": state.closed_ms, "runs": [ref.to_json() for ref in state.runs]}


def from_bytes(data: bytes, path: str, version: Version | None = None) -> Manifest:
    """Parse the content of a manifest's file; raise an error if it is damaged, of another format or not of this version."""
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
        manifest = from_json(body, outer["crc"])
    except (ValueError, KeyError, TypeError, AttributeError, InvariantError) as broken:
        raise _corrupt(path, f"something that Headrace never writes: {broken}") from broken
    if version is not None and manifest.version != version:
        raise _corrupt(path, f"the manifest of version {manifest.version} under the number {version}")
    return manifest


def from_json(body: dict[str, Any], crc: int | None) -> Manifest:
    """The manifest with this content (see ``to_json``) and checksum. Raises ValueError or the like for any other content."""
    return Manifest(**_parsed(body), crc=crc)


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
    body["counters"] = Counters.from_json(body["counters"])
    body["routing"] = {OperatorId(name): Routing.from_json(r) for name, r in body["routing"].items()}
    body["drops"] = Drops.from_json(body["drops"]) if "drops" in body else None
    for name in ("watermark_nodes_ms", "watermark_idle", "offsets"):
        body[name] = tuple(body[name])
    return body


def check_follows(manifest: Manifest, before: Sequence[Manifest], path: str) -> None:
    """Raise an error unless the manifest was written on top of one of these: the manifest, or the record in the journal, of one version."""
    if before and manifest.previous_crc not in {each.crc for each in before}:
        found = "none" if manifest.previous_crc is None else f"{manifest.previous_crc:08x}"
        here = " or ".join(f"{each.crc or 0:08x}" for each in before)
        raise CorruptStateError(
            path=path,
            wanted=f"version {manifest.version}, written on top of the version {before[0].version} here (checksum {here})",
            found=f"one that was written on top of another (checksum {found})",
            hint="manifests of several runs were mixed: restore the whole folder 'headrace' and Spark's logs from one backup",
        )


def _checksum(text: bytes, form: int) -> int:
    """The checksum of a manifest's text. It includes the number of the format, so that damage to either is detected."""
    return zlib.crc32(text, form)


def _corrupt(path: str, found: str) -> CorruptStateError:
    hint = "restore the file from a backup, or remove this version and the query's later progress; nothing was guessed"
    return CorruptStateError(where=path, wanted="an intact manifest", found=found, path=path, hint=hint)


class ManifestStore:
    """The manifests of one checkpoint, in the durable store."""

    PREFIX = "manifests/"

    def __init__(self, store: DurableStore) -> None:
        self.store = store
        self._own: set[Version] | None = None
        """The versions that have a manifest, if only this process writes any."""

    def own(self) -> None:
        """Remember which versions there are. Called by the only writer of a checkpoint in a store behind a network."""
        self._own = set(self.versions())

    def key(self, version: Version) -> str:
        return f"{self.PREFIX}{version:012d}.json"

    def where(self, version: Version) -> str:
        """The address of a version's object, for messages."""
        return self.store.where(self.key(version))

    def path(self, version: Version) -> Path:
        """The file of a manifest, in a folder."""
        return Path(self.store.where(self.key(version)))

    @property
    def directory(self) -> Path:
        return Path(self.store.where(self.PREFIX))

    def versions(self) -> list[Version]:
        """The versions that have a manifest, oldest first."""
        if self._own is not None:
            return sorted(self._own)
        return listed(self.store, self.PREFIX, self.key)

    def read(self, version: Version) -> Manifest:
        """The manifest of a version; raise an error if there is none or it is damaged."""
        try:
            data = self.store.get(self.key(version))
        except FileNotFoundError as missing:
            kept = self.versions()
            raise VersionNotFoundError(
                where=self.store.where(""),
                wanted=f"version {version}",
                found=f"versions {kept[0]} to {kept[-1]}" if kept else "no version",
                hint="only the last versions are kept; the option headrace.versionsToKeep says how many",
            ) from missing
        return from_bytes(data, self.store.where(self.key(version)), version)

    def read_if_exists(self, version: Version) -> Manifest | None:
        """The manifest of a version, or None if there is none."""
        return self.read(version) if self.store.size(self.key(version)) is not None else None

    def commit(self, manifest: Manifest, *, sync: bool) -> Manifest:
        """Write the manifest, which makes its version exist; returns it with its checksum.

        Of two drivers that commit the same version only one succeeds.
        """
        text, key = _body(manifest), self.key(manifest.version)
        if sync:
            # Tasks have synced the content of their files. The folders must be synced too, before the manifest names the files.
            for folder in sorted({folder for folder, _ in manifest.files()}):
                self.store.sync(f"{folder}/")
        found = "that another one has just written the same version"
        try:
            self.store.put_if_absent(key, _framed(text), sync=sync)
            # If this driver was paused, another one may have written this version and removed it again as too old.
            if max(self.versions(), default=manifest.version) > manifest.version:
                self.store.delete(key)
                found = "that another one has gone on to later versions"
                raise FileExistsError(found)
        except FileExistsError as exists:
            raise CheckpointError(
                where=self.store.where(key),
                wanted="to be the only query on this checkpoint",
                found=found,
                hint="stop one of the two; this one has changed nothing",
            ) from exists
        if self._own is not None:
            self._own.add(manifest.version)
        return replace(manifest, crc=_checksum(text, FORMAT))

    def retire(self, version: Version) -> bytes:
        """Remove the manifest of a version, so that no reader finds it. Returns its content, by which it can be restored."""
        data = self.store.get(self.key(version))
        self.store.delete(self.key(version))
        if self._own is not None:
            self._own.discard(version)
        return data

    def restore(self, version: Version, data: bytes) -> None:
        """Show a version again that was retired."""
        self.store.put_if_absent(self.key(version), data, sync=False)
        if self._own is not None:
            self._own.add(version)


def listed(store: DurableStore, prefix: str, key: Callable[[Version], str]) -> list[Version]:
    """The versions that have an object, in ascending order. A list of an object store may lack what was written last: that is asked for."""
    found = numbered(store.keys(prefix))
    while store.local is None and store.size(key(Version(found[-1] + 1 if found else FIRST_VERSION))) is not None:
        found.append(Version(found[-1] + 1 if found else FIRST_VERSION))
    return found


def numbered(keys: Sequence[str]) -> list[Version]:
    """The versions of keys such as ``manifests/000000000042.json``, in ascending order. Other keys are left out.

    >>> numbered(["journal/000000000002.json", "journal/000000000001.json", "journal/x.json"])
    [1, 2]
    """
    names = [key.rpartition("/")[2] for key in keys]
    return sorted(Version(int(name[:-5])) for name in names if name.endswith(".json") and name[:-5].isdigit())
