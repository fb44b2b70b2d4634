"""Spark's executors: list them, request more, release some.

A ``local[...]`` master has none. The other masters (``local-cluster``, standalone, YARN, Kubernetes) are all used in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark import SparkContext

from headrace.spark.gateway import items

DRIVER = "driver"
DECOMMISSIONS = "spark.decommission.enabled"
RUNNING = "RUNNING"
"""The status of tasks that run."""
TASKS_MAX = 10_000
"""How many tasks of a stage are looked at."""


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
    _decommissions: bool | None = None
    """True if executors may be decommissioned; None before that was looked up."""

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
        """The number of tasks that Spark's scheduler believes to run on each executor, cancelled ones included until they have ended.

        They may belong to any job of the application: of this query, of another one, or of the user.
        """
        found = str(self._spark.taskScheduler().runningTasksByExecutors().mkString(","))
        return {name: int(count) for name, count in (each.split(" -> ") for each in found.split(",") if each)}

    def running_tasks_of(self, tags: Iterable[str], for_s: float = 0.0) -> frozenset[str]:
        """The executors with tasks of the jobs that have one of these tags, cancelled tasks included until they have ended.

        Only tasks that have run for ``for_s`` seconds count.
        """
        tracker, store = self._spark.statusTracker(), self._spark.statusStore()
        jobs = [tracker.getJobInfo(job) for tag in tags for job in tracker.getJobIdsForTag(tag)]
        stages = {stage for job in jobs if job.isDefined() for stage in job.get().stageIds()}
        known = [tracker.getStageInfo(stage) for stage in stages]
        attempts = [(each.get().stageId(), at) for each in known if each.isDefined() for at in range(each.get().currentAttemptId() + 1)]
        tasks = [task for stage, at in attempts for task in items(store.taskList(stage, at, TASKS_MAX))]
        # The store hears of the end of tasks a little later than the scheduler, which does not know whose tasks they are.
        busy = {executor for executor, count in self.running_tasks().items() if count}
        running = [task for task in tasks if task.status() == RUNNING]
        # Spark notes when it sends a task to an executor, by the clock of this machine.
        before_ms = (time.time() - for_s) * 1000
        return frozenset(task.executorId() for task in running if task.launchTime().getTime() <= before_ms) & busy

    def answers(self, executor: str) -> bool:
        """Ask an executor for its threads, which it answers at once, whatever tasks it has. Blocks until it answers, or for two minutes.

        False if there is no such executor, or none that answers.
        """
        return bool(self._spark.getExecutorThreadDump(executor).isDefined())

    def replace(self, executor: str) -> bool:
        """Kill an executor, and let Spark request another in its place. Its tasks and files are lost at once.

        A process that hangs may take the cluster manager ten seconds to kill. So Spark is told that it is gone, as Spark does itself after
        a time-out of heartbeats. Its tasks run again, and that does not count as a failure of theirs.
        """
        killed = bool(self._spark.killAndReplaceExecutor(executor))
        scheduler = self._jvm.org.apache.spark.scheduler
        lost = scheduler.ExecutorProcessLost("it did not answer to Headrace", self._jvm.scala.Option.empty(), False)
        self._spark.schedulerBackend().removeExecutor(executor, lost)
        return killed

    def decommissioned(self) -> frozenset[str]:
        """The live executors that Spark decommissions. It gives them no more tasks, and they end when they have none left."""
        if self._decommissions is None:
            self._decommissions = self.context.getConf().get(DECOMMISSIONS, "false") == "true"
        if not self._decommissions:
            return frozenset()
        scheduler = self._spark.taskScheduler()
        return frozenset(each.id for each in self.live() if scheduler.isExecutorDecommissioned(each.id))

    def decommission(self, executor: str, why: str) -> bool:
        """Let Spark decommission an executor, and request another in its place. It gets no further task from now on.

        Executors obey only if `DECOMMISSIONS` is set. Otherwise it is killed.
        """
        self.decommissioned()
        if not self._decommissions:
            return self.replace(executor)
        info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(why, self._jvm.scala.Option.empty())
        return bool(self._spark.schedulerBackend().decommissionExecutor(executor, info, False, False))

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
