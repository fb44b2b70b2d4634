"""Rate-based scaling, as in DS2: the parallelism of every operator in one step, from the rows that an instance can process.

An instance that processed 600 rows/s while it was busy half of the time can process 1,200 rows/s: its *true rate*. It can be measured
even while slower operators before or behind it hold the instance back. So the needs of all operators follow at once, from the sources on:

    input of an operator   = sum of the outputs of its inputs, if nothing held them back
    output of an operator  = input * selectivity (rows out per row in)
    instances              = ceil(input / (true rate * target))

None of the five papers has this policy. Differences from DS2 (Kalavri et al., OSDI 2018, section 3):
- The true rate of an operator is all its rows divided by all its busy time. DS2 averages the rates of instances, but the rate of a nearly
  idle instance is mostly noise.
- DS2 aims at instances that are always busy. ``target`` leaves room, because queues grow without bound near 1.
- An operator scales in only if ``slack`` more rows would still fit. Otherwise a load at the edge would swing between two sizes with the
  noise of measurement. Within the slack nothing changes, so a steady load comes to rest after one step.
- In a running query stages run one after another. Then the target is that of the whole path, and instances are added where the share of
  the path is largest (`critical_path`).
- Busy time is CPU time. Like DS2, the policy does not see skew; a load balancer must handle that.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.control.checks import ascending, between
from headrace.control.critical_path import Sizes, described, sized
from headrace.control.decisions import Decision, Nothing, Rescale, ScaleIn, ScaleOut
from headrace.control.observation import Floats, Observation, OperatorLoad, Path
from headrace.control.wording import limit, percent, size_change
from headrace.errors import QueryError, require
from headrace.ids import SLOTS, InputId, OperatorId, SourceId

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RatesConfig:
    """Settings of the policy. DS2 has neither of the two."""

    target: float = 0.8
    """The utilisation that instances should have. At 0.8 a queue is four rows long on average (M/M/1), at 0.9 nine."""
    slack: float = 0.1
    """Scale in only if this share of additional input would still fit."""
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
    """What each operator is able to process, independent of its input. Arrays have an entry per operator."""

    rows_per_s: Floats
    """The true rate of one instance; 0 if it is not known."""
    selectivity: Floats
    """Rows out per row in; 1 until the first row has arrived."""


def decide(observation: Observation, config: RatesConfig) -> tuple[Decision, ...]:
    """Decide the parallelism of every operator.

    Example: lines are split into words (1 ms per line), and words are counted (0.1 ms per word). Because of backpressure only 500 of
    1,000 lines/s are processed:

    >>> of = lambda *values: np.array(values)
    >>> slots = np.zeros(SLOTS, dtype=np.int64)
    >>> split = OperatorLoad(OperatorId("split"), of(0.5), slots, rows_in_per_s=of(500.0), rows_out_per_s=of(10_000.0))
    >>> count = OperatorLoad(OperatorId("count"), of(1.0), slots, rows_in_per_s=of(10_000.0))
    >>> lines = SourceId("lines")
    >>> graph = {split.operator: (lines,), count.operator: (split.operator,)}
    >>> for decision in decide(Observation(0.0, (split, count), graph, {lines: 1000.0}), RatesConfig()):
    ...     print(decision.operator, decision.instances, decision.why, sep=": ")
    split: 2: Input 1,000 rows/s, capacity 1,000 rows/s per instance: 1.25 instances needed at 80% utilisation; scale out 1 → 2
    count: 3: Input 20,000 rows/s, capacity 10,000 rows/s per instance: 2.50 instances needed at 80% utilisation; scale out 1 → 3
    """
    loads = observation.operators
    able = capabilities(loads)
    wanted = rows_wanted(observation, able)
    exact = np.divide(wanted, able.rows_per_s * config.target, out=np.zeros(len(loads)), where=able.rows_per_s > 0)
    now = np.array([len(load.cpu) for load in loads])
    names = [load.operator for load in loads]
    needed = whole_instances(now, exact, config)
    if observation.path is not None and len(loads):
        return _decide_together(observation, observation.path, wanted, able, config)
    columns = zip(names, now.tolist(), needed.tolist(), wanted.tolist(), able.rows_per_s.tolist(), exact.tolist(), strict=True)
    return tuple(_decided(config.target, *each) for each in columns)


def capabilities(loads: Sequence[OperatorLoad]) -> Capabilities:
    """The true rate and the selectivity of every operator."""
    rows = _totals([load.rows_in_per_s for load in loads])
    busy = _totals([load.cpu for load in loads])
    rows_out = _totals([load.rows_out_per_s for load in loads])
    known = (rows > 0) & (busy > 0)
    rates = np.divide(rows, busy, out=np.zeros(len(rows)), where=known)
    return Capabilities(rates, np.divide(rows_out, rows, out=np.ones(len(rows)), where=known))


def _totals(per_instance: list[Floats]) -> Floats:
    """The sum of each array, in one numpy call, because there may be a thousand small arrays."""
    if not per_instance:
        return np.zeros(0)
    firsts = np.cumsum([0, *map(len, per_instance[:-1])])
    return np.asarray(np.add.reduceat(np.concatenate(per_instance), firsts), dtype=np.float64)


def rows_wanted(observation: Observation, able: Capabilities) -> Floats:
    """Rows per second that would reach each operator if all operators had enough instances."""
    wanted: dict[OperatorId, float] = {}
    puts_out: dict[InputId, float] = dict(observation.source_rows_per_s.items())
    selectivity = dict(zip((load.operator for load in observation.operators), able.selectivity.tolist(), strict=True))
    inputs = observation.inputs
    for name in _from_the_sources_on(observation):
        if isinstance(name, SourceId) or name not in selectivity:
            require(name in puts_out, f"{name} is an operator or a source with a known rate")
            continue
        require(bool(inputs.get(name)), f"operator {name} has an input")
        wanted[name] = sum([puts_out[each] for each in inputs[name]])
        puts_out[name] = wanted[name] * selectivity[name]
    return np.array([wanted[load.operator] for load in observation.operators])


def _from_the_sources_on(observation: Observation) -> Iterable[InputId]:
    """All names, each after its inputs. Most queries list their operators in this order already, and checking is faster than sorting."""
    graph = {load.operator: observation.inputs.get(load.operator, ()) for load in observation.operators}
    before: set[InputId] = set(observation.source_rows_per_s)
    before.difference_update(graph)
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


def whole_instances(instances: Counts, exact: Floats, config: RatesConfig) -> Counts:
    """Whole numbers of instances: at least as many as needed, and fewer than now only if there is slack.

    >>> whole_instances(np.full(5, 4), np.array([4.1, 3.9, 2.9, 2.0, 0.0]), RatesConfig()).tolist()
    [5, 4, 4, 3, 1]
    """
    # Rounded, because floating point may turn a whole number into slightly more.
    least, roomy = (np.ceil(each.round(9)) for each in (exact, exact * (1 + config.slack)))
    needed = np.maximum(least, np.minimum(instances, roomy))
    return needed.clip(config.instances_min, config.instances_max).astype(np.int64)


def _decide_together(observation: Observation, path: Path, wanted: Floats, able: Capabilities, config: RatesConfig) -> tuple[Decision, ...]:
    """The instances of operators whose stages run one after another: the fewest with which the whole path has the target utilisation."""
    loads = observation.operators
    arrived = _totals([load.rows_in_per_s for load in loads])
    busy = np.divide(wanted, able.rows_per_s, out=np.zeros(len(loads)), where=able.rows_per_s > 0)
    # Scan and combine grow with the rows that the sources offer.
    around = path.around * max([1.0, *np.divide(wanted, arrived, out=np.ones(len(loads)), where=arrived > 0).tolist()])
    least = config.instances_min

    def fewest(factor: float) -> Sizes:
        work = {load.operator: factor * float(each) for load, each in zip(loads, busy, strict=True)}
        alone = Path(around * factor, {name: each / least for name, each in work.items()})
        return sized(alone, work, dict.fromkeys(work, least), config.target, (least, config.instances_max))

    exact, roomy = fewest(1.0), fewest(1 + config.slack)
    decisions: list[Decision] = []
    for load, rows in zip(loads, wanted.tolist(), strict=True):
        now, name = load.instances, load.operator
        needed = max(exact.instances[name], min(now, roomy.instances[name]))
        why = f"Input {rows:,.0f} rows/s; the query needs {percent(exact.expected)} of its time with {exact.instances[name]} of {name}"
        why += f", at most {limit(config.target)} is wanted ({described(path)} now)"
        if needed == now:
            decisions.append(Nothing(operator=name, why=why))
        else:
            kind: type[Rescale] = ScaleOut if needed > now else ScaleIn
            decisions.append(kind(operator=name, instances=needed, why=f"{why}; {size_change(now, needed)}"))
    return tuple(decisions)


def _decided(target: float, operator: OperatorId, now: int, needed: int, wanted: float, rate: float, exact: float) -> Decision:
    if not rate and wanted > 0:
        return Nothing(operator=operator, why=f"Input {wanted:,.0f} rows/s, but the capacity of an instance is not known yet")
    why = "No input"
    if rate:
        capacity = f"capacity {rate:,.0f} rows/s per instance"
        why = f"Input {wanted:,.0f} rows/s, {capacity}: {exact:.2f} instances needed at {limit(target)} utilisation"
    if needed == now:
        return Nothing(operator=operator, why=why)
    kind: type[Rescale] = ScaleOut if needed > now else ScaleIn
    return kind(operator=operator, instances=needed, why=f"{why}; {size_change(now, needed)}")
