"""What the schedule must know about the operators of a query."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.compile.dataflow import Dataflow
from headrace.runtime.schedule import OperatorShape
from headrace.runtime.sinks import Sink


def shapes_of(flow: Dataflow, sinks: Sequence[Sink]) -> tuple[OperatorShape, ...]:
    """What the schedule must know about each operator."""
    shapes = []
    for op in flow.ops:
        alone = flow.next_op(op)
        own = [at for at, port in enumerate(flow.outlets) if [b.source for b in port] == [op.id] and sinks[at].direct]
        # What is measured of results is measured once more of what was staged.
        direct = [at for at in own if not flow.watermarks and not any(branch.observes for branch in flow.outlets[at])]
        shapes.append(
            OperatorShape(
                op.id,
                upstream=tuple(up.id for up in flow.upstream(op)),
                reads_source=op.reads_source,
                only_reader=None if alone is None else alone.id,
                emits_at_once=op.plan.operator.emits_at_once(op.mode),
                sink=direct[0] if direct and flow.consumers(op.id) == 1 else None,
            )
        )
    return tuple(shapes)
