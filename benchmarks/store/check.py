"""The final state equals Spark's batch answer, as in the aggregate benchmark."""

from __future__ import annotations

from benchmarks.aggregate.check import check

__all__ = ["check"]
