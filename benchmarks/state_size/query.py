"""The query of the aggregate benchmark, with different numbers of keys."""

from __future__ import annotations

from benchmarks.aggregate.query import query, source, write

__all__ = ["query", "source", "write"]
