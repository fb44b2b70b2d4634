"""The manifest: what makes a version.

Only what a manifest names exists; every other file is garbage. A manifest is written once, exclusively and atomically, after all it
names is durable. It carries its own checksum.

    checkpoint/headrace/
      query.json                  what this checkpoint belongs to
      manifests/000000000042.json
      runs/       state           staged/     output not yet known to be delivered
      leases/     versions that a reader still needs
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, CorruptStateError, VersionNotFoundError
from headrace.state.recreation import broken_off
from headrace.state.routing import Routing
from headrace.state.run import RunRef

FORMAT = 4


@dataclass(frozen=True)
class StagedFile:
    """Output of a version, waiting for its sink. It may be a run: a running aggregate's changed rows are its output."""

    file: str
    folder: str
    bytes: int
    crc: int
    rows: int
    operator: str = ""
    """Whose output it is."""


@dataclass(frozen=True)
class OperatorState:
    """An operator's state in one version."""

    runs: tuple[RunRef, ...] = ()
    closed_ms: int = 0
    """Every window that ends at or before this moment has been emitted (or dropped)."""


@dataclass(frozen=True)
class Manifest:
    """One version of a query."""

    version: int
    epoch: str
    """The run of the query that wrote it; a zombie of another run cannot be mistaken for this one."""
    operators: dict[str, OperatorState]
    staged: tuple[StagedFile, ...] = ()
    watermark_ms: int = 0
    watermark_nodes_ms: tuple[int | None, ...] = ()
    """Per ``withWatermark``, in the order of the plan; None while a node has seen no data since the query started."""
    watermark_idle: tuple[int, ...] = ()
    """Those that are idle and hold nobody back."""
    routing: dict[str, Routing] = field(default_factory=dict)
    """Per operator, who owned which slots."""
    offsets: tuple[str | None, ...] = ()
    """The sources' offsets that this state reflects (SEEP's tau)."""
    checkpoint_version: int | None = None
    """The newest version whose state is backed up; with a checkpoint at every batch, this one."""
    counters: dict[str, int] = field(default_factory=dict)

    def whole(self, store: str) -> tuple[RunRef, ...]:
        """A store's runs with each row once, also while windows are being recreated."""
        refs = list(self.operators[store].runs)
        routing = self.routing.get(store.split(".")[0])
        for recreation in routing.recreations if routing else ():
            refs = broken_off(refs, recreation)
        return tuple(refs)

    def files(self) -> set[tuple[str, str]]:
        """All (folder, file) that this version needs."""
        runs = {("runs", ref.file) for state in self.operators.values() for ref in state.runs}
        return runs | {(staged.folder, staged.file) for staged in self.staged}


def to_bytes(manifest: Manifest) -> bytes:
    body = dict(vars(manifest))
    body["operators"] = {name: {"closed_ms": s.closed_ms, "runs": [r.to_json() for r in s.runs]} for name, s in manifest.operators.items()}
    body["staged"] = [vars(s) for s in manifest.staged]
    body["routing"] = {name: routing.to_json() for name, routing in manifest.routing.items()}
    text = json.dumps(body, separators=(",", ":"))
    return f'{{"format":{FORMAT},"crc":{_checksum(text.encode(), FORMAT)},"body":\n{text}\n}}'.encode()


def from_bytes(data: bytes, path: str) -> Manifest:
    try:
        outer = json.loads(data)
        body: dict[str, Any] = outer["body"]
        intact = _checksum(data.split(b"\n", 1)[1].rsplit(b"\n", 1)[0], outer["format"]) == outer["crc"]
    except (ValueError, KeyError, IndexError, TypeError) as broken:
        raise _corrupt(path, "text that is no manifest") from broken
    if not intact:
        raise _corrupt(path, "another checksum than it carries")
    if outer["format"] != FORMAT:
        raise CheckpointError(where=path, wanted=f"a manifest of format {FORMAT}", found=f"format {outer['format']}")
    body["operators"] = {
        name: OperatorState(tuple(RunRef.from_json(r) for r in s["runs"]), s["closed_ms"]) for name, s in body["operators"].items()
    }
    body["staged"] = tuple(StagedFile(**s) for s in body["staged"])
    body["routing"] = {name: Routing.from_json(r) for name, r in body["routing"].items()}
    for name in ("watermark_nodes_ms", "watermark_idle", "offsets"):
        body[name] = tuple(body[name])
    return Manifest(**body)


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

    def path(self, version: int) -> Path:
        return self.directory / f"{version:012d}.json"

    def versions(self) -> list[int]:
        return sorted(int(p.stem) for p in self.directory.glob("*.json") if p.stem.isdigit())

    def read(self, version: int) -> Manifest:
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
        return from_bytes(data, str(self.path(version)))

    def read_if_exists(self, version: int) -> Manifest | None:
        return self.read(version) if self.path(version).exists() else None

    def commit(self, manifest: Manifest, *, sync: bool) -> None:
        """Make the version exist. Two drivers cannot both succeed: linking to a name that exists fails."""
        if sync:
            # Tasks have synced the content of their files; the files' names must be on disk too before this version's is.
            for folder in sorted({folder for folder, _ in manifest.files()}):
                sync_directory(self.directory.parent / folder)
        temporary = self.directory / f".{manifest.version:012d}-{manifest.epoch}.tmp"
        with open(temporary, "wb") as file:
            file.write(to_bytes(manifest))
            if sync:
                file.flush()
                os.fsync(file.fileno())
        try:
            os.link(temporary, self.path(manifest.version))
        except FileExistsError as exists:
            raise CheckpointError(
                where=str(self.path(manifest.version)),
                wanted="to be the only query on this checkpoint",
                found="that another one has just written the same version",
                hint="stop one of the two; this one has changed nothing",
            ) from exists
        finally:
            os.unlink(temporary)
        if sync:
            sync_directory(self.directory)

    def retire(self, version: int) -> None:
        """Take a version out of sight; its manifest can be restored until it is forgotten."""
        self.path(version).rename(self._retired(version))

    def restore(self, version: int) -> None:
        self._retired(version).rename(self.path(version))

    def forget(self, version: int) -> None:
        self._retired(version).unlink(missing_ok=True)

    def _retired(self, version: int) -> Path:
        return self.directory / f".{version:012d}-retired.tmp"


def sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
