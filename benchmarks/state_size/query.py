"""The query is that of the aggregate benchmark; what differs is the number of keys."""

from __future__ import annotations

from benchmarks.aggregate.query import query, source, write

__all__ = ["query", "source", "write"]
