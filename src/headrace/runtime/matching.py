"""Finds the stored state of each operator: by its name, by what it reads and computes, or as the only one that has merely changed.

Three ways, in this order, and each stored state is found once:

    name                 the user's, or the id that the checkpoint uses for an operator without one
    fingerprint          everything that it reads and computes is as it was
    what it groups       everything but its columns is as it was, and there is only one such operator before and now
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.compile.dataflow import Dataflow, Op
from headrace.compile.lineage import Lineage, digest
from headrace.errors import CheckpointMismatchError
from headrace.ids import OperatorId
from headrace.runtime.evolution import all_renamed, renamed
from headrace.spark.plan_text import without_columns

NEW_LOCATION = "start with a new checkpointLocation and read the stream from its beginning"
_OF_COLUMNS = ("calls",)
"""Entries of what an operator computes that only say which columns its state has."""


@dataclass
class Matching:
    """Matches the operators of the query with those of the checkpoint."""

    where: str
    flow: Dataflow
    known: tuple[dict[OperatorId, Lineage], dict[OperatorId, Lineage]]
    """Two fingerprints per operator: one of all its inputs, and one in which the names of operators stand for their inputs."""
    before: dict[OperatorId, dict[str, Any]]
    sources: tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
    """What query.json says about the sources: of the checkpoint, and of the query now."""
    names: Mapping[str, str]
    """New names of columns, by their old ones."""

    def ids(self) -> dict[OperatorId, OperatorId]:
        """By operator of the query: its id in the checkpoint, if it was found."""
        found: dict[OperatorId, OperatorId] = {}
        # A name that the user gave comes before an equal id, because ids are for operators without a name.
        by_name = {each["name"]: name for name, each in self.before.items() if each["name"] is not None}
        by_id = {str(name): name for name in self.before}
        for named in (by_name, by_id):
            for op in (op for op in self.flow.ops if op.id not in found and op.name in named):
                mine = named[str(op.name)]
                if mine not in found.values():
                    self._check_kind(op, mine)
                    found[op.id] = mine
        for which, known in zip(("fingerprint", "fingerprint_by_name"), self.known, strict=True):
            for op in (op for op in self.flow.ops if op.id not in found):
                own = known[op.id].fingerprint
                equal = [name for name, each in self.before.items() if each[which] == own and name not in found.values()]
                if len({self.before[name]["since"] for name in equal}) > 1:
                    raise self._twins_of_different_age(op, equal)
                if equal:
                    found[op.id] = equal[0]
        for op in (op for op in self.flow.ops if op.id not in found and op.name is None):
            own = self._group_now(op, found)
            alike = [name for name in self.before if name not in found.values() and self._group_before(name) == own]
            rivals = [other for other in self.flow.ops if other.id not in found and self._group_now(other, found) == own]
            if len(alike) == 1 and rivals == [op]:
                found[op.id] = alike[0]
        return found

    def same_input(self, op: Op, stored: OperatorId) -> bool:
        """True if the operator reads what the stored one did: the same steps on the same columns."""
        reads: list[list[str]] = self.before[stored]["reads"]
        return reads == [list(each) for each in self.known[0][op.id].reads]

    def _group_now(self, op: Op, found: Mapping[OperatorId, OperatorId]) -> str:
        """A fingerprint without the columns of the state. Operators that it reads count as what they were before."""
        lineage = self.known[0][op.id]
        earlier = {self.known[0][mine].fingerprint: self.before[theirs]["fingerprint"] for mine, theirs in found.items()}
        reads = [[renamed(line, earlier) for line in each] for each in lineage.reads]
        return self._group(op.plan.kind, reads, lineage.computes)

    def _group_before(self, name: OperatorId) -> str:
        about = self.before[name]
        reads = [[renamed(line, self.names) for line in each] for each in about["reads"]]
        computes = {part: all_renamed(value, self.names) for part, value in about["computes"].items()}
        return self._group(about["kind"], reads, computes)

    def _group(self, kind: str, reads: Iterable[Iterable[str]], computes: Mapping[str, object]) -> str:
        sources = {renamed(text, self.names) for side in self.sources for each in side for text in each["reads"]}
        plain = [[without_columns(line) if line.strip() in sources else line for line in each] for each in reads]
        return digest([kind, plain, {part: value for part, value in computes.items() if part not in _OF_COLUMNS}])

    def _check_kind(self, op: Op, stored: OperatorId) -> None:
        kind = self.before[stored]["kind"]
        if kind != op.plan.kind:
            raise CheckpointMismatchError(
                where=f"{self.where}, operator {stored!r}",
                wanted=f"state of {kind}, which the checkpoint has under this name",
                found=f"{op.plan.kind} ({op.where})",
                hint="give the operator another name, or " + NEW_LOCATION,
            )

    def _twins_of_different_age(self, op: Op, equal: list[OperatorId]) -> CheckpointMismatchError:
        ages = ", ".join(f"{name} since version {self.before[name]['since']}" for name in equal)
        return CheckpointMismatchError(
            where=f"{self.where}, {op.where}",
            wanted="one stored state that is this operator's",
            found=f"several with the same input and the same computation: {ages}",
            hint=f"say which is which: .named({equal[0]!r}) behind one, .named({equal[1]!r}) behind the other",
        )
