"""The reference: counts exactly the lines that were offered and not discarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks.top_k.outcome import Ranking


@cache
def languages_of(block: Path) -> Counter[str]:
    """The views by language of a block of lines, counted line by line."""
    return Counter(line.split(b" ", 1)[0].split(b".", 1)[0].decode() for line in block.read_bytes().splitlines())


def expected(files: Iterable[tuple[int, Path]], window_s: int) -> dict[int, Counter[str]]:
    """By window start in ms: the views by language of the files of these times."""
    found: dict[int, Counter[str]] = {}
    for at_ms, block in files:
        found.setdefault(at_ms - at_ms % (1000 * window_s), Counter()).update(languages_of(block))
    return found


def difference(told: dict[int, Ranking], wanted: dict[int, Counter[str]]) -> str:
    """The first mistake; empty if every window was reported, with all counts right and in the right order."""
    if told.keys() != wanted.keys():
        return f"windows {sorted(told)} instead of {sorted(wanted)}"
    for start, ranking in sorted(told.items()):
        right = sorted(wanted[start].items(), key=lambda each: (-each[1], each[0]))
        if ranking != right:
            wrong = next((pair for pair in zip(ranking, right, strict=False) if pair[0] != pair[1]), (len(ranking), len(right)))
            return f"window {start // 1000} s: {wrong[0]} instead of {wrong[1]}"
    return ""
