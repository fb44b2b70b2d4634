"""Reads Spark's own logs of a checkpoint, and checks that they and Headrace's manifests belong together.

    checkpoint/
      metadata            {"id": "..."}                  Spark's id of the query
      offsets/7           v1 / metadata / one line for each source
      commits/7           batch 7 is done
      sources/0/7         for a file source: the files of its log's entry 7; every tenth is 9.compact, with all entries up to it
      headrace/           ours

Spark decides what a batch reads, and Headrace computes the state from it. If one of the two logs is replaced, restored or lost, rows would
be counted twice or never. So a manifest records what Spark's log said about its batch, and the two are compared before a query goes on.
They belong together if, for the newest manifest M, the newest offsets O and the newest commit C:  O - 1 <= M <= O  and  C <= M.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from headrace.errors import CheckpointMismatchError, CorruptStateError
from headrace.ids import Version
from headrace.state.disk import disk_errors, sync_file
from headrace.state.durable import DurableStore
from headrace.state.manifest import Manifest, SourceEntries

Offsets = tuple[str | None, ...]

OFFSETS_VERSION = "v1"
NO_OFFSET = "-"
COMPACT = ".compact"
TAIL_BYTES = 1 << 16

TOGETHER = "restore Spark's logs and the folder 'headrace' from one backup, or start with a new checkpointLocation (and new output folders)"


class SparkLog:
    """The logs of one checkpoint location."""

    def __init__(self, store: DurableStore, location: str) -> None:
        self.store, self.location = store, location
        self._synced_start = False

    @property
    def is_far(self) -> bool:
        """True if each look at the logs is a request over a network."""
        return self.store.local is None

    def has_commit(self, version: Version) -> bool:
        """True if Spark has committed a batch."""
        return self.store.size(f"commits/{version}") is not None

    def offsets(self, version: Version) -> Offsets | None:
        """The offsets of the sources at the end of a batch (SEEP's tau); None if Spark has no entry. A source without data has None."""
        key = f"offsets/{version}"
        path = self.store.where(key)
        try:
            lines = self.store.get(key).decode("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return None
        if lines[0] == "v2":
            raise CheckpointMismatchError(
                where=path,
                wanted="Spark's offsets in format v1",
                found="format v2 (named sources)",
                hint="set spark.sql.streaming.offsetLog.formatVersion to 1 and start with a new checkpointLocation",
            )
        if lines[0] != OFFSETS_VERSION or len(lines) < 3:
            raise CorruptStateError(
                path=path,
                wanted="Spark's offsets of a batch: a line 'v1', a line of settings, and a line for each source",
                found=f"{len(lines)} lines that begin with {lines[0][:20]!r}",
                hint=f"restore the file from a backup; {TOGETHER}",
            )
        return tuple(None if line == NO_OFFSET else line for line in lines[2:])

    def needed_offsets(self, version: Version) -> Offsets:
        """The offsets of a batch. Raises an error if Spark has no entry."""
        found = self.offsets(version)
        if found is None:
            raise CheckpointMismatchError(
                where=self.location,
                wanted=f"Spark's offsets of batch {version} (offsets/{version})",
                found="no such file",
                hint=f"Spark's log was reset or damaged: {TOGETHER}",
            )
        return found

    def batch_time_ms(self, version: Version) -> int:
        """When Spark planned a batch, by the clock."""
        key = f"offsets/{version}"
        try:
            return int(json.loads(self.store.get(key).split(b"\n")[1])["batchTimestampMs"])
        except (ValueError, KeyError, IndexError, TypeError) as broken:
            hint = f"restore the file from a backup; {TOGETHER}"
            path = self.store.where(key)
            raise CorruptStateError(path=path, wanted="the time of a batch", found="text without it", hint=hint) from broken

    def newest(self, log: str) -> int | None:
        """The number of the newest batch in ``offsets`` or ``commits``; None if there is none."""
        return max(self.numbers(log), default=None)

    def numbers(self, log: str) -> set[int]:
        """The numbers of the batches in ``offsets`` or ``commits``. Spark removes old ones."""
        return self._numbers(f"{log}/")

    def has_nothing(self) -> bool:
        """True if no batch was ever planned, and no source has an entry in its log."""
        return not self.numbers("offsets") and not any(self._numbers(f"sources/{each}/") for each in self._sources())

    def query_id(self) -> str:
        """Spark's id of the query; empty while there is none."""
        path = self.store.where("metadata")
        try:
            return str(json.loads(self.store.get("metadata"))["id"])
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError) as broken:
            raise CorruptStateError(
                path=path, wanted="Spark's id of the query", found="text without it", hint="restore the file from a backup"
            ) from broken

    def entries_since(self, before: Manifest | None) -> tuple[SourceEntries, ...]:
        """By source: the new entries of its log since the version before. A source without new entries keeps those of that version."""
        known = {each.source: each for each in before.source_entries} if before else {}
        found = []
        for source in sorted(self._sources()):
            folder = f"sources/{source}/"
            earlier = known.pop(source, None)
            numbers = self._numbers(folder)
            new = [n for n in numbers if earlier is None or n > earlier.last]
            if new:
                found.append(SourceEntries(source, min(new), max(new), self._checksum(folder, sorted(new))))
            elif earlier is not None:
                found.append(earlier)
        return (*found, *known.values())

    def check(self, manifest: Manifest) -> None:
        """Raise an error if Spark's log has changed since this version was written."""
        version, logged = manifest.version, self.needed_offsets(manifest.version)
        if logged != manifest.offsets:
            raise CheckpointMismatchError(
                where=self.location,
                wanted=f"a batch {version} that ended at {_shown(manifest.offsets)}, as its state says",
                found=f"{_shown(logged)} in offsets/{version}",
                hint=f"Spark's log was replaced, or the folder 'headrace' belongs to another run: {TOGETHER}",
            )
        for entries in manifest.source_entries:
            self._check_entries(version, entries)

    def _check_entries(self, version: Version, entries: SourceEntries) -> None:
        folder = f"sources/{entries.source}/"
        numbers = self._numbers(folder)
        lost = [n for n in range(entries.first, entries.last + 1) if n not in numbers]
        if lost and (not numbers or max(numbers) < entries.last or lost[-1] > min(numbers)):
            found = f"no entry {lost[0]}"
        elif lost:
            # Spark has removed old entries, which a later compacted entry contains.
            return
        elif self._checksum(folder, range(entries.first, entries.last + 1)) != entries.crc:
            found = f"other content in entries {entries.first} to {entries.last}"
        else:
            return
        raise CheckpointMismatchError(
            where=self.store.where(folder),
            wanted=f"the log of source {entries.source} as it was when version {version} was written",
            found=found,
            hint=f"the source's log was replaced, so files would be read twice or never: {TOGETHER}",
        )

    def add_empty(self) -> None:
        """Plan one more batch, without rows, which Spark runs first when the query starts. Call it only while no query runs.

        If Spark has planned a batch that it has not committed, that one runs first, and nothing is added.
        """
        newest = self.newest("offsets")
        if newest is not None and newest == self.newest("commits"):
            self.store.put(f"offsets/{newest + 1}", self.store.get(f"offsets/{newest}"))

    def _sources(self) -> list[str]:
        return [name for name in self.store.folders("sources/") if name[0] not in "._"]

    def _numbers(self, prefix: str) -> set[int]:
        """The numbers of the entries of one of Spark's logs."""
        names = (key.removeprefix(prefix).removesuffix(COMPACT) for key in self.store.keys(prefix))
        return {int(name) for name in names if name.isdigit()}

    def _checksum(self, prefix: str, numbers: range | list[int]) -> int:
        crc = 0
        for number in numbers:
            try:
                data = self.store.get(f"{prefix}{number}").partition(b"\n")[2]
            except FileNotFoundError:
                data = self._own_lines(f"{prefix}{number}{COMPACT}", number)
            crc = zlib.crc32(data, crc)
        return crc

    def _own_lines(self, key: str, number: int) -> bytes:
        """The lines of a compacted entry that belong to its own batch. They come last, after those of all earlier entries."""
        size = self.store.size(key)
        if size is None:
            raise FileNotFoundError(self.store.where(key))
        take = TAIL_BYTES
        while True:
            lines = self.store.get(key, max(0, size - take)).split(b"\n")[1:]
            own = [line for line in lines if _batch_of(line) == number]
            if len(own) < len(lines) or take >= size:
                return b"\n".join(own)
            take *= 4

    def sync(self, version: Version, entries: tuple[SourceEntries, ...]) -> None:
        """Sync Spark's log entries of a version to disk. Called before the version is committed. Other stores have nothing to do."""
        location = self.store.local
        if location is None:
            return
        offsets, sources = location / "offsets", location / "sources"
        files = [offsets / str(version)]
        for each in entries:
            files += [_path(sources / each.source, number) for number in range(each.first, each.last + 1)]
        files = [path for file in files for path in (file, file.with_name(f".{file.name}.crc"))]
        folders = [offsets, *(sources / each.source for each in entries)]
        if not self._synced_start:
            folders += [sources, location]
            files.append(location / "metadata")
        with disk_errors(offsets, "to make Spark's log durable"):
            for path in (*files, *folders):
                if path.exists():
                    sync_file(path)
        self._synced_start = True


def check_together(log: SparkLog, newest: Manifest | None) -> None:
    """At a start: raise an error unless the newest version belongs to the last batch in Spark's log, or to the one before it."""
    where = log.location
    offsets, commits = log.newest("offsets"), log.newest("commits")
    spark = f"Spark's log of batches {'none' if offsets is None else f'up to {offsets}'}"
    if newest is None:
        if offsets not in (None, 0) or commits is not None:
            wanted = f"the state that belongs to {spark}"
            raise CheckpointMismatchError(where=where, wanted=wanted, found="no version", hint=_lost("headrace"))
        return
    _check_query(log, newest)
    version = newest.version
    if offsets is None or version > offsets:
        wanted = f"Spark's log up to batch {version}, the newest with state"
        raise CheckpointMismatchError(where=where, wanted=wanted, found=spark, hint=_lost("offsets"))
    if version < offsets - 1 or (commits is not None and commits > version):
        done = max(offsets - 1, -1 if commits is None else commits)
        wanted, found = f"the state of version {done}, which {spark} needs", f"version {version} as the newest"
        raise CheckpointMismatchError(where=where, wanted=wanted, found=found, hint=_lost("headrace"))
    log.check(newest)


def _check_query(log: SparkLog, newest: Manifest) -> None:
    found = log.query_id()
    if newest.query_id and found != newest.query_id:
        raise CheckpointMismatchError(
            where=log.location,
            wanted=f"Spark's logs of the query {newest.query_id}, whose state 'headrace' holds",
            found=f"those of the query {found}" if found else "no file 'metadata' with its id",
            hint=f'if only \'metadata\' was lost, write {{"id":"{newest.query_id}"}} into it; otherwise {TOGETHER}',
        )


def _lost(folder: str) -> str:
    return f"'{folder}' was lost, reset or is of an older backup: {TOGETHER}"


def _shown(offsets: Offsets) -> str:
    return "[" + ", ".join("none" if each is None else each for each in offsets) + "]"


def _path(folder: Path, number: int) -> Path:
    plain = folder / str(number)
    return plain if plain.exists() else folder / f"{number}{COMPACT}"


def _batch_of(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["batchId"])
    except (ValueError, KeyError, TypeError):
        return None
