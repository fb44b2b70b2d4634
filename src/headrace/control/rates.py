"""Rate-based scaling, as in DS2: the parallelism of every operator in one step, from what instances can do and not from how busy they are.

An instance that processed 600 rows a second while it was busy half of the time can process 1,200: its *true rate*. It shows whether or not
the instance is held back by slower ones behind or before it, so the needs of all operators follow at once, from the sources on:

    rows wanted of an operator  = sum over its inputs of what they put out when nothing holds them back
    rows it then puts out       = rows wanted * selectivity, rows out per row in
    instances                   = ceil(rows wanted / (true rate * target))

None of the five papers has this; it stands beside their policies. Where it departs from DS2 (Kalavri et al., OSDI 2018, section 3):
- The rate of an operator is all its rows by all its busy time, where DS2 averages the rates of instances: a nearly idle instance has a
  rate that is mostly noise.
- DS2 aims at instances that are always busy. ``target`` leaves room, as queues grow without bound near 1.
- Instances are only given up when ``slack`` more rows would fit too; else a load that lies just at the edge would swing between
  two sizes with the noise of measurement. Within the slack nothing changes, so a steady load comes to rest after one step.
- Busy time is CPU time. Skew is not seen, as in DS2: a load balancer has to go with it.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision, Nothing, Rescale, ScaleIn, ScaleOut
from headrace.control.observation import Floats, Observation, OperatorLoad
from headrace.errors import QueryError, require
from headrace.ids import SLOTS, OperatorId

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RatesConfig:
    target: float = 0.8
    """How busy an instance shall be. At 0.8 a queue is four rows long on average (M/M/1), at 0.9 nine."""
    slack: float = 0.1
    """How much more input has to fit into fewer instances before the others are given up."""
    instances_min: int = 1
    instances_max: int = SLOTS

    def __post_init__(self) -> None:
        between("rates", "target", self.target, 0.01, 1)
        between("rates", "slack", self.slack, 0)
        between("rates", "instances_min", self.instances_min, 1, SLOTS)
        between("rates", "instances_max", self.instances_max, 1, SLOTS)
        ascending("rates", instances_min=self.instances_min, instances_max=self.instances_max)


@dataclass(frozen=True, eq=False)
class Capabilities:
    """What operators can do, whatever they were asked to do; an entry for each of them."""

    rows_per_s: Floats
    """The true rate of one instance; 0 if it is not known."""
    selectivity: Floats
    """Rows out per row in; 1 as long as no row came in."""


def decide(observation: Observation, config: RatesConfig) -> tuple[Decision, ...]:
    """The parallelism of every operator.

    A count behind a split into words; a split takes 1 ms a line, a count 0.1 ms a word. Backpressure hides that 1,000 lines a second wait:

    >>> of = lambda *values: np.array(values)
    >>> slots = np.zeros(SLOTS, dtype=np.int64)
    >>> split = OperatorLoad(OperatorId("split"), of(0.5), slots, rows_in_per_s=of(500.0), rows_out_per_s=of(10_000.0))
    >>> count = OperatorLoad(OperatorId("count"), of(1.0), slots, rows_in_per_s=of(10_000.0))
    >>> graph = {"split": ("lines",), "count": ("split",)}
    >>> for decision in decide(Observation(0.0, (split, count), graph, {"lines": 1000.0}), RatesConfig()):
    ...     print(decision.operator, decision.instances, decision.why, sep=": ")
    split: 2: 1000 rows/s wanted, 1000 rows/s per instance at most: 1.25 instances at 0.8 busy
    count: 3: 20000 rows/s wanted, 10000 rows/s per instance at most: 2.50 instances at 0.8 busy
    """
    loads = observation.operators
    able = capabilities(loads)
    wanted = rows_wanted(observation, able)
    exact = np.divide(wanted, able.rows_per_s * config.target, out=np.zeros(len(loads)), where=able.rows_per_s > 0)
    now = np.array([len(load.cpu) for load in loads])
    needed = instances_needed(now, exact, config)
    names = [load.operator for load in loads]
    columns = zip(names, now.tolist(), needed.tolist(), wanted.tolist(), able.rows_per_s.tolist(), exact.tolist(), strict=True)
    return tuple(_decided(config.target, *each) for each in columns)


def capabilities(loads: Sequence[OperatorLoad]) -> Capabilities:
    """Every operator's true rate and selectivity."""
    rows = _totals([load.rows_in_per_s for load in loads])
    busy = _totals([load.cpu for load in loads])
    rows_out = _totals([load.rows_out_per_s for load in loads])
    known = (rows > 0) & (busy > 0)
    rates = np.divide(rows, busy, out=np.zeros(len(rows)), where=known)
    return Capabilities(rates, np.divide(rows_out, rows, out=np.ones(len(rows)), where=known))


