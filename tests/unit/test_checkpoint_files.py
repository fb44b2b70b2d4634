"""The small files of a checkpoint: damage to any of them is found, refused, or provably harmless."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import CheckpointError, CorruptStateError, InvariantError, StorageError
from headrace.ids import StoreId
from headrace.runtime.checkpoint import ROUTING, Checkpoint
from headrace.runtime.leases import is_lease
from headrace.state.layout import Layout
from headrace.state.manifest import Manifest, StoreState
from headrace.state.open_runs import OPEN
from headrace.state.recreation import Recreation
from headrace.state.routing import Routing
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.working import Working

LAYOUT = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.float64()),))
OP = StoreId.parse("op")
STORES: dict[StoreId, tuple[Layout, dict[str, object]]] = {OP: (LAYOUT, {"operator": "aggregate", "keys": ["k"]})}
ABOUT: dict[str, object] = {"identities": {"op": {"kind": "x"}}, "sources": ["s"], "retired": []}
BASE = Routing.even(2)
CHANGED = Routing(BASE.ranges, 1, (Recreation(((0, 10),), 1, 0, 1, 60, 75, 100),), ((7, 9),))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(str(tmp_path))
    made.open(STORES, ABOUT)
    made.claim()
    made.manifests.commit(Manifest(0, "e", {OP: StoreState()}, routing={"op": BASE}), sync=False)
    return made


def flips(data: bytes) -> list[bytes]:
    """The data with each of its bits flipped in turn."""
    return [data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :] for bit in range(len(data) * 8)]


def test_no_flipped_bit_of_the_noted_routing_is_believed(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint.note_routing({"op": CHANGED})
    assert checkpoint.routing() == {"op": CHANGED}
    path = checkpoint.directory / ROUTING
    with caplog.at_level(logging.CRITICAL, "headrace"):
        for damaged in flips(path.read_bytes()):
            path.write_bytes(damaged)
            assert checkpoint.routing() in ({"op": BASE}, {"op": CHANGED}), damaged
    path.write_bytes(path.read_bytes().replace(b"100", b"101"))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert checkpoint.routing() == {"op": BASE}, "the newest version's, which fits its state"
    assert "routing.json: ignored" in caplog.text
    assert checkpoint.noted.damage()


@pytest.mark.parametrize(
    "wrong",
    [
        {"spread": [[5, 9000]]},
        {"spread": [[9, 5]]},
        {"spread": [[5, 9], [8, 10]]},
        {"recreations": [{**CHANGED.recreations[0].to_json(), "new": 2}]},
        {"recreations": [{**CHANGED.recreations[0].to_json(), "slots": [[0, 9000]]}]},
        {"recreations": [{**CHANGED.recreations[0].to_json(), "end_us": 60}]},
        {"recreations": [CHANGED.recreations[0].to_json()] * 2},
        {"ranges": [[[0, 2048]], [[2049, 4096]]]},
    ],
)
def test_a_routing_checks_itself_when_it_is_read(wrong: dict[str, object]) -> None:
    assert Routing.from_json(json.loads(json.dumps(CHANGED.to_json()))) == CHANGED
    with pytest.raises(InvariantError):
        Routing.from_json(json.loads(json.dumps(CHANGED.to_json() | wrong)))


def test_the_description_is_the_same_after_a_restart(checkpoint: Checkpoint) -> None:
    written = checkpoint.identity()
    assert list(written["operators"]) == ["op"]
    for about in (ABOUT, {**ABOUT, "retired": ["gone"]}):
        checkpoint.release()
        again = Checkpoint(str(checkpoint.location))
        again.open(STORES, about)
        again.claim()
        again.keep_identity()
        assert again.identity() == {**written, **about}
        checkpoint = again


def test_no_flipped_bit_of_the_description_is_believed(checkpoint: Checkpoint) -> None:
    path, intact = checkpoint.directory / "query.json", checkpoint.identity()
    data, refused = path.read_bytes(), 0
    for damaged in flips(data):
        path.write_bytes(damaged)
        try:
            assert checkpoint.identity() == intact, damaged
        except CheckpointError:
            refused += 1
    assert refused > 0.9 * 8 * len(data), "all but flips between two kinds of white space"
    path.write_bytes(data.replace(b"aggregate", b"aggregatf"))
    with pytest.raises(CorruptStateError, match=r"query\.json: .*another checksum than it carries"):
        checkpoint.identity()


_LEASE = '{"version": %s, "pid": %s, "host": "h", "since": 1}'
ODD_LEASES = ["{}", "[]", "7", "", "\0\1", _LEASE % ('"x"', 1), _LEASE % (1, 0)]


@pytest.mark.parametrize("text", ODD_LEASES)
def test_a_lease_that_makes_no_sense_protects_nothing_and_stops_nobody(
    checkpoint: Checkpoint, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (1, 2):
        checkpoint.manifests.commit(Manifest(version, "e", {OP: StoreState()}), sync=False)
    wrong = checkpoint.leases / "wrong.json"
    wrong.write_text(text)
    mine = checkpoint.lease(0)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert checkpoint.leased() == {0}
    checkpoint.collect_garbage(1)
    assert checkpoint.manifests.versions() == [0, 2]
    assert "wrong.json: ignored" in caplog.text
    assert (is_lease(checkpoint.store, mine), is_lease(checkpoint.store, "leases/wrong.json")) == (True, False)


@pytest.fixture
def run(tmp_path: Path) -> RunRef:
    (tmp_path / "runs").mkdir()
    hashes = np.linspace(0, 2**64 - 2**12, 20_000).astype(np.uint64)
    columns = [pa.array(hashes), pa.array(np.arange(20_000)), pa.array(np.arange(20_000) / 2)]
    rows = pa.RecordBatch.from_arrays(columns, schema=LAYOUT.schema)
    return write_run(tmp_path / "runs", "v000000000001-op-i0-e0-a0-run.arrow", rows, LAYOUT, seq=3, lo=0, hi=4096, sync=False)


def test_a_run_that_is_cut_short_while_it_is_open_is_refused(tmp_path: Path, run: RunRef) -> None:
    """Touching pages that are gone would kill the process; a run that was checked before would do so too."""
    reader = RunReader(tmp_path / "runs", LAYOUT)
    assert reader.open(run).rows.num_rows == 20_000
    os.truncate(tmp_path / "runs" / run.file, 1000)
    with pytest.raises(CorruptStateError, match=f"wanted {run.bytes} bytes; found 1000 bytes"):
        reader.open(run)


@pytest.mark.parametrize("cut", ["copy", "marks", "no marks"])
def test_a_working_copy_that_is_cut_short_while_it_is_open_is_mended(tmp_path: Path, run: RunRef, cut: str) -> None:
    reader = RunReader(tmp_path / "runs", LAYOUT, Working(tmp_path / "working"))
    expected = RunReader(tmp_path / "runs", LAYOUT).open(run).rows
    assert reader.open(run).rows.equals(expected)
    copy = tmp_path / "working" / run.file
    marks = copy.with_name(f".{copy.stem}.here")
    if cut == "copy":
        os.truncate(copy, 1000)
    else:
        OPEN.close_all()
        os.truncate(marks, 3 if cut == "marks" else 0)
    assert reader.open(run).rows.equals(expected)


def test_a_file_that_does_not_fit_on_the_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    program = f"""
import resource, sys
import pyarrow as pa
from pathlib import Path
from headrace.errors import StorageError
from headrace.state.blocks import write_arrow

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))
try:
    write_arrow(Path(sys.argv[1]) / "run.arrow", pa.RecordBatch.from_pydict({{"x": list(range(100_000))}}), sync=False)
except StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True)
    assert f"{tmp_path}/run.arrow: wanted to write a file" in done.stdout
    assert "File too large (EFBIG); free some space" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_checkpoint_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"gone/run\.arrow: .*a folder of the checkpoint is gone"):
        write_run(tmp_path / "gone", "run.arrow", LAYOUT.empty(), LAYOUT, seq=1, lo=0, hi=4096, sync=False)
