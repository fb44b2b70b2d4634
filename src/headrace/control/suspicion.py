"""When executors that hang are suspected: pure rules on how long a step takes, who answers, and who works.

    a step takes 1.5 times as long as usual   -> all executors are asked for a sign of life
    one does not answer for 2.5 s             -> it hangs, whether it works on the step or only has files that others wait for
    all answer, and the step takes 5 times    -> an executor that has worked on a task of the step for so long hangs,
    as long as usual (and 2 s)                   if others have nothing to do

A suspicion may be wrong: a garbage collection of 1 or 2 seconds is normal. So the step only runs again without the suspect. It is killed if
it stays silent, or holds on to its cancelled tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

ASK_FACTOR = 1.5
"""Executors are asked when a step takes this many times as long as the median of the last ones."""
ASK_S_MIN = 0.3
ANSWER_S = 2.5
"""An executor that has not answered for this long is suspected. A garbage collection, or a busy machine, can delay an answer."""
ANSWER_S_MAX = 10.0
"""Steps that take long are expensive to run again, so they wait longer for answers, but not longer than this."""
PATIENCE = 5.0
"""A step that takes this many times as long as the median of the last ones may have met an executor that hangs, although it answers."""
PATIENCE_S_MIN = 2.0
"""Steps are not suspected before this time, because a garbage collection or a busy machine can delay them."""
HEDGE_SILENT_S = 0.3
"""An executor that has not answered for this long is a reason to run a step a second time beside the first."""
HEDGE_FACTOR = 2.0
"""So is one that has worked on a task for this many times as long as a step takes, while others have nothing to do."""
HEDGE_S_MIN = 0.5
KILL_S = 3.0
"""An executor that has not answered for this long may be killed."""
SILENT_S = 5.0
"""Outside of steps, an executor that has not answered for this long is killed, if others answer."""
ALONE_S = 20.0
"""The same for an executor that is the only one: nobody else shows that the driver can be answered."""
HOLD_S = 5.0
"""An executor that answers may hold on to a cancelled task for this long: Spark gives a Python worker two seconds to end."""


@dataclass(frozen=True)
class Signs:
    """What is known about the executors while a step runs."""

    took_s: float
    """How long the step has run."""
    usual_s: float
    """The median of the last steps."""
    executors: frozenset[str]
    """Those that may have a part in the step."""
    proven: frozenset[str]
    """Those that were there in an earlier step. One that has just started may be slow, and is not suspected."""
    silent_s: Mapping[str, float] = field(default_factory=dict)
    """Executors that were asked and have not answered, and for how long."""
    busy: frozenset[str] = frozenset()
    """Those with any task, of this query or of others."""
    stuck: frozenset[str] = frozenset()
    """Those that have worked on a task of this step for longer than a step may take."""


def ask_after_s(usual_s: float) -> float:
    """How long a step runs before executors are asked.

    >>> ask_after_s(0.4), ask_after_s(0.1)
    (0.6000000000000001, 0.3)
    """
    return max(ASK_S_MIN, ASK_FACTOR * usual_s)


def answer_s(usual_s: float) -> float:
    """How long an executor may be silent.

    >>> answer_s(0.4), answer_s(4), answer_s(60)
    (2.5, 4, 10.0)
    """
    return min(max(ANSWER_S, usual_s), ANSWER_S_MAX)


def patience_s(usual_s: float) -> float:
    """How long a step may take if all executors answer.

    >>> patience_s(0.1), patience_s(4)
    (2.0, 20.0)
    """
    return max(PATIENCE_S_MIN, PATIENCE * usual_s)


def suspects(signs: Signs) -> frozenset[str]:
    """The executors that hang, as far as one can tell.

    >>> three = frozenset("123")
    >>> sorted(suspects(Signs(3.2, 0.4, three, three, {"2": 2.6}, busy=frozenset("1"))))
    ['2']

    While an answer may still come, nobody is suspected:

    >>> sorted(suspects(Signs(2.5, 0.4, three, three, {"2": 1.9}, frozenset("1"), frozenset("1"))))
    []

    If all answer, one that works while others have nothing to do is suspected. If all have something to do, the step is large, or other
    jobs of the application keep it waiting:

    >>> sorted(suspects(Signs(2.5, 0.4, three, three, {}, frozenset("1"), frozenset("1"))))
    ['1']
    >>> sorted(suspects(Signs(2.5, 0.4, three, three, {}, three, frozenset("1"))))
    []
    """
    silent = {each: waited_s for each, waited_s in signs.silent_s.items() if each in signs.executors & signs.proven}
    if silent:
        return frozenset(each for each, waited_s in silent.items() if waited_s > answer_s(signs.usual_s))
    if signs.took_s <= patience_s(signs.usual_s) or signs.busy >= signs.executors:
        return frozenset()
    return signs.stuck & signs.executors & signs.proven


def unresponsive(
    executors: frozenset[str], known: Collection[str], silent_s: Mapping[str, float], heard_s: Mapping[str, float], limit_s: float
) -> frozenset[str]:
    """The executors that hang, whatever jobs there are: they are silent, although another one has answered since they were asked.

    ``known`` are those that have answered or worked before, and ``heard_s`` says how long ago executors answered last.

    >>> three = frozenset("123")
    >>> sorted(unresponsive(three, three, {"2": 5.5}, {"1": 0.4, "2": 7.0}, 5.0))
    ['2']

    If nobody has answered since, the driver may be the one that cannot be reached:

    >>> sorted(unresponsive(three, three, {"1": 5.5, "2": 5.5, "3": 5.5}, {"1": 7.0}, 5.0))
    []
    >>> one = frozenset("1")
    >>> sorted(unresponsive(one, one, {"1": 5.5}, {}, 5.0)), sorted(unresponsive(one, one, {"1": 20.5}, {}, 5.0))
    ([], ['1'])
    """
    alone = len(executors) == 1
    limit_s = max(limit_s, ALONE_S) if alone else limit_s
    late = {each: waited_s for each, waited_s in silent_s.items() if each in executors and each in known and waited_s > limit_s}
    answers = [ago_s for each, ago_s in heard_s.items() if each in executors and each not in silent_s]
    return frozenset(each for each, waited_s in late.items() if alone or any(ago_s < waited_s for ago_s in answers))


def hedge_after_s(usual_s: float) -> float:
    """How long an executor may work on a task before the step runs a second time beside the first.

    >>> hedge_after_s(0.4), hedge_after_s(0.1)
    (0.8, 0.5)
    """
    return max(HEDGE_S_MIN, HEDGE_FACTOR * usual_s)


def worth_hedging(signs: Signs) -> frozenset[str]:
    """The executors without which the step should run a second time. ``stuck`` are those that work for longer than `hedge_after_s`.

    >>> three = frozenset("123")
    >>> sorted(worth_hedging(Signs(1.1, 0.4, three, three, {"2": 0.4})))
    ['2']
    >>> sorted(worth_hedging(Signs(1.1, 0.4, three, three, {}, frozenset("1"), frozenset("1"))))
    ['1']
    >>> sorted(worth_hedging(Signs(1.1, 0.4, three, three, {}, three, three)))
    []
    """
    silent = frozenset(each for each, waited_s in signs.silent_s.items() if waited_s > HEDGE_SILENT_S)
    stuck = frozenset() if signs.busy >= signs.executors else signs.stuck
    found = (silent | stuck) & signs.executors & signs.proven
    return found if found < signs.executors else frozenset()
