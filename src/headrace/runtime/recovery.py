"""Recovery inside a batch: if an executor is lost or hangs, the step's jobs are cancelled and run again at once on the others.

    watch the executors while the jobs run
      one is gone            -> cancel the jobs until the step has ended, give its instances new homes, run the step again
      one seems to hang      -> the same without it; it is killed and replaced if it stays silent or holds on to its tasks
                                (`control/suspicion.py` has the rules)

Spark would run lost tasks again by itself, but it waits for shuffle files that never come back, and it notices a hanging executor only
after minutes. A step that runs again computes everything anew. Nothing that an earlier attempt wrote counts, because no manifest names it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from pyspark.errors import PySparkException

from headrace.control import suspicion
from headrace.control.suspicion import Signs
from headrace.ids import OperatorId
from headrace.logs import logger
from headrace.runtime.asking import Questions
from headrace.runtime.hedging import Hedge
from headrace.runtime.parallel import ParallelRecovery
from headrace.runtime.placement import Placement
from headrace.spark.executors import Executors
from headrace.spark.gateway import GONE
from headrace.state.routing import Routing

LOOK_S = 0.05
"""How often executors are looked at while jobs run. A look takes about a millisecond."""
TASKS_S = 0.5
"""How often the tasks of a slow step are looked at, which takes a call into the JVM for each of them."""
ATTEMPTS_MAX = 4
"""How often a step is tried before its failure ends the batch; Spark tries a task as often."""
STEPS_REMEMBERED = 20

_log = logger(__name__)
_tags = itertools.count()


@dataclass(frozen=True)
class Interruption:
    """An attempt at a step that was broken off."""

    executors: tuple[str, ...]
    hung: bool
    """True if they did not answer; False if they were gone."""
    after_ms: float
    """How long the attempt had run."""

    def to_json(self) -> dict[str, Any]:
        return {"executors": list(self.executors), "hung": self.hung, "afterMs": round(self.after_ms, 1)}


@dataclass
class Watch:
    """Looks at the executors while one attempt at a step runs, and cancels its jobs if it cannot end."""

    executors: Executors
    questions: Questions
    tag: str
    usual_s: float | None
    """The median of the last steps; None if that is not known, and nobody can be suspected."""
    before: frozenset[str]
    """Executors that were there when the attempt began."""
    proven: frozenset[str] = frozenset()
    """Executors that were there in an earlier step."""
    hedge: Hedge[Any] | None = None
    """A second attempt that may run beside this one; None if none may."""
    began_s: float = field(default_factory=time.monotonic)
    interruption: Interruption | None = None
    _stuck: tuple[float, frozenset[str], frozenset[str]] = (float("-inf"), frozenset(), frozenset())
    """When tasks were looked at, and the executors that were busy and stuck then."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until the attempt has ended. Runs in a thread of its own."""
        try:
            while not self._ended.wait(LOOK_S):
                if self.look() is not None:
                    # Again and again, because the step may have been between two jobs.
                    self.executors.context.cancelJobsWithTag(self.tag)
        except (PySparkException, *GONE) as failed:
            # Spark may be shutting down. Then the batch itself fails, and says why.
            _log.info("executors cannot be watched: %s", failed)

    def end(self) -> None:
        self._ended.set()

    def look(self) -> Interruption | None:
        """Why the attempt cannot end, or None."""
        if self.interruption is None:
            took_s = time.monotonic() - self.began_s
            lost = self.before - {each.id for each in self.executors.live()}
            if self.hedge is not None and self.hedge.won is not None:
                self.interruption = Interruption(tuple(sorted(self.hedge.suspects)), True, took_s * 1000)
                return self.interruption
            hung = frozenset() if lost or self.usual_s is None else self._hung(took_s, self.usual_s)
            if lost or hung:
                self.interruption = Interruption(tuple(sorted(lost or hung)), not lost, took_s * 1000)
        return self.interruption

    def _hung(self, took_s: float, usual_s: float) -> frozenset[str]:
        """Ask executors if the step takes long, and return those that hang.

        One that hangs may have nothing to do, while healthy ones wait for its shuffle files. So all are asked.
        """
        after_s = suspicion.ask_after_s(usual_s)
        if took_s > after_s and time.monotonic() - self.questions.last_s > after_s:
            self.questions.ask(self.before)
        signs = Signs(took_s, usual_s, self.before, self.proven, self.questions.silent_s())
        if self.hedge is not None and not self.hedge.has_begun and took_s > suspicion.hedge_after_s(usual_s):
            busy, stuck = self._tasks(suspicion.hedge_after_s(usual_s))
            if slow := suspicion.worth_hedging(replace(signs, busy=busy, stuck=stuck)):
                self.hedge.begin(slow)
        if took_s > suspicion.patience_s(usual_s):
            busy, stuck = self._tasks(suspicion.patience_s(usual_s))
            signs = replace(signs, busy=busy, stuck=stuck)
        return suspicion.suspects(signs)

    def _tasks(self, for_s: float) -> tuple[frozenset[str], frozenset[str]]:
        """The executors that have tasks, and those with a task of this step that has run for long.

        An executor that works for other jobs is not stuck, nor one that could begin only when they ended.
        """
        looked_s, busy, stuck = self._stuck
        if time.monotonic() - looked_s > TASKS_S:
            busy = frozenset(each for each, tasks in self.executors.running_tasks().items() if tasks)
            stuck = self.executors.running_tasks_of([self.tag], for_s)
            self._stuck = time.monotonic(), busy, stuck
        return busy, stuck


