"""Files are checked block by block: needed blocks are checked, others are not read, and damage is found where it matters."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptStateError
from headrace.state import blocks as module
from headrace.state.blocks import Blocks, blocks_of, data_bytes, need_rows, open_arrow, open_batch, write_arrow
from tests.examples import examples

ROWS = 3000


def every_kind(seed: int) -> pa.RecordBatch:
    """Columns of every shape that Arrow gives a state: bits, numbers, texts, lists, structs, maps, nulls."""
    random = np.random.default_rng(seed)
    missing = random.random(ROWS) < 0.1

    def texts(length: int) -> list[str | None]:
        return [None if gone else "x" * int(n) for gone, n in zip(missing, random.integers(0, length, ROWS), strict=True)]

    lists: list[Any] = [None if gone else list(range(int(n))) for gone, n in zip(missing, random.integers(0, 9, ROWS), strict=True)]
    columns = {
        "bits": pa.array(random.random(ROWS) < 0.5, mask=missing),
        "longs": pa.array(random.integers(0, 2**40, ROWS)),
        "decimals": pa.array(random.integers(0, 99, ROWS)).cast(pa.decimal128(20, 0)),
        "texts": pa.array(texts(90)),
        "blobs": pa.array([t and t.encode() for t in texts(40)], pa.large_binary()),
        "lists": pa.array(lists, pa.list_(pa.int64())),
        "deep": pa.array([each and [[e] * 2 for e in each] for each in lists], pa.list_(pa.list_(pa.int32()))),
        "structs": pa.StructArray.from_arrays([pa.array(texts(20)), pa.array(random.random(ROWS))], ["a", "b"]),
        "maps": pa.array([None if each is None else [(e, "y" * e) for e in each] for each in lists], pa.map_(pa.int64(), pa.string())),
        "triples": pa.array([[1, 2, 3]] * ROWS, pa.list_(pa.int16(), 3)),
        "nothing": pa.nulls(ROWS),
    }
    return pa.RecordBatch.from_pydict(columns)


@given(st.integers(0, 50), st.integers(0, ROWS), st.integers(0, ROWS), st.integers(0, 10**9))
@settings(max_examples=examples(60), deadline=None)
def test_damage_is_found_in_the_rows_that_are_needed_and_only_there(seed: int, a: int, b: int, where: int) -> None:
    begin, end = sorted((a, b))
    rows = every_kind(seed)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        length, crc = write_arrow(path, rows, sync=False)
        assert open_arrow(path, length, crc).equals(rows)
        damaged = bytearray(path.read_bytes())
        damaged[where % data_bytes(length)] ^= 1
        path.write_bytes(damaged)
        block = where % data_bytes(length) // module.BLOCK_BYTES
        said = found = ""
        try:
            blocks = Blocks(path, length, crc)
            found = open_batch(blocks)
            need_rows(blocks, found, begin, end)
        except CorruptStateError as error:
            said = str(error)
        if said:
            assert f"in block {block}" in said
            assert str(path) in said
        else:
            assert not blocks.checked[block]
            assert found.slice(begin, end - begin).equals(rows.slice(begin, end - begin))  # type: ignore[attr-defined]


@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, int, int]:
    rows = pa.RecordBatch.from_pydict({"a": np.arange(400_000), "b": np.arange(400_000.0)})
    path = tmp_path / "file"
    return path, *write_arrow(path, rows, sync=True)


def test_a_hundredth_of_the_rows_takes_about_a_hundredth_of_the_blocks(large: tuple[Path, int, int]) -> None:
    blocks = Blocks(*large)
    rows = open_batch(blocks)
    need_rows(blocks, rows, 100_000, 104_000)
    assert blocks_of(large[1]) == 391
    assert sum(blocks.checked) <= 2 + 2 * 3, "the first, the last, and three of each column"


@pytest.mark.parametrize("damage", [b"", b"\0" * 10, b"ARROW1"])
def test_a_file_of_another_length_is_named(large: tuple[Path, int, int], damage: bytes) -> None:
    path, length, crc = large
    path.write_bytes(damage)
    with pytest.raises(CorruptStateError, match=f"{path}.*{length} bytes.*{len(damage)} bytes"):
        Blocks(path, length, crc)


def test_damaged_checksums_are_found_at_once(large: tuple[Path, int, int]) -> None:
    path, length, crc = large
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    with pytest.raises(CorruptStateError, match="checksums"):
        Blocks(path, length, crc)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptStateError, match=r"nowhere.*no such file"):
        open_arrow(tmp_path / "nowhere", 100, 0)
