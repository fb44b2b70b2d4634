"""Homes of instances: all operators together, and little moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.homes import assigned
from tests.examples import examples

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)


def test_four_operators_of_one_instance_live_on_four_executors() -> None:
    homes = assigned({}, dict.fromkeys("abcd", 1), ["1", "2", "3", "4"])
    assert sorted(home for each in homes.values() for home in each) == ["1", "2", "3", "4"]


def test_new_executors_take_instances_from_one_that_has_all() -> None:
    homes = assigned({name: ["1"] for name in "abcd"}, dict.fromkeys("abcd", 1), ["1", "2"])
    assert homes == {"a": ("1",), "b": ("1",), "c": ("2",), "d": ("2",)}


def test_an_operator_that_is_not_placed_anew_counts_and_stays() -> None:
    homes = assigned({"a": ["1", "2"], "b": ["2"]}, {"c": 1, "d": 2}, ["1", "2", "3"])
    assert homes == {"c": ("3",), "d": ("1", "3")}


@settings(max_examples=examples(200), deadline=None)
@given(COUNTS, COUNTS, st.integers(1, 6), st.integers(1, 6))
def test_every_operator_is_spread_and_all_together_are_even_and_then_nothing_moves(
    first: dict[str, int], second: dict[str, int], few: int, many: int
) -> None:
    live = [str(at) for at in range(few)]
    homes = assigned({}, first, live)
    assert even(home for each in homes.values() for home in each) or len(live) == 1
    # Other sizes, other executors: some are new, some are gone.
    live = [str(at) for at in range(few // 2, few // 2 + many)]
    homes = assigned(homes, second, live)
    homes = {name: each for name, each in homes.items() if name in second}
    for name, each in homes.items():
        counts = Counter(each)
        assert len(each) == second[name]
        assert max(counts.values()) - (min(counts.values()) if len(counts) == len(live) else 0) <= 1
    for _ in range(len(second)):
        homes = assigned(homes, second, live)
    assert assigned(homes, second, live) == homes


def even(homes: Iterable[str]) -> bool:
    """True if no executor has two instances more than another."""
    counts = Counter(homes)
    return max(counts.values()) - min(counts.values()) <= 1