@dataclass
class Recovery:
    """Watches the steps of a query that runs on executors."""

    placement: Placement
    parallel: ParallelRecovery
    steps_s: dict[bool, deque[float]] = field(default_factory=dict)
    """How long the last undisturbed steps took: those with the batch's rows, and flushes."""
    interruptions: list[Interruption] = field(default_factory=list)
    """Those of the current batch."""
    cancelled: list[str] = field(default_factory=list)
    """The tags of attempts that were broken off, as long as there are suspects."""
    proven: frozenset[str] = frozenset()
    """Executors that were there in the last undisturbed step."""
    suspected_s: dict[str, float] = field(default_factory=dict)
    """Since when executors are suspected."""
    calm: int = 0
    """How many batches have ended without an interruption since the last one."""

    @property
    def executors(self) -> Executors:
        return self.placement.executors

    @property
    def questions(self) -> Questions:
        return self.placement.guard.questions

    @property
    def replaced(self) -> set[str]:
        """Executors that were killed. That they go is no loss."""
        return self.placement.guard.replaced

    @contextmanager
    def watching(self, is_flush: bool, hedge: Hedge[Any] | None = None) -> Iterator[Watch]:
        """Inside, the Spark jobs of this thread, and of threads that inherit from it, are watched."""
        context, lately = self.executors.context, self.steps_s.setdefault(is_flush, deque(maxlen=STEPS_REMEMBERED))
        # That a suspect goes is no loss, because the step runs without it. Nor is it if one was released or has handed its state over.
        known = self.replaced | self.placement.released | self.placement.avoided | self.placement.left
        before = frozenset(each.id for each in self.executors.live()) - known
        # After an interruption the others have more to do than usual.
        usual_s = median(lately) if lately and not self.interruptions else None
        watch = Watch(self.executors, self.questions, f"headrace-step-{next(_tags)}", usual_s, before, self.proven, hedge)
        context.addJobTag(watch.tag)
        watcher = threading.Thread(target=watch.run, name="headrace-watch", daemon=True)
        watcher.start()
        try:
            yield watch
        finally:
            watch.end()
            watcher.join()
            context.removeJobTag(watch.tag)
            if watch.interruption is not None:
                self.cancelled.append(watch.tag)
        if watch.interruption is None:
            lately.append(time.monotonic() - watch.began_s)
            self.proven = self.placement.guard.proven = before
            self.placement.guard.answer_s = max(suspicion.SILENT_S, suspicion.answer_s(median(lately)))

    def begin_again(self, watch: Watch, routing: Mapping[OperatorId, Routing], may_split: bool) -> bool:
        """Give the instances of a step homes with which it can run again.

        True if instances were split instead, which only happens if they may be: then the whole version must begin again.
        """
        interruption = watch.interruption
        assert interruption is not None
        names = ", ".join(interruption.executors)
        what = "do not answer" if interruption.hung else "were lost"
        _log.warning("executors %s: %s; the step runs again after %.0f ms", what, names, interruption.after_ms)
        self._note(interruption)
        if interruption.hung:
            self._replace_idle(interruption.executors)
        if may_split and self.parallel.split(interruption.executors, len(watch.before)):
            return True
        self.placement.settle(routing)
        return False

    def take_second(self, watch: Watch, hedge: Hedge[Any]) -> None:
        """The second attempt at a step has won. Its instances live where they ran."""
        assert watch.interruption is not None
        _log.warning("the second attempt has won after %.0f ms", watch.interruption.after_ms)
        self._note(watch.interruption)
        self.placement.homes |= hedge.homes

    def _note(self, interruption: Interruption) -> None:
        self.interruptions.append(interruption)
        if interruption.hung:
            self.placement.avoided |= set(interruption.executors)
            self.suspected_s |= dict.fromkeys(interruption.executors, time.monotonic())

    def _replace_idle(self, suspects: Iterable[str]) -> None:
        """Kill suspects with free cores, unless they answer after all: tasks without a home would be sent there, and hang again."""
        cores, running = {each.id: each.cores for each in self.executors.live()}, self.executors.running_tasks()
        idle = [each for each in suspects if running.get(each, 0) < cores.get(each, 0)]
        while any(0 < self.questions.silent_s().get(each, 0.0) <= suspicion.KILL_S for each in idle):
            time.sleep(LOOK_S)
        silent = self.questions.silent_s()
        self._replace(each for each in idle if each in silent)

    def tend(self) -> None:
        """Kill suspects that hang, and trust the others again. Called after a batch, and now and then beside it."""
        suspects = set(self.suspected_s) - self.replaced
        if suspects:
            now_s, silent, holding = time.monotonic(), self.questions.silent_s(), self.executors.running_tasks_of(self.cancelled)
            held = {each for each in suspects & holding if now_s - self.suspected_s[each] > suspicion.HOLD_S}
            self._replace(held | {each for each in suspects if silent.get(each, 0.0) > suspicion.KILL_S})
            for each in suspects - self.replaced - holding - set(silent):
                _log.info("executor %s is trusted again", each)
                self.suspected_s.pop(each, None)
                self.placement.avoided.discard(each)
            # A question that Spark gave up is asked again.
            self.questions.ask(set(silent) & suspects - self.replaced)
        if not set(self.suspected_s) - self.replaced:
            self.cancelled.clear()

    def end_batch(self) -> tuple[Interruption, ...]:
        """Look after suspects. Returns the batch's interruptions."""
        killed = (Interruption((each.executor,), True, each.after_s * 1000) for each in self.placement.guard.drain_killings())
        found = (*self.interruptions, *killed)
        self.interruptions.clear()
        self.calm = 0 if found else self.calm + 1
        self.tend()
        return found

    def _replace(self, suspects: Iterable[str]) -> None:
        self.placement.guard.replace(suspects)
