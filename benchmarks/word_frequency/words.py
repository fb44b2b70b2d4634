"""Sentence fragments of 140 bytes: words of a generated dictionary by Zipf's law, or of a text of the user.

    dictionary (by rank) -> words drawn by 1 / rank -> fragments, as many words each as fit -> a pool that is repeated

The r-th word is drawn 1/r as often as the first, as in any large text. Frequent words are short (Zipf's law of abbreviation): lengths grow
with the logarithm of the rank, so that a drawn word has about five letters and one of a large dictionary eight, as in English.
The first fragments of a stream hold each word of the dictionary once. After them the state has its full size. SEEP
sets the size of the dictionary synthetically too (section 6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather

from headrace.errors import HeadraceError

BYTES = 140
"""The bytes of a fragment: SEEP, section 6.2."""
FRAGMENTS = 65_536
"""The number of fragments in the pool, which a stream repeats."""
_WORD_BYTES_MAX = 18
_LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
_SHARES = np.array(
    [12.7, 9.1, 8.2, 7.5, 7.0, 6.7, 6.3, 6.1, 6.0, 4.3, 4.0, 2.8, 2.8, 2.4, 2.4, 2.2, 2.0, 2.0, 1.9, 1.5, 1, 0.8, 0.2, 0.2, 0.1, 0.1]
)


@dataclass(frozen=True)
class Wanted:
    """The parameters of a stream's words."""

    words: int
    seed: int = 1
    skew: float = 0.0
    """The share of words that are replaced by one of the first ``hot`` words: Floe's load on a few keys."""
    hot: int = 4
    fragments: int = FRAGMENTS


@dataclass(frozen=True)
class Pool:
    """The fragments of a stream: first those of the head, then those of the pool, repeatedly."""

    head: tuple[str, ...]
    """Fragments that hold each word once."""
    body: tuple[str, ...]
    words: int

    def write(self, path: Path) -> Path:
        table = pa.table({"text": [*self.head, *self.body]})
        feather.write_feather(table, str(path), compression="uncompressed")
        return path


def dictionary(words: int, seed: int) -> list[str]:
    """Different words, the most frequent first."""
    random = np.random.default_rng(seed)
    ranks = np.arange(1, words + 1)
    lengths = np.clip(np.rint(random.normal(2.2 + 0.55 * np.log(ranks), 1.4)), 1, _WORD_BYTES_MAX - 2).astype(int)
    letters = iter(random.choice(list(_LETTERS), size=2 * int(lengths.sum()) + 100 * words, p=_SHARES / _SHARES.sum()).tolist())
    found: dict[str, None] = {}
    for length in lengths.tolist():
        word = "".join(next(letters) for _ in range(length))
        while word in found:
            # There are few short words. A word that exists already gets one more letter.
            word += next(letters)
        found[word] = None
    return list(found)


def draw(wanted: Wanted, number: int) -> np.ndarray:
    """The ranks, from 0, of this many random words."""
    random = np.random.default_rng((wanted.seed, wanted.words))
    shares = 1.0 / np.arange(1, wanted.words + 1)
    ranks = np.searchsorted(np.cumsum(shares) / shares.sum(), random.random(number))
    repeated = random.random(number) < wanted.skew
    return np.where(repeated, random.integers(0, min(wanted.hot, wanted.words), number), ranks)


def fragments(words: list[str], limit: int | None = None) -> list[str]:
    """Put as many words into a fragment as fit, and pad it with blanks. A word that is longer than a fragment is cut."""
    found: list[str] = []
    line = ""
    for word in words:
        grown = f"{line} {word}" if line else word
        if len(grown.encode()) <= BYTES:
            line = grown
            continue
        found.append(_filled(line))
        if limit is not None and len(found) == limit:
            return found
        line = word.encode()[:BYTES].decode(errors="ignore")
    return [*found, _filled(line)] if line else found


def generated(wanted: Wanted) -> Pool:
    known = dictionary(wanted.words, wanted.seed)
    # A fragment has room for at most 70 words; few have more than half as many.
    ranks = draw(wanted, wanted.fragments * 40)
    body = fragments([known[rank] for rank in ranks.tolist()], wanted.fragments)
    return Pool(tuple(fragments(known)), tuple(body), wanted.words)


def of_text(path: Path) -> Pool:
    """The words of a text in their order. Its head holds each once, in order of first appearance."""
    if not path.is_file():
        raise HeadraceError(where="bench word-frequency --text", wanted="a text file", found=str(path))
    words = path.read_text(encoding="utf-8", errors="replace").lower().split()
    if not words:
        raise HeadraceError(where="bench word-frequency --text", wanted="a file with words in it", found=f"{path} is empty")
    known = list(dict.fromkeys(words))
    return Pool(tuple(fragments(known)), tuple(fragments(words)), len(known))


def _filled(line: str) -> str:
    return line + " " * (BYTES - len(line.encode()))
