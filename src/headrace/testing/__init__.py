"""A kit for testing your own queries: feed rows batch by batch, abort and restart, rescale, compare with Spark's batch answer.

`docs/testing.md` shows how to use it. It needs no pytest, and works with `hr.session` and with any other SparkSession.
"""

from __future__ import annotations

from headrace.testing.compare import assert_same_rows
from headrace.testing.killing import kill_at
from headrace.testing.query_test import QueryTest
from headrace.testing.running import FAIL_POINTS
from headrace.testing.source import Source

__all__ = ["FAIL_POINTS", "QueryTest", "Source", "assert_same_rows", "kill_at"]
