"""Compares the delivered counts with plain Python: a Counter over the words of the same fragments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.feather as feather

from benchmarks.word_frequency.cell import Cell, Outcome
from benchmarks.word_frequency.source import START_S, event_us
from benchmarks.word_frequency.windows import DELAY_S

Counts = dict[tuple[str, int], int]
"""Counts by word and start of the window."""


class Texts:
    """The words of any range of fragments."""

    def __init__(self, pool: Path, head: int) -> None:
        texts = feather.read_table(pool)["text"].to_pylist()
        self.head, self.body = texts[:head], texts[head:]
        self._round = Counter(_words(self.body))

    @property
    def words_per_fragment(self) -> float:
        return self._round.total() / len(self.body)

    def count(self, begin: int, end: int) -> Counter[str]:
        """The counts of the fragments from ``begin`` up to, but not including, ``end``."""
        found = Counter(_words(self.head[begin:end]))
        first, last = max(begin - len(self.head), 0), max(end - len(self.head), 0)
        rounds, rest = divmod(last - first, len(self.body))
        if rounds:
            found.update({word: times * rounds for word, times in self._round.items()})
        start = first % len(self.body)
        found.update(_words(self.body[start : start + rest]))
        found.update(_words(self.body[: max(0, start + rest - len(self.body))]))
        return found


def _words(texts: list[str]) -> Iterator[str]:
    return (word for text in texts for word in text.split())


def expected(texts: Texts, cell: Cell, fragments: int) -> Counts:
    """The counts of the first fragments. For sliding windows, only windows that have certainly closed; see `wrong`."""
    window = cell.window
    if window.size_s is None:
        return {(word, 0): times for word, times in texts.count(0, fragments).items()}
    panes = _panes(texts, cell, fragments)
    if not window.slides:
        return {(word, start): times for start, counted in panes.items() for word, times in counted.items()}
    found: Counts = {}
    first, last = min(panes), max(panes)
    over: Counter[str] = Counter()
    for start in range(first - window.size_s + window.advance_s, last + 1, window.advance_s):
        over += panes.get(start + window.size_s - window.advance_s, Counter())
        over -= panes.get(start - window.advance_s, Counter())
        found |= {(word, start): times for word, times in over.items()}
    return found


def _panes(texts: Texts, cell: Cell, fragments: int) -> dict[int, Counter[str]]:
    """The word counts of each advance, by its start."""
    offer = cell.offer(Path())
    us = event_us(np.arange(fragments), offer.head, offer.span_s, offer.density)
    starts = us // (cell.window.advance_s * 1_000_000) * cell.window.advance_s
    cuts = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), fragments]
    return {int(starts[a]): texts.count(a, b) for a, b in pairwise(cuts) if b > a}


def delivered(outcome: Outcome) -> Counts:
    """The last result of each word."""
    found: Counts = {}
    for table in outcome.delivered:
        keys = zip(table["word"].to_pylist(), table["start"].to_pylist(), strict=True)
        found.update(zip(keys, table["count"].to_pylist(), strict=True))
    return found


def wrong(outcome: Outcome, texts: Texts) -> str:
    """The first mistake, or an empty text."""
    found = delivered(outcome)
    fragments = max(batch.end for batch in outcome.batches)
    asked = expected(texts, outcome.cell, fragments)
    window = outcome.cell.window
    if window.slides:
        # Spark closes a window one batch after it is due; that batch may not have come.
        rows = sum(len(table) for table in outcome.delivered)
        if rows != len(found):
            return f"{rows:,} results for {len(found):,} windows of words: some came twice"
        due_s = _due_s(outcome)
        closed = max((start for _, start in found), default=START_S - (window.size_s or 0)) + (window.size_s or 0)
        if closed < due_s:
            return f"windows up to {closed} have closed, those up to {due_s} are due"
        asked = {key: times for key, times in asked.items() if key[1] + (window.size_s or 0) <= closed}
    if found == asked:
        return ""
    different = [key for key in asked.keys() | found.keys() if found.get(key) != asked.get(key)]
    word, start = min(different)
    counts = f"{found.get((word, start))} instead of {asked.get((word, start))}"
    return f"{len(different):,} of {len(asked):,} counts differ, such as {word!r} in the window at {start}: {counts}"


def _due_s(outcome: Outcome) -> int:
    """The end of the last window that was due in the last batch but one."""
    offer, advance_s = outcome.cell.offer(Path()), outcome.cell.window.advance_s
    before_last = sorted(batch.end for batch in outcome.batches)[-2:][0]
    reached_s = event_us(np.array([before_last - 1]), offer.head, offer.span_s, offer.density)[0] / 1_000_000 - DELAY_S
    return int(reached_s // advance_s * advance_s)
