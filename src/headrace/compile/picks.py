"""All picks of an aggregation take their values from the same row.

``last(x)`` and ``last(y)``, or ``max_by(x, t)`` and ``max_by(y, t)``, must not mix the values of two rows. If several rows have the
greatest order, both calls must pick the same one. So calls with the same order share one partial, which holds all their values. Ties are
decided by one number for all picks of the aggregation: a hash of all values that any of them picks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.pieces import Picking, Piece
from headrace.compile.types import arrow_type, encode, hashable, is_atomic, transport_type
from headrace.operators.partials import PickRow


@dataclass(frozen=True)
class Parts:
    """The partials of an aggregation, and the aggregate calls that use each of them."""

    pieces: list[Piece]
    calls: list[tuple[str, ...]]

    @property
    def types(self) -> list[T.DataType]:
        return [kind for piece in self.pieces for kind in piece.types]

    def columns(self) -> dict[str, list[str]]:
        """For each call, the partial columns (p0, p1, ...) that its result is computed from."""
        found: dict[str, list[str]] = {}
        at = 0
        for piece, calls in zip(self.pieces, self.calls, strict=True):
            names = [f"p{at + i}" for i in range(len(piece.types))]
            at += len(names)
            if isinstance(piece.partial, PickRow):
                found.update({call: [name, names[-2]] for call, name in zip(calls, names[:-2], strict=True)})
            else:
                found[calls[0]] = names
        return found


def together(pieces: dict[str, Piece]) -> Parts:
    """The partials of these calls. Picks with the same order share a partial if there are several values, or values without an order."""
    picks = [piece.pick for piece in pieces.values() if piece.pick is not None]
    distinct = {pick.value_text: pick for pick in picks}
    if len(distinct) < 2 and all(is_atomic(pick.value_type) for pick in picks):
        # With one value, ties can be decided by the value itself.
        return Parts(list(pieces.values()), [(call,) for call in pieces])
    tie = F.xxhash64(*[each for pick in distinct.values() for each in hashable(pick.value, pick.value_type)])
    by_order: dict[tuple[str, bool], dict[str, Picking]] = {}
    for call, piece in pieces.items():
        if piece.pick is not None:
            by_order.setdefault((piece.pick.order_text, piece.pick.greatest), {})[call] = piece.pick
    found: dict[tuple[str, ...], Piece] = {}
    for call, piece in pieces.items():
        if piece.pick is None:
            found[(call,)] = piece
        else:
            same = by_order[piece.pick.order_text, piece.pick.greatest]
            found.setdefault(tuple(same), _of_one_row(list(same.values()), tie))
    return Parts(list(found.values()), list(found))


def _of_one_row(picks: list[Picking], tie: Column) -> Piece:
    order, kind = picks[0].order, picks[0].order_type
    row: Callable[[list[Column]], list[Column | None]] = lambda inputs: [*inputs]  # noqa: E731
    return Piece(
        PickRow(tuple(arrow_type(pick.value_type) for pick in picks), arrow_type(kind), picks[0].greatest),
        [*(encode(pick.value, pick.value_type) for pick in picks), encode(order, kind), tie],
        row,
        None,
        None,
        types=[*(transport_type(pick.value_type) for pick in picks), transport_type(kind), T.LongType()],
    )
