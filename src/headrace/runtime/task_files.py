"""The files that instance tasks leave, and their names.

A name carries version, operator, instance, writer and task attempt. So no attempt, of this start of the query or of an earlier one, can
overwrite another's file.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from headrace.ids import InstanceId, OperatorId, Version, WriterId
from headrace.state.durable import DurableStore, at_once
from headrace.state.routing import Routing
from headrace.state.sequence import VersionStep


class Work(Protocol):
    """The fields of a task's specification that are part of its file names."""

    @property
    def store(self) -> DurableStore: ...

    @property
    def routing(self) -> Routing: ...

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

    def compacted(self) -> str:
        self.compactions += 1
        self.runs.append(self._name(f"c{self.compactions}"))
        return self.runs[-1]

    def _name(self, kind: str) -> str:
        return _name(self.spec, self.instance, self.attempt, f"{kind}.arrow")


def _name(spec: Work, instance: int, number: int, kind: str) -> str:
    return f"v{spec.version:012d}-{spec.operator_id}-i{instance}-e{spec.writer}-a{number}-{kind}"


def _report_key(spec: Work, instance: int, number: int) -> str:
    return "staged/" + _name(spec, instance, number, "flush-report.json" if spec.until_ms is not None else "report.json")


def leave_report(spec: Work, names: Names, text: str) -> None:
    """Leave the report of an attempt for the driver. The attempts of an instance number their reports, so that no list is needed."""
    data = f"{names.attempt}\n{text}".encode()
    for number in itertools.count():
        with contextlib.suppress(FileExistsError):
            spec.store.put_if_absent(_report_key(spec, names.instance, number), data, sync=False)
            return


def reports_left(spec: Work) -> list[str]:
    """The reports that tasks wrote to files, one for each instance. The files are removed, so they can be read only once.

    If an instance ran several times, the report of its last attempt counts, because the next operator got the results of that attempt.
    A processor of the user may give other results each time, and its state must belong to them.
    """
    found: dict[int, list[tuple[int, str]]] = {}
    at_once(spec.store, [partial(_read_reports, spec, instance, found) for instance in range(len(spec.routing.parts))])
    spec.store.delete(*(_report_key(spec, instance, number) for instance, each in found.items() for number in range(len(each))))
    return [max(found[instance])[1] for instance in sorted(found) if found[instance]]


def _read_reports(spec: Work, instance: int, found: dict[int, list[tuple[int, str]]]) -> None:
    """Read the reports of all attempts of an instance: their numbers, and what they say."""
    found[instance] = mine = []
    for number in itertools.count():
        try:
            attempt, _, text = spec.store.get(_report_key(spec, instance, number)).decode().partition("\n")
        except FileNotFoundError:
            return
        mine.append((int(attempt), text))
