"""As in the recovery benchmark: every batch equals a count with numpy, and the final state Spark's batch answer."""

from benchmarks.recovery.check import check

__all__ = ["check"]
