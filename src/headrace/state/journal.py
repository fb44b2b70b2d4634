"""The journal: one small durable record per version, for versions whose state is not durable yet.

With ``headrace.checkpointSeconds``, state is made durable from time to time only. The versions since then are computed again after a
loss, from the same rows of the sources. A record holds what such a replay must not decide anew: the clock, the watermark, the routing, and
what Spark's log said about the batch. It is written before results leave.

    checkpoint/headrace/journal/000000000043.json     a manifest without state and staged output, and the clock of the batch

A record contains its own checksum and that of the record before, so damaged, exchanged or mixed records are detected. Its name is created
exclusively: of two drivers that write the same version, only one succeeds.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError, InvariantError
from headrace.ids import FIRST_VERSION, OperatorId, Version
from headrace.state.durable import DurableStore
from headrace.state.manifest import Manifest, from_json, listed, to_json

FORMAT = 1
"""The format of the journal's files."""


@dataclass(frozen=True)
class Record:
    """What a replay of a version obeys."""

    facts: Manifest
    """The version's manifest without state and staged output. Its checksum is that of the record."""
    now_ms: int
    """The clock of the batch: processing time as the operators saw it."""
    rows: Mapping[OperatorId, int] = field(default_factory=dict)
    """By operator that reads sources: the rows that it read. A replay must read as many."""
    since: Version = FIRST_VERSION
    """The first batch on which the version's state depends: it can be computed from this batch on, beginning empty."""
    forgets: bool = False
    """True if the query keeps no state safe (the approach amnesia): records before the last ones are removed."""

    @property
    def version(self) -> Version:
        return self.facts.version


def record_of(
    manifest: Manifest, now_ms: int, rows: Mapping[OperatorId, int], since: Version = FIRST_VERSION, *, forgets: bool = False
) -> Record:
    """The record of a version. It gets its checksum when it is written."""
    return Record(replace(manifest, stores={}, staged=(), crc=None), now_ms, rows, since, forgets)


def to_bytes(record: Record) -> bytes:
    """The content of the record's file."""
    return _framed(_body(record))


def _body(record: Record) -> bytes:
    forgets = {"forgets": True} if record.forgets else {}
    body = {"now_ms": record.now_ms, "rows": dict(record.rows), "since": record.since, **forgets, "facts": to_json(record.facts)}
    return json.dumps(body, separators=(",", ":")).encode()


def _framed(body: bytes) -> bytes:
    return f'{{"format":{FORMAT},"crc":{_checksum(body)},"body":\n'.encode() + body + b"\n}"


def from_bytes(data: bytes, path: str, version: Version) -> Record:
    """Parse the content of a record's file. Raises an error if it is damaged, of another format or not of this version."""
    try:
        outer: dict[str, Any] = json.loads(data)
        intact = _checksum(data.split(b"\n", 1)[1].rsplit(b"\n", 1)[0], outer["format"]) == outer["crc"]
        body = outer["body"]
    except (ValueError, KeyError, IndexError, TypeError) as broken:
        raise _corrupt(path, "text that is no record") from broken
    if not intact:
        raise _corrupt(path, "another checksum than it carries")
    if outer["format"] != FORMAT:
        hint = "go on with the Headrace that wrote it, or start with a new checkpointLocation"
        raise CheckpointError(where=path, wanted=f"a record of format {FORMAT}", found=f"format {outer['format']}", hint=hint)
    try:
        rows = {OperatorId(name): int(count) for name, count in body["rows"].items()}
        since, forgets = Version(int(body.get("since", 0))), bool(body.get("forgets", False))
        record = Record(from_json(body["facts"], outer["crc"]), int(body["now_ms"]), rows, since, forgets)
    except (ValueError, KeyError, TypeError, AttributeError, InvariantError) as broken:
        raise _corrupt(path, f"something that Headrace never writes: {broken}") from broken
    if record.version != version:
        raise _corrupt(path, f"the record of version {record.version} under the number {version}")
    return record


def check_same(before: Record, again: Record, path: str, operators: Collection[OperatorId] | None = None) -> None:
    """Raise an error unless a version that was made again has read as many rows as before; ``operators`` are those to compare."""
    wanted, found = ({op: rows for op, rows in each.rows.items() if operators is None or op in operators} for each in (before, again))
    if wanted != found:
        raise CheckpointMismatchError(
            where=path,
            wanted=f"that version {before.version} reads the same rows again: {wanted}, by operator",
            found=f"{found}",
            hint="the source has changed or does not keep its history, or the query selects rows at random;"
            " restore the source, or start with a new checkpointLocation",
        )


class Journal:
    """The records of one checkpoint, in the durable store."""

    PREFIX = "journal/"

    def __init__(self, store: DurableStore) -> None:
        self.store = store

    def key(self, version: Version) -> str:
        return f"{self.PREFIX}{version:012d}.json"

    def where(self, version: Version) -> str:
        """The address of a version's object, for messages."""
        return self.store.where(self.key(version))

    def path(self, version: Version) -> Path:
        """The file of a record, in a folder."""
        return Path(self.store.where(self.key(version)))

    def versions(self) -> list[Version]:
        """The versions that have a record, oldest first."""
        return listed(self.store, self.PREFIX, self.key)

    def read(self, version: Version) -> Record | None:
        """The record of a version; None if there is none."""
        try:
            data = self.store.get(self.key(version))
        except FileNotFoundError:
            return None
        return from_bytes(data, self.store.where(self.key(version)), version)

    def write(self, record: Record, *, sync: bool) -> Record:
        """Write a version's record; returns it with its checksum. Raises an error if there is one already."""
        key, body = self.key(record.version), _body(record)
        try:
            self.store.put_if_absent(key, _framed(body), sync=sync)
        except FileExistsError as exists:
            raise CheckpointError(
                where=self.store.where(key),
                wanted="to be the only query on this checkpoint",
                found="that another one has just written the same version",
                hint="stop one of the two; this one has changed nothing",
            ) from exists
        return replace(record, facts=replace(record.facts, crc=_checksum(body)))

    def trim(self, before: Version) -> None:
        """Remove the records of versions before this one, whose state is durable (SEEP's trim)."""
        for version in self.versions():
            if version < before:
                self.store.delete(self.key(version))


def _checksum(body: bytes, form: int = FORMAT) -> int:
    return zlib.crc32(body, form)


def _corrupt(path: str, found: str) -> CorruptStateError:
    hint = "restore the file, with the whole folder 'headrace' and Spark's logs, from one backup; nothing was guessed"
    return CorruptStateError(path=path, wanted="an intact record of the journal", found=found, hint=hint)
