"""Spark's executors: which there are, and asking for more or fewer.

On a ``local[...]`` master there are none, and nothing here applies. The other masters (``local-cluster``, standalone, YARN, Kubernetes)
are all alike in what is used of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext

DRIVER = "driver"


@dataclass(frozen=True)
class Executor:
    """One of Spark's executors."""

    id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        """How Spark calls it where a partition says where it would like to be."""
        return f"executor_{self.host}_{self.id}"


@dataclass
class Executors:
    """The executors of one Spark application."""

    context: SparkContext
    known: dict[str, Executor] = field(default_factory=dict)

    @classmethod
    def of(cls, context: SparkContext) -> Executors | None:
        """None where the driver does all the work itself."""
        master = str(context.master)
        return None if master == "local" or master.startswith("local[") else cls(context)

    def live(self) -> tuple[Executor, ...]:
        """Those that Spark has and gives tasks to, in the order they came."""
        ids = [each for each in self._spark.getExecutorIds().mkString(",").split(",") if each and each != DRIVER]
        if any(each not in self.known for each in ids):
            self._learn()
        return tuple(self.known[each] for each in sorted(ids, key=_age) if each in self.known)

    def request(self, total: int) -> bool:
        """Ask the cluster's manager for so many in all. It may take seconds until they come, or they may never."""
        nothing = self._jvm.PythonUtils.toScalaMap({})
        return bool(self._spark.requestTotalExecutors(total, 0, nothing))

    def release(self, executors: Iterable[str]) -> bool:
        """Give executors back; Spark then wants so many fewer in all."""
        return bool(self._spark.killExecutors(self._jvm.PythonUtils.toSeq(list(executors))))

    def _learn(self) -> None:
        listed = self._spark.statusStore().executorList(True)
        for at in range(listed.size()):
            each = listed.apply(at)
            if each.id() != DRIVER:
                self.known[each.id()] = Executor(each.id(), each.hostPort().rsplit(":", 1)[0], int(each.totalCores()))

    @property
    def _spark(self) -> Any:
        java: Any = self.context._jsc
        return java.sc()

    @property
    def _jvm(self) -> Any:
        return self.context._jvm


def _age(executor: str) -> tuple[int, str]:
    return (int(executor), "") if executor.isdigit() else (0, executor)
