"""The query, its faults and its sink are those of the recovery benchmark."""

from benchmarks.recovery.query import change, query, source, write

__all__ = ["change", "query", "source", "write"]
