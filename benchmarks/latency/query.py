"""The query is that of the aggregate benchmark; only the batches are small."""

from __future__ import annotations

from benchmarks.aggregate.query import query, source, write

__all__ = ["query", "source", "write"]
