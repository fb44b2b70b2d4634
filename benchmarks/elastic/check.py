"""As in the aggregate benchmark: the final state is Spark's batch answer."""

from __future__ import annotations

from benchmarks.aggregate.check import check

__all__ = ["check"]
