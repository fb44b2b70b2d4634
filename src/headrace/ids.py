"""Types of ids and numbers, so that mypy reports if two kinds are mixed up; and the arithmetic of the key space.

Keys are hashed to 64 bits. The top 12 bits of a hash are its *slot*. So a slot is one of 4096 equal, contiguous intervals of the hashes,
and rows that are sorted by hash are also sorted by slot:

    hash    0                2^52              2 * 2^52                           2^64 - 1
            |---- slot 0 ----|---- slot 1 ----|---- ...  ----|---- slot 4095 ----|

Hashes are unsigned. Spark's `xxhash64` gives a signed long; `array.view(np.uint64)` reads the same bits as an unsigned number.

A *position* is a place among the slots as a float: 7.25 is a quarter into slot 7. Edges of slot ranges are positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import numpy as np
import numpy.typing as npt

from headrace.errors import require

Version = NewType("Version", int)
"""A committed state of the query. Its number is the id of the Spark batch that made it."""

NO_VERSION = Version(-1)
"""Older than every version."""
FIRST_VERSION = Version(0)

FencingToken = NewType("FencingToken", int)
"""The number that a query takes when it starts. Only the query with the highest token may change the checkpoint."""

NO_TOKEN = FencingToken(0)
"""Lower than every token that a query takes."""

WriterId = NewType("WriterId", str)
"""One start of a query, as file names and manifests record it: the fencing token and a random part, such as `7x1a2b3c4d`."""

RunSeq = NewType("RunSeq", int)
"""The age of a run: a higher number means newer rows. `headrace.state.sequence` computes it from a version."""

RoutingEpoch = NewType("RoutingEpoch", int)
"""Grows with every change of an operator's routing. Routings of different operators have epochs of their own."""

FIRST_EPOCH = RoutingEpoch(0)
"""The epoch of a routing that was never changed."""

InstanceId = NewType("InstanceId", int)
"""The number of one parallel part of an operator: 0, 1, ... A task of a window recreation has a number after the last instance."""

OperatorId = NewType("OperatorId", str)
"""The name of a stateful operator, the same after every restart. It contains no dot."""


class SourceId(str):
    """The name of a source of a query: `source0`, `source1`, ... A class of its own, so that code can ask whether an input is a source."""

    __slots__ = ()


InputId = SourceId | OperatorId
"""What an operator or a sink reads: a source, or the results of an operator."""

Slot = NewType("Slot", int)
"""The number of one of the `SLOTS` intervals of the key space."""

KeyHash = NewType("KeyHash", int)
"""The hash of a key, 0 to 2^64 - 1."""


@dataclass(frozen=True)
class StoreId:
    """Names a part of an operator's state: `sum` is the main store of the operator `sum`, `join.left` the store `left` of `join`.

    >>> StoreId.parse("join.left"), str(StoreId(OperatorId("join"), "left"))
    (StoreId(operator='join', name='left'), 'join.left')
    >>> StoreId.parse("sum"), str(StoreId(OperatorId("sum")))
    (StoreId(operator='sum', name=''), 'sum')
    """

    operator: OperatorId
    name: str = ""
    """Empty for the operator's main store."""

    def __post_init__(self) -> None:
        # The first dot of the text form ends the operator's name; later dots belong to the store's name.
        require("." not in self.operator, f"the name of an operator contains no dot, unlike {self.operator!r}")

    @classmethod
    def parse(cls, text: str) -> StoreId:
        """The store with this text form, which manifests, query.json, commands and errors use."""
        operator, _, name = text.partition(".")
        return cls(OperatorId(operator), name)

    def __str__(self) -> str:
        return f"{self.operator}.{self.name}" if self.name else self.operator


HASH_BITS = 64
SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS

_SHIFT = HASH_BITS - SLOT_BITS
_POSITION_BITS = 53
"""The top bits of a hash that a position keeps. A 64-bit float holds integers of this many bits exactly."""

POSITION_STEP = 2.0 ** (SLOT_BITS - _POSITION_BITS)
"""The smallest distance between two positions of hashes."""


def slot_of(h: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The slot of each hash.

    >>> slot_of(np.array([0, 2**52 - 1, 2**52, 2**64 - 1], dtype=np.uint64)).tolist()
    [0, 0, 1, 4095]
    >>> slot_of(np.array([-1, 0], dtype=np.int64).view(np.uint64)).tolist()
    [4095, 0]
    """
    # A signed array would silently give negative slots for half of all keys.
    require(h.dtype == np.uint64, f"key hashes are uint64, not {h.dtype}")
    return (h >> np.uint64(_SHIFT)).astype(np.int64)


def position_of(h: KeyHash) -> float:
    """The position of a hash. It is exact to 2^-41 slots, which is enough to separate nearly any two keys.

    >>> position_of(2**52), position_of(2**52 + 2**50)
    (1.0, 1.25)
    """
    return (h >> (HASH_BITS - _POSITION_BITS)) / (1 << (_POSITION_BITS - SLOT_BITS))


def hash_at(position: float) -> KeyHash:
    """The first hash at or after a position. The result is exact.

    >>> hash_at(1.25) == 2**52 + 2**50
    True
    """
    return KeyHash(int(position * float(1 << _SHIFT)))


def snapped(position: float) -> float:
    """The nearest position at or before this one that is the position of a hash.

    >>> snapped(7.25), snapped(7 + 1e-15), snapped(SLOTS)
    (7.25, 7.0, 4096.0)
    """
    return position_of(hash_at(position))


def slot_bounds(lo: float, hi: float) -> tuple[KeyHash, KeyHash]:
    """The first and the last hash, both included, between the positions lo and hi.

    The last hash is included because the end of the last slot, 2^64, does not fit into 64 bits.

    >>> slot_bounds(0, SLOTS) == (0, 2**64 - 1)
    True
    >>> [hex(h) for h in slot_bounds(1, 2)]
    ['0x10000000000000', '0x1fffffffffffff']
    """
    require(0 <= lo < hi <= SLOTS, f"a range of slots is not empty and lies in [0, {SLOTS}), not [{lo}, {hi})")
    return hash_at(lo), KeyHash(hash_at(hi) - 1)
