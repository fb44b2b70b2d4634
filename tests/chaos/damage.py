"""Damage to each kind of file of a checkpoint, while the query is down, and how it is undone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from headrace.chaos.faults import NotPossible
from headrace.runtime.checkpoint import Checkpoint


@dataclass
class Damage:
    """Files that were changed, with their former content."""

    what: str
    originals: dict[Path, bytes | None] = field(default_factory=dict)
    """The former content; None if there was no such file."""
    left: dict[Path, bytes | None] = field(default_factory=dict)

    def remember(self, path: Path) -> None:
        self.originals.setdefault(path, path.read_bytes() if path.exists() else None)

    def done(self) -> Damage:
        self.left = {path: path.read_bytes() if path.exists() else None for path in self.originals}
        return self

    def undo(self) -> None:
        for path, data in self.originals.items():
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)

    def untouched(self) -> bool:
        """True if the damage is still there unchanged."""
        return all((path.read_bytes() if path.exists() else None) == data for path, data in self.left.items())


def _numbered(folder: Path) -> list[Path]:
    """A log's files, oldest first, without Spark's checksums."""
    found = [path for path in folder.glob("*") if path.stem.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.stem))


def _runs(location: Path) -> list[Path]:
    checkpoint = Checkpoint(str(location))
    latest = checkpoint.latest()
    names = sorted({ref.file for state in latest.stores.values() for ref in state.runs}) if latest else []
    return [checkpoint.runs / name for name in names]


def _staged(location: Path) -> list[Path]:
    checkpoint = Checkpoint(str(location))
    latest = checkpoint.latest()
    return [checkpoint.directory / s.folder / s.file for s in latest.staged] if latest else []


KNOWN = {"manifests", "runs", "staged", "leases", "history", "query.json", "routing.json"}


def _others(location: Path) -> list[Path]:
    """Fencing tokens, the owner file, and any other file of a checkpoint."""
    folder = location / "headrace"
    return sorted(path for path in folder.rglob("*") if path.is_file() and not KNOWN & set(path.relative_to(folder).parts))


TARGETS: dict[str, Callable[[Path], list[Path]]] = {
    "manifest": lambda at: _numbered(at / "headrace" / "manifests"),
    "run": _runs,
    "staged": _staged,
    "routing": lambda at: [at / "headrace" / "routing.json"],
    "description": lambda at: [at / "headrace" / "query.json"],
    "lease": lambda at: sorted((at / "headrace" / "leases").glob("*")),
    "token": _others,
    "offsets": lambda at: _numbered(at / "offsets"),
    "commits": lambda at: _numbered(at / "commits"),
    "source log": lambda at: _numbered(at / "sources" / "0"),
    "metadata": lambda at: [at / "metadata"],
}
"""The files of a checkpoint by kind, oldest first."""

SERIES = ("manifest", "offsets", "commits", "source log")
"""Kinds with one file per version, where a file can replace that of another version."""


def flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    _replace(path, bytes(data))


def truncate(path: Path, random: Random) -> None:
    data = path.read_bytes()
    _replace(path, data[: random.randrange(len(data))] if data else b"")


def empty(path: Path, random: Random) -> None:
    _replace(path, b"")


def delete(path: Path, random: Random) -> None:
    path.unlink()


def _replace(path: Path, data: bytes) -> None:
    """Write a new file, so that a process that has mapped the old one keeps it."""
    path.unlink()
    path.write_bytes(data)


SIMPLE = {"flip a bit of": flip, "truncate": truncate, "empty": empty, "delete": delete}


def corrupt(checkpoint: Path, target: str, random: Random, foreign: Path | None = None) -> Damage:
    """Damage a file of a kind, in one of the ways that make sense for it."""
    paths = [path for path in TARGETS[target](checkpoint) if path.is_file()]
    if target == "lease" and not paths:
        return _bogus_lease(checkpoint, random)
    if not paths:
        raise NotPossible(f"the checkpoint has no {target}")
    newest = random.random() < 0.7
    at = len(paths) - 1 if target in SERIES and newest else random.randrange(len(paths))
    path = paths[at]
    ways = list(SIMPLE)
    if target in SERIES and at > 0:
        ways += ["exchange with the one before", "overwrite by the one before"]
    theirs = foreign / path.relative_to(checkpoint) if foreign is not None else None
    if theirs is not None and target in ("routing", "description", "offsets", "commits", "source log", "metadata", "manifest", "token"):
        ways += ["replace by another run's"] if theirs.is_file() else []
    way = random.choice(ways)
    damage = Damage(f"{way} {path.relative_to(checkpoint)}")
    before = paths[at - 1]
    touched = [path, before] if way.startswith("exchange") else [path]
    for each in touched:
        damage.remember(each)
        damage.remember(_crc(each))
    if way in SIMPLE:
        SIMPLE[way](path, random)
    elif way.startswith("exchange"):
        mine, other = path.read_bytes(), before.read_bytes()
        _replace(path, other)
        _replace(before, mine)
    else:
        source = before if way.startswith("overwrite") else theirs
        assert source is not None
        _replace(path, source.read_bytes())
    if target in ("offsets", "commits", "source log", "metadata") and random.random() < 0.5:
        # As after a copy by tools that know nothing of Spark's hidden checksums.
        for each in touched:
            _crc(each).unlink(missing_ok=True)
        damage.what += ", without .crc"
    return damage.done()


def _crc(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _bogus_lease(checkpoint: Path, random: Random) -> Damage:
    """A malformed lease."""
    texts = ("{}", "", "[]", "null", '{"version": "x"}', '{"version": 1, "pid": -1, "host": null, "since": "now"}', "\x00\xff")
    text = random.choice(texts)
    path = checkpoint / "headrace" / "leases" / f"{random.randrange(2**32):x}.json"
    damage = Damage(f"a lease of {text!r}")
    damage.remember(path)
    path.write_text(text)
    return damage.done()


def foreign_folder(checkpoint: Path, foreign: Path, random: Random) -> Damage:
    """Replace the whole folder of our state, or of Spark's offsets, by that of another run."""
    name = random.choice(("headrace", "offsets"))
    damage = Damage(f"folder {name} of another run")
    for path in [*(checkpoint / name).rglob("*"), *(checkpoint / path.relative_to(foreign) for path in (foreign / name).rglob("*"))]:
        if not path.is_dir():
            damage.remember(path)
    shutil.rmtree(checkpoint / name)
    shutil.copytree(foreign / name, checkpoint / name)
    return damage.done()
