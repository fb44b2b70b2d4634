"""The state that a query starts with: SEEP's set-processing-state. Its rows become the oldest run, below that of the first version."""

from __future__ import annotations

from headrace.compile.dataflow import Dataflow, Op
from headrace.errors import QueryError
from headrace.ids import SLOTS
from headrace.operators.kernel import MAIN
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.layout import HASH
from headrace.state.run import RunRef, Step, run_seq, write_run
from headrace.state.segments import sort_into_segments


def initial_states(flow: Dataflow, checkpoint: Checkpoint, epoch: str, sync: bool) -> dict[str, tuple[RunRef, ...]]:
    """Runs by operator, of those that start with a state."""
    return {op.id: runs for op in flow.ops if (runs := _runs(op, checkpoint, epoch, sync))}


def _runs(op: Op, checkpoint: Checkpoint, epoch: str, sync: bool) -> tuple[RunRef, ...]:
    if op.plan.initial is None:
        return ()
    layout = op.plan.operator.stores[MAIN].layout
    table = op.plan.initial.toArrow().combine_chunks()
    if not table.num_rows:
        return ()
    table = table.set_column(0, HASH, table.column(HASH).combine_chunks().view(layout.schema.field(HASH).type))
    rows, starts = sort_into_segments(table.cast(layout.schema).to_batches()[0], layout)
    if len(starts) < rows.num_rows:
        raise QueryError(where=op.where, wanted="each key once in the initial state", found=f"{rows.num_rows} rows of {len(starts)} keys")
    file = f"initial-{op.id}-e{epoch}.arrow"
    return (write_run(checkpoint.runs, file, rows, layout, seq=run_seq(-1, Step.CLOSE), lo=0, hi=SLOTS, sync=sync),)
