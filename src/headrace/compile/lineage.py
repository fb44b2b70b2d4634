"""The identity of an operator: what it reads and what it computes, in words that are the same in every session.

State belongs to the operator that wrote it, wherever the operator is in the program. An operator is identified by what it reads (sources,
steps, operators before it) and by what it computes (keys, windows, calls), or by the user's name for it.

An identity leaves out what differs between sessions: ids of columns and plans, addresses, names of lambda variables, random seeds, and the
session's settings. It also leaves out what changes no row, such as how rows are distributed. Users' functions are identified by name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.compile.dataflow import Branch, Dataflow, Op
from headrace.ids import OperatorId
from headrace.operators.kernel import OutputMode
from headrace.spark.plan_text import STATIC, is_without_code, lines
from headrace.spark.plans import has_subquery


@dataclass(frozen=True)
class Lineage:
    """The identity of an operator."""

    reads: tuple[tuple[str, ...], ...]
    """For each input the lines that describe its plan, from the results down to the sources."""
    computes: dict[str, object]

    @property
    def fingerprint(self) -> str:
        """A short hash of the identity, by which state is found."""
        return digest([self.reads, self.computes])


def digest(what: object) -> str:
    """A short hash of a value that can be written as JSON."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:24]


def lineages(flow: Dataflow, by_name: bool = False) -> dict[OperatorId, Lineage]:
    """The lineage of each operator. If `by_name`, an input operator with a user's name is described by that name alone."""
    found: dict[OperatorId, Lineage] = {}
    for op in flow.ops:
        ports = [[_branch(flow, branch, found, by_name) for branch in port] for port in op.ports]
        # A union has the same rows in any order of its streams.
        reads = tuple(tuple(line for text in sorted(port) for line in ("rows of", *text)) for port in ports)
        found[op.id] = Lineage(reads, _computes(op))
    return found


def says_all(flow: Dataflow, op: Op) -> bool:
    """True if the lineage describes everything that the operator's state depends on.

    It does not if there is a user's function, anything random, or a static DataFrame, of which only the columns are described.
    """
    if op.plan.operator.runs_user_code:
        return False
    inputs = [op.plan.input.selected]
    for branch in op.branches:
        first, steps = branch.begin(flow)
        inputs += [] if isinstance(first, Op) else [first]
        inputs += [_stepped(flow, branch)[1]] if steps else []
    if not all(is_without_code(each) and not has_subquery(each) for each in inputs):
        return False
    static = any(line.strip().startswith(STATIC) for read in lineages(flow)[op.id].reads for line in read)
    return not static and all(says_all(flow, above) for above in flow.upstream(op))


def _branch(flow: Dataflow, branch: Branch, known: dict[OperatorId, Lineage], by_name: bool) -> list[str]:
    first, steps = branch.begin(flow)
    if isinstance(first, Op):
        below = [f"operator named {first.name}" if first.name and by_name else f"operator {known[first.id].fingerprint}"]
    else:
        below = lines(first)
    if not steps:
        return below
    leaf, stepped = _stepped(flow, branch)
    return lines(stepped, (leaf, below))


def _stepped(flow: Dataflow, branch: Branch) -> tuple[DataFrame, DataFrame]:
    """An empty DataFrame that stands for a branch's input, and the branch's steps on it."""
    first, steps = branch.begin(flow)
    schema = first.plan.results.schema if isinstance(first, Op) else first.schema
    leaf = rows = flow.session.createDataFrame([], schema)
    for step in steps:
        rows = step.apply(rows)
    return leaf, rows


def _computes(op: Op) -> dict[str, object]:
    found = op.plan.description.identity()
    if op.plan.timing.uses_watermark and op.mode is OutputMode.COMPLETE:
        # In other modes the state of a closed window is dropped.
        found["mode"] = "complete"
    return found
