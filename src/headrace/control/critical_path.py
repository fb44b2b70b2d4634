"""The critical path of a batch: which stages its time goes into, and how many instances each operator needs because of that.

On Spark the stages of a batch run one after another. So utilisation is a property of the query, not of an operator:

    utilisation = (around + busiest instance of a + busiest instance of b + ...) / time in which the rows came

*Around* is what no instance does: scanning, combining, delivering. What a batch costs however few rows it has is not counted. If a trigger
or a limit on batches decides when a batch begins, that fixed cost is taken off the time available; otherwise batches just get longer.

Three operators that are busy 45% of the time each, one after another, have a query that needs 135% of its time. `sized` adds instances to
the operator with the largest share of the path until the target is reached, or until another instance would not help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from headrace.control.observation import Observation, OperatorLoad, Path
from headrace.control.wording import percent
from headrace.ids import OperatorId

GAIN_MIN = 0.02
"""An instance is added only if that shortens the path by at least this share of the time available."""
FIXED_USUAL_S = 0.1
"""The fixed cost of a batch's jobs that is assumed at most while all batches have about as many rows."""
SPREAD_MIN = 1.5
"""The fixed cost is fitted if the largest batch has at least so many times the rows of the smallest."""


@dataclass(frozen=True)
class Sizes:
    """The number of instances of each operator, and the utilisation of the query that is expected with them."""

    instances: Mapping[OperatorId, int] = field(default_factory=dict)
    expected: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "instances", MappingProxyType(dict(self.instances)))


def fixed_s(rows: Sequence[float], around_s: Sequence[float]) -> float:
    """The part of ``around_s`` that does not depend on the rows of a batch: where a line through the batches meets zero rows.

    >>> round(fixed_s([1000, 2000, 4000], [0.3, 0.4, 0.6]), 3)
    0.2
    >>> fixed_s([1000, 1000], [0.3, 0.3])
    0.1
    """
    if not len(rows):
        return 0.0
    x, y = np.asarray(rows, dtype=np.float64), np.asarray(around_s, dtype=np.float64)
    least = float(y.min())
    if x.max() < SPREAD_MIN * max(1.0, float(x.min())):
        return min(least, FIXED_USUAL_S)
    slope = max(0.0, float(np.cov(x, y, bias=True)[0, 1] / x.var()))
    return min(least, max(0.0, float(y.mean() - slope * x.mean())))


def effective(observation: Observation) -> tuple[OperatorLoad, ...]:
    """The loads for a policy that looks for a single bottleneck: of the operator with the largest share, all other stages' time is added.

    An instance of that operator is as busy as the whole path would be if it were the operator's busiest instance. Without a known path
    the loads are returned as they are.
    """
    path = observation.path
    if path is None or not path.operators:
        return observation.operators
    largest = max(path.operators, key=lambda name: path.operators[name])
    others = path.utilisation - path.operators[largest]
    return tuple(replace(load, cpu=load.cpu + others) if load.operator == largest else load for load in observation.operators)


def work_of(observation: Observation) -> dict[OperatorId, float]:
    """By operator: the work of all its instances, as a multiple of the time available."""
    return {load.operator: float(load.cpu.sum()) for load in observation.operators}


def sized(
    path: Path,
    work: Mapping[OperatorId, float],
    now: Mapping[OperatorId, int],
    target: float,
    bounds: tuple[int, int],
    steps: int = 1 << 20,
) -> Sizes:
    """Grow or shrink operators until the query has the target utilisation, with the fewest changes.

    The operator with the largest share of the path grows first. The one whose share grows least gives up an instance first, as long as
    the target still holds.

    >>> a, b = OperatorId("a"), OperatorId("b")
    >>> path = Path(around=0.1, operators={a: 0.9, b: 0.3})
    >>> dict(sized(path, {a: 0.9, b: 0.3}, {a: 1, b: 1}, 0.6, (1, 8)).instances)
    {'a': 4, 'b': 2}
    >>> idle = Path(around=0.05, operators={a: 0.05, b: 0.1})
    >>> dict(sized(idle, {a: 0.2, b: 0.2}, {a: 4, b: 2}, 0.6, (1, 8)).instances)
    {'a': 1, 'b': 1}
    """
    least, most = bounds
    sizes = {name: max(least, min(most, count)) for name, count in now.items()}
    share = {name: path.operators.get(name, 0.0) if sizes[name] == now[name] else work[name] / sizes[name] for name in sizes}

    def with_one(name: OperatorId, step: int) -> float:
        return work[name] / (sizes[name] + step)

    for _ in range(steps):
        if path.around + sum(share.values()) <= target:
            break
        useful = [name for name in sizes if sizes[name] < most and share[name] - with_one(name, 1) >= GAIN_MIN]
        if not useful:
            break
        grown = max(useful, key=lambda name: share[name])
        sizes[grown], share[grown] = sizes[grown] + 1, with_one(grown, 1)
    if sizes == dict(now):
        for _ in range(steps):
            spare = [name for name in sizes if sizes[name] > least]
            if not spare:
                break
            shrunk = min(spare, key=lambda name: with_one(name, -1) - share[name])
            if path.around + sum(share.values()) - share[shrunk] + with_one(shrunk, -1) > target:
                break
            sizes[shrunk], share[shrunk] = sizes[shrunk] - 1, with_one(shrunk, -1)
    return Sizes(sizes, path.around + sum(share.values()))


def described(path: Path) -> str:
    """The stages of the path with their shares, the largest first, for reasons.

    >>> described(Path(around=0.1, operators={OperatorId("a"): 0.25, OperatorId("b"): 0.5}))
    'b 50.0%, a 25.0%, scan, combine and delivery 10.0%'
    """
    largest = sorted(path.operators.items(), key=lambda each: -each[1])
    named = [f"{name} {percent(share)}" for name, share in largest[:4]]
    more = sum(share for _, share in largest[4:])
    return ", ".join(
        [*named, *([f"{len(largest) - 4} more {percent(more)}"] if more else []), f"scan, combine and delivery {percent(path.around)}"]
    )
