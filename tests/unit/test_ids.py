from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvariantError
from headrace.ids import HASH_BITS, SLOT_BITS, SLOTS, OperatorId, StoreId, slot_bounds, slot_of

hashes = st.integers(0, 2**HASH_BITS - 1)
slots = st.integers(0, SLOTS - 1)


def one_slot(h: int) -> int:
    return int(slot_of(np.array([h], dtype=np.uint64))[0])


def test_there_are_as_many_slots_as_their_bits_allow() -> None:
    assert SLOT_BITS == 12
    assert SLOTS == 4096


@given(st.lists(hashes))
def test_a_slot_is_the_top_bits_of_the_hash(given_hashes: list[int]) -> None:
    assert slot_of(np.array(given_hashes, dtype=np.uint64)).tolist() == [h >> 52 for h in given_hashes]


@given(st.lists(hashes))
def test_sorted_by_hash_is_sorted_by_slot(given_hashes: list[int]) -> None:
    found = slot_of(np.sort(np.array(given_hashes, dtype=np.uint64)))
    assert (np.diff(found) >= 0).all()


@given(slots, slots)
def test_bounds_hold_their_slots_and_not_one_hash_more(a: int, b: int) -> None:
    lo, hi = min(a, b), max(a, b)
    first, last = slot_bounds(lo, hi + 1)
    assert (one_slot(first), one_slot(last)) == (lo, hi)
    assert first == 0 or one_slot(first - 1) == lo - 1
    assert last == 2**HASH_BITS - 1 or one_slot(last + 1) == hi + 1


def test_slots_tile_the_ring() -> None:
    bounds = [slot_bounds(slot, slot + 1) for slot in range(SLOTS)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 2**HASH_BITS - 1
    assert all(left[1] + 1 == right[0] for left, right in pairwise(bounds))


def test_bounds_of_numpy_slots_do_not_overflow() -> None:
    first, last = slot_bounds(np.int16(4095), np.int16(4096))  # type: ignore[arg-type]
    assert (first, last) == slot_bounds(4095, 4096)
    assert type(last) is int


def test_signed_hashes_are_refused() -> None:
    with pytest.raises(InvariantError, match="key hashes are uint64, not int64"):
        slot_of(np.array([-1], dtype=np.int64))  # type: ignore[arg-type]


@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (0, SLOTS + 1), (5, 5), (5, 4)])
def test_slots_outside_the_ring_and_empty_ranges_are_refused(lo: int, hi: int) -> None:
    with pytest.raises(InvariantError, match="a range of slots is not empty"):
        slot_bounds(lo, hi)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_]{0,9}(-[0-9])?", fullmatch=True), st.text(max_size=9))
def test_a_store_is_found_again_by_its_text(operator: str, name: str) -> None:
    """Only the first dot divides the text, so the name of a store may have dots."""
    store = StoreId(OperatorId(operator), name)
    assert StoreId.parse(str(store)) == store


def test_an_operator_with_a_dot_has_no_stores() -> None:
    with pytest.raises(InvariantError, match=r"contains no dot, unlike 'a\.b'"):
        StoreId(OperatorId("a.b"), "left")
