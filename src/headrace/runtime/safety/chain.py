"""The chain of a checkpoint's versions: manifests and records of the journal, each with the checksum of the one that it builds on.

journal      record 41 <- record 42 <- record 43 <- record 44          a record builds on the version before
manifests    manifest 38 <----------- manifest 43                      a manifest builds on the durable version before
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from headrace.errors import CheckpointMismatchError
from headrace.ids import FIRST_VERSION, NO_VERSION, Version
from headrace.state.durable import DurableStore, at_once
from headrace.state.journal import Journal
from headrace.state.manifest import Manifest, ManifestStore, check_follows

Found = TypeVar("Found")
Link = tuple[Manifest, list[Manifest], str]
"""A manifest or record, what it must build on (empty if that is not kept), and its path."""


def links(manifests: ManifestStore, journal: Journal) -> Iterator[Link]:
    """The links of all versions that are kept, oldest first. Raises an error for one that cannot be read."""
    durable = _read(manifests.store, manifests.versions(), manifests.read)
    records = {version: each.facts for version, each in _read(journal.store, journal.versions(), journal.read).items() if each is not None}

    def kept(version: Version) -> list[Manifest]:
        return [each[version] for each in (durable, records) if version in each]

    for version, manifest in durable.items():
        before = kept(manifest.follows) if manifest.follows == version - 1 else [durable[v] for v in [manifest.follows] if v in durable]
        yield manifest, before, manifests.where(version)
    for version, facts in records.items():
        # The record of a durable version is kept only for the one behind it. What it builds on may be gone.
        if version > max(durable, default=NO_VERSION):
            yield facts, kept(Version(version - 1)), journal.where(version)


def _read(store: DurableStore, versions: Sequence[Version], read: Callable[[Version], Found]) -> dict[Version, Found]:
    """What there is of each of these versions, oldest first."""
    found: dict[Version, Found] = {}

    def note(version: Version) -> None:
        found[version] = read(version)

    at_once(store, [partial(note, version) for version in versions])
    return {version: found[version] for version in versions}


def check_chain(chain: Iterator[Link]) -> None:
    """Raise an error unless every version was written on top of the one that it says, where both are kept."""
    for link in chain:
        check_follows(*link)


def since_needed(journal: Journal, committed: int | None) -> Version:
    """The first batch on which the version depends that a restart goes on from. ``committed`` is the last batch that Spark has committed.

    Spark runs a batch again that it has not committed. Then the restart goes on from the version before.
    """
    versions = journal.versions()
    if not versions:
        return FIRST_VERSION
    is_committed = committed is not None and committed >= versions[-1]
    record = journal.read(versions[-1] if is_committed else Version(versions[-1] - 1))
    return FIRST_VERSION if record is None else record.since


def forgotten_upto(journal: Journal, durable: Sequence[Version]) -> Version | None:
    """The newest version, if it was made by the approach amnesia and is not durable: its state ended with its executors. None otherwise."""
    versions = journal.versions()
    if not versions or (durable and durable[-1] >= versions[-1]):
        return None
    newest = journal.read(versions[-1])
    return newest.version if newest is not None and newest.forgets else None


def check_remembers(location: str, journal: Journal, durable: Sequence[Version]) -> None:
    """Raise an error if state cannot be computed again, because the query that wrote the checkpoint kept none safe."""
    newest = forgotten_upto(journal, durable)
    if newest is not None:
        raise CheckpointMismatchError(
            where=location,
            wanted="a checkpoint from which lost state can be computed again, as this query's guarantee asks for",
            found=f"versions up to {newest} by recovery('amnesia'), which keeps no state safe",
            hint="start it with recovery('amnesia'), end it with stop(), which makes its newest state durable, and then start this query;"
            " or start with a new checkpointLocation",
        )


def check_journal(location: str, durable: Sequence[Version], journaled: Sequence[Version], since: Version = FIRST_VERSION) -> None:
    """Raise an error unless the journal has every version since the last durable one, up to its newest.

    If the state depends only on batches from ``since`` on, the versions before do not matter, except the last one: it has the watermark and
    the routing that ``since`` goes on from.
    """
    last = max(durable[-1] if durable else NO_VERSION, since - 2)
    newest = journaled[-1] if journaled else last
    lacking = sorted({Version(each) for each in range(last + 1, newest)} - set(journaled))
    if lacking:
        raise CheckpointMismatchError(
            where=f"{location}/headrace/journal",
            wanted=f"a record of every version from {last + 1} to {newest}, from which they are computed again",
            found=f"none of version {lacking[0]}",
            hint="restore the folder 'headrace' and Spark's logs from one backup, or start with a new checkpointLocation",
        )
