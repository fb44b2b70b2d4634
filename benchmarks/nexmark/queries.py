"""What is known about each query beside its text. Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass

APPEND, UPDATE = "append", "update"

_WINDOW_S, _OPEN_S = 10, 20
_END_OF_WINDOW = "timestamp_seconds((unix_seconds(dateTime) div 10 + 1) * 10)"


@dataclass(frozen=True)
class Query:
    """One query."""

    name: str
    what: str
    mode: str = APPEND
    stateful: bool = True
    keys: tuple[str, ...] = ()
    """In update mode: the columns whose newest row counts."""
    final: str = ""
    """In append mode, if results come by the watermark: the event time by which a result is final, as SQL over the results."""
    lag_s: int = 0
    """How much longer than the watermark's delay a result may take after that."""
    partition_by: tuple[str, ...] = ()
    shown: str = ""
    """SQL over the results, in the view ``found``, that makes them comparable."""


QUERIES = {
    each.name: each
    for each in (
        Query("q0", "pass through", stateful=False),
        Query("q1", "currency conversion", stateful=False),
        Query("q2", "selection", stateful=False),
        Query("q3", "local item suggestion: auctions joined with persons, for ever"),
        Query("q4", "average price of a category: join, maximum, average", final="window.end", lag_s=_OPEN_S + _WINDOW_S),
        Query("q5", "hot items: the auctions with most bids in sliding windows", final="window.end", lag_s=2),
        Query("q6", "average of a seller's last ten prices", final="dateTime", lag_s=_OPEN_S),
        Query("q7", "highest bid of each window", final=_END_OF_WINDOW, lag_s=_WINDOW_S),
        Query("q8", "new persons who sell: join of two windowed aggregates", final="starttime", lag_s=2 * _WINDOW_S),
        Query("q9", "winning bids: join, then the best bid", final="dateTime", lag_s=_OPEN_S),
        Query("q10", "log to partitioned files", stateful=False, partition_by=("dt", "hm")),
        Query("q11", "sessions of bidders", final="session_window.end", lag_s=0),
        Query(
            "q12",
            "windows of processing time",
            mode=UPDATE,
            keys=("bidder", "window"),
            shown="SELECT bidder, sum(bid_count) AS bid_count FROM found GROUP BY bidder",
        ),
        Query("q13", "join with a table", stateful=False),
        Query("q14", "calculation", stateful=False),
        Query("q15", "statistics of a day, with distinct counts", mode=UPDATE, keys=("day",)),
        Query("q16", "statistics of channels, with distinct counts", mode=UPDATE, keys=("channel", "day")),
        Query("q17", "statistics of auctions", mode=UPDATE, keys=("auction", "day")),
        Query("q18", "last bid of each bidder in each auction", mode=UPDATE, keys=("auction", "bidder")),
        Query("q19", "ten highest bids of each auction", mode=UPDATE, keys=("auction", "rank_number")),
        Query("q20", "bids with their auctions, joined for ever"),
        Query("q21", "channel ids", stateful=False),
        Query("q22", "parts of URLs", stateful=False),
    )
}
