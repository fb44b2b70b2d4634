"""OpenTelemetry traces of batches, with the program's own tracer provider: ``pip install headrace[otel]``, ``headrace.traces=true``.

    headrace.batch                 its span is current while the batch runs, so spans of a user's foreachBatch are below it
      headrace.plan, .job, ...     the phases, with their own times

Attributes name the query, the version and what the batch did. Changes of the routing and lost executors are events of the span.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import QueryError
from headrace.ids import Version
from headrace.runtime.phases import Phases
from headrace.runtime.progress import BatchProgress

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def check_available() -> None:
    """Raise an error if OpenTelemetry is not installed."""
    if importlib.util.find_spec("opentelemetry") is None:
        found, hint = "a Python without it", 'pip install "headrace[otel]"'
        raise QueryError(where="option 'headrace.traces'", wanted="the package opentelemetry-sdk", found=found, hint=hint)


class Tracing:
    """The traces of one query."""

    def __init__(self, query: str, location: str) -> None:
        from opentelemetry import trace

        self._tracer = trace.get_tracer("headrace", importlib.metadata.version("headrace"))
        self._about: dict[str, str | int] = {"headrace.query": query, "headrace.checkpoint": location}
        self._span: Span | None = None

    @contextmanager
    def batch(self, version: Version) -> Iterator[None]:
        """Inside, the batch runs. An exception that ends it is noted on its span."""
        about: dict[str, str | int] = {**self._about, "headrace.version": int(version)}
        with self._tracer.start_as_current_span("headrace.batch", attributes=about) as self._span:
            yield

    def report(self, progress: BatchProgress, phases: Phases) -> None:
        """Add what the batch did to its span, and a span for each of its phases."""
        from opentelemetry import trace

        span = self._span
        if span is None or not span.is_recording():
            return
        ours = progress.headrace()
        span.set_attributes({
            "headrace.rows": progress.rows,
            "headrace.results": ours["rowsOut"],
            "headrace.replayed": progress.replayed,
            "headrace.instances": sum(routing.instances for routing in progress.routing.values()),
            "headrace.state.bytes": sum(each["memoryUsedBytes"] for each in progress.operators()),
        })  # fmt: skip
        for change in progress.changes:
            counts = {"headrace.instances.before": change.instances_before, "headrace.instances": change.instances}
            span.add_event("headrace.routing", {"headrace.operator": change.operator, "headrace.why": change.why, **counts})
        for each in progress.interruptions:
            span.add_event("headrace.interruption", {"headrace.executors": list(each.executors), "headrace.hung": each.hung})
        below = trace.set_span_in_context(span)
        for name, begin_s, end_s in phases.spans:
            phase = self._tracer.start_span(f"headrace.{name}", below, start_time=int(begin_s * 1e9))
            phase.end(int(end_s * 1e9))
