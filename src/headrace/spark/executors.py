"""Spark's executors: list them, request more, release some.

A ``local[...]`` master has none. The other masters (``local-cluster``, standalone, YARN, Kubernetes) are all used in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext

from headrace.spark.gateway import items

DRIVER = "driver"


@dataclass(frozen=True)
class Executor:
    """One of Spark's executors."""

    id: str
    host: str
    cores: int

    @property
    def location(self) -> str:
        """Spark's name for it among the preferred locations of a partition."""
        return f"executor_{self.host}_{self.id}"


@dataclass
class Executors:
    """The executors of one Spark application."""

    context: SparkContext
    known: dict[str, Executor] = field(default_factory=dict)

    @classmethod
    def of(cls, context: SparkContext) -> Executors | None:
        """None for a local master, where the driver runs all tasks."""
        master = str(context.master)
        return None if master == "local" or master.startswith("local[") else cls(context)

    def live(self) -> tuple[Executor, ...]:
        """Executors that Spark schedules tasks on, oldest first."""
        ids = [each for each in self._spark.getExecutorIds().mkString(",").split(",") if each and each != DRIVER]
        if any(each not in self.known for each in ids):
            self._learn()
        return tuple(self.known[each] for each in sorted(ids, key=_age) if each in self.known)

    def request(self, total: int) -> bool:
        """Request this total from the cluster manager. They may come seconds later, or never."""
        no_hosts = self._jvm.PythonUtils.toScalaMap({})
        return bool(self._spark.requestTotalExecutors(total, 0, no_hosts))

    def release(self, executors: Iterable[str]) -> bool:
        """Give executors back. Spark then lowers the total that it requests."""
        return bool(self._spark.killExecutors(self._jvm.PythonUtils.toSeq(list(executors))))

    def running_tasks(self) -> dict[str, int]:
        """The number of tasks that Spark's scheduler believes to run on each executor, cancelled ones included until they have ended."""
        found = str(self._spark.taskScheduler().runningTasksByExecutors().mkString(","))
        return {name: int(count) for name, count in (each.split(" -> ") for each in found.split(",") if each)}

    def replace(self, executor: str) -> bool:
        """Kill an executor, and let Spark request another in its place. No further task is sent to it from now on."""
        return bool(self._spark.killAndReplaceExecutor(executor))

    def _learn(self) -> None:
        for each in items(self._spark.statusStore().executorList(True)):
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
