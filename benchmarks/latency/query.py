"""The query of the aggregate benchmark, with small batches."""

from __future__ import annotations

from benchmarks.aggregate.query import query, source, write

__all__ = ["query", "source", "write"]
