"""Object stores, on a local S3 server behind a proxy that adds faults."""

from __future__ import annotations

import logging
import pickle
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.store.proxy import Fault, Proxy, Request
from headrace.errors import CheckpointError, CorruptStateError, MissingRunError, QueryError, StorageError
from headrace.runtime.fencing import Fence
from headrace.state import working as working_copies
from headrace.state.durable import DurableStore, FolderStore
from headrace.state.layout import HASH, Layout
from headrace.state.manifest import Manifest, ManifestStore
from headrace.state.requests import TRIES, Settings
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.stores import address_of, open_store
from headrace.state.working import Working
from tests.stores.conftest import settings_of
from tests.stores.contract import keeps_its_contract

LAYOUT = Layout((("k", pa.int64()),), (("v", pa.string()), ("n", pa.float64())))


@pytest.fixture
def store(proxy: Proxy, place: str) -> DurableStore:
    return open_store(place, settings_of(proxy.port, 1.0))


def first(proxy: Proxy, method: str, fault: Fault, times: int = 1) -> None:
    """Let the next requests of a method meet a fault."""
    left = [times]

    def rule(request: Request) -> Fault | None:
        if request.method != method or not left[0]:
            return None
        left[0] -= 1
        return fault

    proxy.rule = rule


def test_a_folder_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    keeps_its_contract(FolderStore(tmp_path / "store"), tmp_path)


def test_s3_keeps_the_contract(store: DurableStore, tmp_path: Path) -> None:
    keeps_its_contract(pickle.loads(pickle.dumps(store)), tmp_path)


@pytest.mark.parametrize("fault", [Fault(silent=True), Fault(torn=True), Fault(busy=True), Fault(hangs=True), Fault(delay_s=0.3)])
def test_requests_are_made_again(store: DurableStore, proxy: Proxy, fault: Fault) -> None:
    """Also one that has already done what it should, and whose answer was lost: who created an object exclusively is told so."""
    first(proxy, "PUT", fault, 2)
    store.put_if_absent("tokens/1", b"mine")
    first(proxy, "PUT", fault)
    with pytest.raises(FileExistsError):
        store.put_if_absent("tokens/1", b"theirs")
    first(proxy, "GET", fault)
    assert store.get("tokens/1") == b"mine"
    first(proxy, "PUT", fault)
    store.put("runs/a", b"a" * 300_000)
    first(proxy, "GET", fault)
    assert store.get("runs/a", 1, 200_000) == b"a" * 200_000


