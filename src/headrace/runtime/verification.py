"""Checks a checkpoint: every file that a version names, and that manifests, routing and Spark's logs belong together. Needs no Spark.

A finding is *broken* if a restart would be refused or would fail. It is *notable* if it is harmless; its text says what it means.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from headrace.errors import HeadraceError, VersionNotFoundError
from headrace.ids import NO_VERSION, Version
from headrace.logs import logger
from headrace.runtime.checkpoint import FOLDERS, ROUTING, Checkpoint
from headrace.runtime.fencing import version_of
from headrace.runtime.inspection import lease
from headrace.runtime.leases import is_lease, lease_keys
from headrace.runtime.safety.chain import check_chain, check_journal, forgotten_upto, links, since_needed
from headrace.runtime.spark_log import check_together
from headrace.state.blocks import Blocks
from headrace.state.manifest import Manifest
from headrace.state.working import at_hand

TRIES = 5
_log = logger(__name__)


@dataclass
class Checked:
    """The findings of a check."""

    files: int = 0
    bytes: int = 0
    broken: list[str] = field(default_factory=list)
    """Each finding names a path, what is wrong with it, and what to do."""
    notable: list[str] = field(default_factory=list)

    def attempt(self, check: Callable[[], object]) -> None:
        """Run a check. If it raises an error, note it as broken."""
        try:
            check()
        except HeadraceError as error:
            self.broken.append(str(error))


def verify(checkpoint: Checkpoint, versions: list[Version]) -> Checked:
    """Check every byte of these versions, and that all parts of the checkpoint belong together. Each file is read once."""
    checked = Checked()
    with contextlib.ExitStack() as leases:
        for version in checkpoint.manifests.versions():
            leases.enter_context(lease(checkpoint, version))
        kept = _manifests(checkpoint, checked)
        _check_files(checkpoint, [kept[v] for v in versions if v in kept], checked)
        _check_chain(checkpoint, kept, checked)
        _check_spark(checkpoint, kept, checked)
        _check_rest(checkpoint, kept, checked)
    return checked


def _manifests(checkpoint: Checkpoint, checked: Checked) -> dict[Version, Manifest]:
    """By version: the manifests that are kept and can be read."""
    found = {}
    for version in checkpoint.manifests.versions():
        checked.files += 1
        try:
            found[version] = checkpoint.manifests.read(version)
        except VersionNotFoundError:
            # The running query removed it before it was leased.
            checked.files -= 1
        except HeadraceError as error:
            checked.broken.append(str(error))
    return found


def _check_files(checkpoint: Checkpoint, manifests: Iterable[Manifest], checked: Checked) -> None:
    wanted: dict[str, tuple[int, int]] = {}
    for manifest in manifests:
        for state in manifest.stores.values():
            wanted |= {f"runs/{ref.file}": (ref.bytes, ref.crc) for ref in state.runs}
        wanted |= {f"{s.folder}/{s.file}": (s.bytes, s.crc) for s in manifest.staged}
    store = checkpoint.store
    for key, (length, crc) in sorted(wanted.items()):
        checked.files += 1
        checked.bytes += length
        where = store.where(key)
        try:
            with at_hand(store, key, length) as path:
                blocks = Blocks(path, length, crc, where)
                blocks.need(0, blocks.data_bytes)
        except HeadraceError as error:
            is_there = store.size(key) is not None
            checked.broken.append(f"{where}: {error.wanted} wanted, {error.found} found" if is_there else f"{where}: missing")


def _check_chain(checkpoint: Checkpoint, kept: dict[Version, Manifest], checked: Checked) -> None:
    """Check that versions build on one another, and that the journal has all versions since the last durable one."""
    checked.files += len(checkpoint.journal.versions())
    if len(kept) == len(checkpoint.manifests.versions()):
        checked.attempt(lambda: check_chain(links(checkpoint.manifests, checkpoint.journal)))
    if (newest := forgotten_upto(checkpoint.journal, checkpoint.manifests.versions())) is None:
        checked.attempt(lambda: _check_journal(checkpoint))
    else:
        text = f"version {newest} is by the approach amnesia: its state is on executors only, and a restart begins empty"
        checked.notable.append(f"{checkpoint.store.where('journal')}: {text}")


def _check_journal(checkpoint: Checkpoint) -> None:
    # The journal is listed first: a query that runs removes records before the first batch on which its state depends.
    durable, journaled = checkpoint.manifests.versions(), checkpoint.journal.versions()
    check_journal(checkpoint.location, durable, journaled, since_needed(checkpoint.journal, checkpoint.spark_log.newest("commits")))


def _check_spark(checkpoint: Checkpoint, kept: dict[Version, Manifest], checked: Checked) -> None:
    """Compare Spark's logs with every version for which Spark still has an entry."""
    log = checkpoint.spark_log
    _check_newest(checkpoint, checked)
    newest = max(kept, default=None)
    for version, manifest in kept.items():
        if version != newest and version in log.numbers("offsets"):
            checked.attempt(partial(log.check, manifest))


def _check_newest(checkpoint: Checkpoint, checked: Checked) -> None:
    for attempt in range(TRIES):
        versions = checkpoint.manifests.versions()
        try:
            newest = checkpoint.newest_facts()
        except HeadraceError as broken:
            _log.debug("reported already: %s", broken, query=checkpoint.location)
            return
        try:
            check_together(checkpoint.spark_log, newest)
        except HeadraceError as error:
            if attempt < TRIES - 1 and checkpoint.manifests.versions() != versions:
                # The running query has committed another version meanwhile. Read again.
                continue
            checked.broken.append(str(error))
        return


def _check_rest(checkpoint: Checkpoint, kept: dict[Version, Manifest], checked: Checked) -> None:
    """Check the files beside the versions, and look for files that no version names."""
    checked.attempt(checkpoint.identity)
    damaged = checkpoint.noted.damage()
    if damaged:
        checked.notable.append(f"{checkpoint.store.where(ROUTING)}: damaged ({damaged}); a restart takes the routing of its newest version")
    _check_unnamed(checkpoint, kept, checked)
    store = checkpoint.store
    wrong = sorted(key.rpartition("/")[2] for key in lease_keys(store) if not is_lease(store, key))
    if wrong:
        checked.notable.append(f"{store.where('leases')}: {', '.join(wrong)}: not a lease; ignored, may be removed")


def _check_unnamed(checkpoint: Checkpoint, kept: dict[Version, Manifest], checked: Checked) -> None:
    """Look for files that no version names. Not possible if a manifest cannot be read, because it may name them."""
    if any(version not in kept for version in checkpoint.manifests.versions()):
        return
    needed = {file for manifest in kept.values() for file in manifest.files()}
    newest = max(kept, default=NO_VERSION)
    store = checkpoint.store
    for folder in FOLDERS:
        names = (key.rpartition("/")[2] for key in store.keys(f"{folder}/"))
        unnamed = [name for name in names if (folder, name) not in needed]
        old, where = [name for name in unnamed if version_of(name) <= newest], store.where(folder)
        if old:
            total = sum(store.size(f"{folder}/{name}") or 0 for name in old)
            checked.notable.append(f"{where}: {len(old):,} files of {total:,} bytes that no version names; the next start removes them")
        if len(unnamed) > len(old):
            count = len(unnamed) - len(old)
            checked.notable.append(f"{where}: {count:,} files of a version that is not committed: of a batch that runs or failed")