def _totals(per_instance: list[Floats]) -> Floats:
    """The sum of each array, all at once: there may be a thousand small ones."""
    if not per_instance:
        return np.zeros(0)
    firsts = np.cumsum([0, *map(len, per_instance[:-1])])
    return np.asarray(np.add.reduceat(np.concatenate(per_instance), firsts), dtype=np.float64)


def rows_wanted(observation: Observation, able: Capabilities) -> Floats:
    """Rows per second that would reach each operator if all had enough instances."""
    wanted: dict[OperatorId, float] = {}
    puts_out = dict(observation.source_rows_per_s)
    selectivity = dict(zip((load.operator for load in observation.operators), able.selectivity.tolist(), strict=True))
    inputs = observation.inputs
    for name in _from_the_sources_on(observation):
        if name not in selectivity:
            require(name in puts_out, f"{name} is an operator, or a source with a rate")
            continue
        require(bool(inputs.get(name)), f"operator {name} has an input")
        wanted[name] = sum([puts_out[each] for each in inputs[name]])
        puts_out[name] = wanted[name] * selectivity[name]
    return np.array([wanted[load.operator] for load in observation.operators])


def _from_the_sources_on(observation: Observation) -> Iterable[OperatorId]:
    """All names, each after its inputs. Most queries list their operators so already, and looking is quicker than sorting."""
    graph = {load.operator: observation.inputs.get(load.operator, ()) for load in observation.operators}
    before = set(observation.source_rows_per_s) - set(graph)
    for name, inputs in graph.items():
        if not before.issuperset(inputs):
            break
        before.add(name)
    else:
        return graph
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise QueryError(where="rates", wanted="operators without a cycle", found=" -> ".join(error.args[1])) from error


def instances_needed(instances: Counts, exact: Floats, config: RatesConfig) -> Counts:
    """At least as many as needed; fewer than now only if there is slack.

    >>> instances_needed(np.full(5, 4), np.array([4.1, 3.9, 2.9, 2.0, 0.0]), RatesConfig()).tolist()
    [5, 4, 4, 3, 1]
    """
    # Rounded, since floating point makes a little more than a whole number of what is one.
    least, roomy = (np.ceil(each.round(9)) for each in (exact, exact * (1 + config.slack)))
    needed = np.maximum(least, np.minimum(instances, roomy))
    return needed.clip(config.instances_min, config.instances_max).astype(np.int64)


def _decided(target: float, operator: OperatorId, now: int, needed: int, wanted: float, rate: float, exact: float) -> Decision:
    if not rate and wanted > 0:
        return Nothing(operator=operator, why=f"{wanted:.0f} rows/s wanted, but none seen yet to know the rate of an instance by")
    most = f"{rate:.0f} rows/s per instance at most" if rate else "no rows seen"
    why = f"{wanted:.0f} rows/s wanted, {most}: {exact:.2f} instances at {target:g} busy"
    if needed == now:
        return Nothing(operator=operator, why=why)
    kind: type[Rescale] = ScaleOut if needed > now else ScaleIn
    return kind(operator=operator, instances=needed, why=why)
