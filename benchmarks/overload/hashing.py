"""Spark's ``xxhash64`` in numpy: which rows were dropped can be recomputed without Spark and without Headrace.

It is XXH64: columns are hashed one after the other, and the hash of one is the seed of the next. The first seed is 42.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = np.uint64
Hashes = npt.NDArray[np.uint64]
FIRST_SEED = 42
_P1, _P2, _P3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
_P4, _P5 = U64(0x85EBCA77C2B2AE63), U64(0x27D4EB2F165667C5)


def hash_longs(values: npt.NDArray[np.int64], seeds: Hashes | int = FIRST_SEED) -> Hashes:
    """The hash of a long column.

    >>> int(hash_longs(np.array([1]))[0].astype(np.int64))
    -7001672635703045582
    """
    start = np.asarray(seeds).astype(U64) if not isinstance(seeds, int) else U64(seeds)
    with np.errstate(over="ignore"):
        h = start + _P5 + U64(8)
        h = h ^ (_rotated(values.astype(U64) * _P2, 31) * _P1)
        return _mixed(_rotated(h, 27) * _P1 + _P4)


def hash_ints(values: npt.NDArray[np.int32], seeds: Hashes) -> Hashes:
    """The hash of an int column."""
    with np.errstate(over="ignore"):
        h = seeds + _P5 + U64(4)
        h = h ^ (values.astype(np.uint32).astype(U64) * _P1)
        return _mixed(_rotated(h, 23) * _P2 + _P3)


def hash_text(text: str, seed: int = FIRST_SEED) -> int:
    """The hash of one text.

    >>> hash_text("Spark") - (1 << 64)
    -4294468057691064905
    """
    data, mask = text.encode(), (1 << 64) - 1
    p1, p2, p3, p4, p5 = (int(p) for p in (_P1, _P2, _P3, _P4, _P5))

    def rotated(x: int, bits: int) -> int:
        return ((x << bits) | (x >> (64 - bits))) & mask

    def step(acc: int, word: int) -> int:
        return rotated((acc + word * p2) & mask, 31) * p1 & mask

    at = 0
    if len(data) >= 32:
        lanes = [(seed + p1 + p2) & mask, (seed + p2) & mask, seed & mask, (seed - p1) & mask]
        while at + 32 <= len(data):
            lanes = [step(lane, int.from_bytes(data[at + 8 * n : at + 8 * n + 8], "little")) for n, lane in enumerate(lanes)]
            at += 32
        h = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            h = ((h ^ step(0, lane)) * p1 + p4) & mask
    else:
        h = (seed + p5) & mask
    h = (h + len(data)) & mask
    while at + 8 <= len(data):
        h = (rotated(h ^ step(0, int.from_bytes(data[at : at + 8], "little")), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= len(data):
        h = (rotated(h ^ (int.from_bytes(data[at : at + 4], "little") * p1 & mask), 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        h = rotated(h ^ (byte * p5 & mask), 11) * p1 & mask
    h = (h ^ (h >> 33)) * p2 & mask
    h = (h ^ (h >> 29)) * p3 & mask
    return h ^ (h >> 32)


def positions(identities: Hashes, seed: int) -> npt.NDArray[np.int64]:
    """``pmod(xxhash64(identity, seed), 1000000)``: rows are kept if it is below the threshold."""
    hashed = hash_ints(np.array([seed], dtype=np.int32), hash_longs(identities.astype(np.int64)))
    return np.mod(hashed.astype(np.int64), 1_000_000)


def _rotated(x: Hashes, bits: int) -> Hashes:
    return (x << U64(bits)) | (x >> U64(64 - bits))


def _mixed(h: Hashes) -> Hashes:
    h = (h ^ (h >> U64(33))) * _P2
    h = (h ^ (h >> U64(29))) * _P3
    return h ^ (h >> U64(32))
