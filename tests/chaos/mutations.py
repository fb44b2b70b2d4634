"""Damage that no engine can notice: lost or doubled results, lost state. It proves that the campaign finds such damage."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headrace.runtime.checkpoint import Checkpoint
from headrace.state.manifest import to_bytes
from tests.chaos.query import FORMATS
from tests.chaos.rig import Rig
from tests.crash.harness import listed_files


def _sink(rig: Rig) -> Path:
    """A file sink that has written something."""
    return next(rig.output / name for name in rig.order if name in FORMATS and listed_files(rig.output / name))


def _entry(sink: Path) -> tuple[Path, list[str]]:
    """A file of the sink's log that names files, and its lines."""
    for path in sorted(sink.glob("_spark_metadata/[0-9]*"), key=lambda p: -int(p.stem)):
        lines = path.read_text().splitlines()
        if len(lines) > 1:
            return path, lines
    raise AssertionError(f"{sink}: the log names no file")


def double_a_file(rig: Rig) -> None:
    path, lines = _entry(_sink(rig))
    entry = json.loads(lines[1])
    written = Path(entry["path"].removeprefix("file://"))
    copy = written.with_name(f"again-{written.name}")
    shutil.copy(written, copy)
    path.write_text("\n".join([*lines, json.dumps(entry | {"path": f"file://{copy}"})]))


def lose_a_file(rig: Rig) -> None:
    path, lines = _entry(_sink(rig))
    path.write_text("\n".join([lines[0], *lines[2:]]))


def change_a_total(rig: Rig) -> None:
    with sqlite3.connect(rig.output / "totals.db") as database:
        newest = "select rowid from totals order by version desc limit 1"
        database.execute(f"update totals set n = n + 1 where rowid = ({newest})")
    database.close()


def forget_state(rig: Rig) -> None:
    """The newest manifest, well-formed in all respects, no longer names the runs of one store."""
    checkpoint = Checkpoint(str(rig.checkpoint))
    manifest = checkpoint.latest()
    assert manifest is not None
    name = next(name for name, state in manifest.stores.items() if state.runs)
    stores = {**manifest.stores, name: replace(manifest.stores[name], runs=())}
    path = checkpoint.manifests.path(manifest.version)
    path.unlink()
    path.write_bytes(to_bytes(replace(manifest, stores=stores)))


MUTATIONS: dict[str, Callable[[Rig], None]] = {
    "double": double_a_file,
    "lose": lose_a_file,
    "total": change_a_total,
    "state": forget_state,
}
