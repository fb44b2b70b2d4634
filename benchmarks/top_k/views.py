"""Page views as lines of text, in the form of Wikimedia's page view dumps, and files of them.

    en.m Albert_Einstein 1 48213        domain, title, views, bytes; en.m is the English edition as phones see it

As in the dumps, the time is in the name of the file, not in its lines. So a few blocks of lines are enough for a stream of any length.
A file of the stream is a hard link to a block, which costs nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError

LARGEST = {
    "en": 47.0, "ja": 6.5, "es": 6.0, "de": 5.5, "ru": 5.5, "fr": 4.5, "it": 3.0, "zh": 3.0, "pt": 2.3, "pl": 1.7,
    "fa": 1.3, "ar": 1.3, "nl": 1.1, "id": 1.0, "uk": 0.8, "tr": 0.8, "cs": 0.7, "sv": 0.6, "ko": 0.6, "vi": 0.5,
}  # fmt: skip
"""Percent of all views, about as in Wikimedia's statistics. The other editions share the rest by Zipf's law."""

_OTHERS = """
fi he hu th el no da ro ca hi simple bg sr sk hr bn lt sl et az eu kk ms ta ur hy ka lv te ml mr sq uz bs gl tl my be mk cy af mn la is
kn ne ga si km gu pa sw ast eo nn ky tt am jv oc tg lb ba br an zh-yue lmo scn war ceb sh ckb ku als bar arz pnb yi or as sa sd so ht
mg vec nds li fy fo gd io ia wa sco su min nap pms qu cv vo new bpy bat-smg roa-tara zh-min-nan mzn azb lo xmf rue tk ps ug bo os sah
mhr mrj ce av lez ab kv udm myv mdf koi bxr tyv alt inh kbd krc lbe xal nv ln kg ig yo ha zu xh st tn ts ss ve nso sn ny rw rn lg ki ti
om ak tw ee bm ff wo dz pi pih bi na sm to ty mi haw gv kw co fur lij sc rm nrm pcd frp wuu gan hak cdo zh-classical diq hif mai bh dv
mt cbk-zam bcl pag pam ilo ay gn srn jam pap lad kab szl hsb dsb csb stq frr pdc pfl ksh vls zea nds-nl fiu-vro se ext mwl got cu ang
chr chy ik iu kl cr ch nah tet tpi za bug ace map-bms crh gag kaa glk lrc olo ady tcy gom kbp atj din gor sat shn hyw nqo avk mnw awa
smn szy lld ary mad skr dag blk
"""
EDITIONS = (*LARGEST, *_OTHERS.split())
"""Most visited first."""

POOL = 200_000
"""The number of different lines; a block is a range of them."""
_TITLES = 20_000
_PHONES = 0.55
_WORDS = (
    "History",
    "List",
    "River",
    "Battle",
    "Album",
    "Season",
    "County",
    "Theory",
    "Station",
    "Language",
    "Church",
    "Election",
    "Comet",
    "Bridge",
)


def shares(languages: int) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The editions and their shares of all views.

    >>> names, parts = shares(280)
    >>> names[:3], round(float(parts[0]), 2), round(float(parts.sum()), 6)
    (['en', 'ja', 'es'], 0.47, 1.0)
    """
    names = list(EDITIONS[:languages])
    large = np.array(list(LARGEST.values())[:languages]) / 100
    ranks = np.arange(1, languages - len(large) + 1)
    small = (1 - large.sum()) * (1 / (ranks + 5)) / (1 / (ranks + 5)).sum()
    parts = np.concatenate([large, small])
    return names, parts / parts.sum()


def lines(languages: int, seed: int, count: int = POOL) -> list[bytes]:
    """Lines with views of different pages, drawn with a seed."""
    if not 1 <= languages <= len(EDITIONS):
        raise HeadraceError(where="bench top-k --languages", wanted=f"a number from 1 to {len(EDITIONS)}", found=str(languages))
    random = np.random.default_rng(seed)
    names, parts = shares(languages)
    which = random.choice(len(names), count, p=parts).tolist()
    phone = (random.random(count) < _PHONES).tolist()
    title = (random.zipf(1.2, count) % _TITLES).tolist()
    size = random.integers(2_000, 90_000, count).tolist()
    return [
        f"{names[at]}{'.m' if mobile else ''} {_WORDS[page % len(_WORDS)]}_{page} 1 {bytes_}".encode()
        for at, mobile, page, bytes_ in zip(which, phone, title, size, strict=True)
    ]


def lines_of(text: str) -> list[bytes]:
    """The lines of a file that the user gives."""
    path = Path(text)
    if not path.is_file():
        raise HeadraceError(where="bench top-k --text", wanted="a file of lines that begin with a language and a blank", found=text)
    found = [line for line in path.read_bytes().splitlines() if line]
    if not found:
        raise HeadraceError(
            where="bench top-k --text", wanted="lines that begin with a language and a blank", found=f"{text}, without any line"
        )
    return found


def write_blocks(folder: Path, pool: list[bytes], blocks: int, per_block: int) -> list[Path]:
    """Write blocks of lines as files; each continues where the previous one ended."""
    folder.mkdir(parents=True)
    endless = itertools.cycle(pool)
    found = [folder / f"{at:03d}" for at in range(blocks)]
    for path in found:
        path.write_bytes(b"\n".join(itertools.islice(endless, per_block)) + b"\n")
    return found


@dataclass
class Stream:
    """A folder to which files of views are added, in the order of their times."""

    folder: Path
    blocks: list[Path]

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._next: Iterator[Path] = itertools.cycle(self.blocks)

    def add(self, at_ms: int) -> tuple[str, Path]:
        """Add a file with this time, in milliseconds since the stream began. Returns its name and its block."""
        block, name = next(self._next), file_name(at_ms)
        hidden = self.folder / f".{name}"
        hidden.hardlink_to(block)
        # Spark reads the oldest files first. All links of a block get the new time, but earlier ones were read long ago.
        os.utime(hidden)
        hidden.rename(self.folder / name)
        return name, block


def file_name(at_ms: int) -> str:
    """The name of a file with this time.

    >>> file_name(1500), time_of("views-000001500")
    ('views-000001500', 1500)
    """
    return f"views-{at_ms:09d}"


def time_of(name: str) -> int:
    return int(name.rpartition("-")[2])
