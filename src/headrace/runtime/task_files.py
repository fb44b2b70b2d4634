"""The files that instance tasks leave, and their names.

A name carries version, operator, instance, writer and task attempt. So no attempt, of this start of the query or of an earlier one, can
overwrite another's file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from headrace.ids import InstanceId, OperatorId, Version, WriterId
from headrace.state.sequence import VersionStep


class Work(Protocol):
    """The fields of a task's specification that are part of its file names."""

    @property
    def directory(self) -> str: ...

    @property
    def operator_id(self) -> OperatorId: ...

    @property
    def version(self) -> Version: ...

    @property
    def writer(self) -> WriterId: ...

    @property
    def until_ms(self) -> int | None: ...


_STEP_NAMES: dict[VersionStep, tuple[str, ...]] = {VersionStep.PROCESS: (), VersionStep.FLUSH: ("flush",), VersionStep.CLOSE: ("close",)}


@dataclass
class Names:
    """The names of one attempt's files. No other attempt uses them."""

    spec: Work
    instance: InstanceId
    attempt: int
    compactions: int = 0
    runs: list[str] = field(default_factory=list)

    def run(self, store: str, step: VersionStep) -> str:
        self.runs.append(self._name("-".join([*_STEP_NAMES[step], "run", *([store] if store else [])])))
        return self.runs[-1]

    def staged(self) -> str:
        return self._name("flush" if self.spec.until_ms is not None else "out")

    def report(self) -> str:
        return self._name("flush-report" if self.spec.until_ms is not None else "report").replace(".arrow", ".json")

    def compacted(self) -> str:
        self.compactions += 1
        self.runs.append(self._name(f"c{self.compactions}"))
        return self.runs[-1]

    def _name(self, kind: str) -> str:
        s = self.spec
        return f"v{s.version:012d}-{s.operator_id}-i{self.instance}-e{s.writer}-a{self.attempt}-{kind}.arrow"


def reports_left(spec: Work) -> list[str]:
    """The reports that tasks wrote to files, one for each instance. The files are removed, so they can be read only once.

    If an instance ran several times, the report of its last attempt counts, because the next operator got the results of that attempt.
    A processor of the user may give other results each time, and its state must belong to them.
    """
    kind = "flush-report" if spec.until_ms is not None else "report"
    prefix, suffix = f"v{spec.version:012d}-{spec.operator_id}-i", f"-{kind}.json"
    last: dict[int, tuple[int, str]] = {}
    for path in (Path(spec.directory) / "staged").glob(f"{prefix}*-e{spec.writer}-a*[0-9]{suffix}"):
        instance, _, attempt = path.name.removeprefix(prefix).removesuffix(suffix).partition(f"-e{spec.writer}-a")
        found = int(attempt), path.read_text()
        last[int(instance)] = max(found, last.get(int(instance), found))
        path.unlink()
    return [text for _, text in last.values()]