def test_a_store_that_never_answers_is_an_error_with_words(store: DurableStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    first(proxy, "GET", Fault(busy=True), 1000)
    with pytest.raises(StorageError, match=rf"manifests/7\.json: wanted to read a manifest; found .*503 .*{TRIES} tries"):
        store.get("manifests/7.json")


def test_errors_and_logs_show_no_credentials(
    proxy: Proxy, place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    settings = settings_of(proxy.port)
    store = open_store(place, settings)
    first(proxy, "GET", Fault(busy=True), 1000)
    with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as error:
        store.get("x")
    for text in (str(error.value), caplog.text, repr(store), repr(settings), repr(store.below("runs"))):
        assert "local-secret" not in text
    signed = Settings((("fs.azure.sas.token", "sv=2024&sig=abc"),))
    assert signed.shown("GET https://a/b?sv=1&sig=zzz failed: sv=2024&sig=abc") == "GET https://a/b failed: ***"


def test_addresses_that_no_store_has(proxy: Proxy) -> None:
    for wrong in ("ftp://host/x", "", "  "):
        with pytest.raises(CheckpointError):
            address_of(wrong, "checkpointLocation")
    with pytest.raises(QueryError, match="found no bucket"):
        open_store("s3a:///x", Settings())
    with pytest.raises(StorageError, match="a bucket or container that exists"):
        open_store("s3a://nowhere/x", settings_of(proxy.port)).put("a", b"")
    assert address_of("s3a://b/x/", "checkpointLocation") == "s3a://b/x"
    assert address_of("file:/tmp/x", "checkpointLocation") == "/tmp/x"


def test_tokens_and_versions_need_no_list_that_is_up_to_date(store: DurableStore, proxy: Proxy, tmp_path: Path) -> None:
    proxy.lag_s = 60.0

    def fence(name: str) -> Fence:
        (tmp_path / name).mkdir()
        return Fence("here", lambda: tmp_path / name, store)

    one, two = fence("a"), fence("b")
    one.claim()
    assert one.lost("it") is None
    two.claim()
    assert (one.token, two.token) == (1, 2)
    assert one.lost("it") is not None
    assert two.lost("it") is None
    for each in (one, two):
        each.release()
    manifests = ManifestStore(store)
    manifests.commit(Manifest(0, "e", {}), sync=True)
    manifests.commit(Manifest(1, "e", {}), sync=True)
    assert manifests.versions() == [0, 1]
    manifests.own()
    manifests.commit(Manifest(2, "e", {}), sync=True)
    assert manifests.versions() == [0, 1, 2]
    with pytest.raises(CheckpointError, match="another one has just written the same version"):
        ManifestStore(store).commit(Manifest(2, "other", {}), sync=True)


@pytest.fixture
def run(store: DurableStore, tmp_path: Path) -> RunRef:
    """A run of several megabytes in the store."""
    hashes = np.linspace(0, 2**64 - 2**12, 200_000).astype(np.uint64)
    values = pa.array([f"value {at}" for at in range(200_000)], LAYOUT.schema.field("v").type)
    columns = {HASH: pa.array(hashes), "k": pa.array(np.arange(200_000)), "v": values, "n": pa.array(np.arange(200_000) / 2)}
    rows = pa.RecordBatch.from_arrays([columns[name] for name in LAYOUT.schema.names], schema=LAYOUT.schema)
    home = RunReader(store.below("runs"), LAYOUT, Working(tmp_path / "home"))
    ref = write_run(home.writes_to, "v000000000001-op-i0-e0-a0-run.arrow", rows, LAYOUT, seq=3, lo=0, hi=4096, sync=False)
    home.upload(ref.file)
    return ref


def part(run: RunRef, lo: int, hi: int) -> RunRef:
    return RunRef(**{**run.to_json(), "lo": lo, "hi": hi})


def test_a_part_of_a_run_is_fetched_in_few_requests(store: DurableStore, proxy: Proxy, run: RunRef, tmp_path: Path) -> None:
    reader = RunReader(store.below("runs"), LAYOUT, Working(tmp_path / "other"))
    before = len(proxy.requests)
    eighth = reader.open(part(run, 512, 1024))
    expected = RunReader(store.below("runs"), LAYOUT, Working(tmp_path / "home")).open(part(run, 512, 1024)).rows
    assert eighth.rows.equals(expected)
    assert reader.working is not None
    assert run.bytes / 8 < reader.working.fetched_bytes < run.bytes / 4
    assert len(proxy.requests) - before <= 10
    before = len(proxy.requests)
    assert reader.open(part(run, 512, 1024)).rows.equals(expected)
    assert len(proxy.requests) == before, "the copy has it"


def test_copies_take_up_a_bounded_space(store: DurableStore, run: RunRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_copies, "RECENT_S", 0.0)
    working = Working(tmp_path / "home")
    reader = RunReader(store.below("runs"), LAYOUT, working)
    expected = reader.open(run).rows.to_pylist()
    name, rows = "v000000000002-op-i0-e0-a0-run.arrow", reader.open(run).rows
    only_here = write_run(reader.writes_to, name, rows, LAYOUT, seq=4, lo=0, hi=4096, sync=False)
    assert working.trim(10 * run.bytes) == 0
    assert working.trim(0) == 1, "what the store does not have stays"
    assert not working.path(run.file).exists()
    assert working.path(only_here.file).exists()
    assert reader.open(run).rows.to_pylist() == expected, "it is fetched again"


def test_damage_in_the_store_is_found(store: DurableStore, run: RunRef, tmp_path: Path) -> None:
    data = bytearray(store.get(f"runs/{run.file}"))
    data[len(data) // 2] ^= 1
    store.put(f"runs/{run.file}", bytes(data))
    with pytest.raises(CorruptStateError, match="checksum"):
        RunReader(store.below("runs"), LAYOUT, Working(tmp_path / "other")).open(run)
    store.delete(f"runs/{run.file}")
    with pytest.raises(MissingRunError, match="no such file"):
        RunReader(store.below("runs"), LAYOUT, Working(tmp_path / "third")).open(run)
