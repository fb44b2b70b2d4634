"""Rate-based scaling: one step, from true rates."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.decisions import Nothing, ScaleIn, ScaleOut
from headrace.control.observation import Observation, OperatorLoad
from headrace.control.rates import RatesConfig, decide
from headrace.errors import InvariantError, QueryError
from headrace.ids import SLOTS, InputId, OperatorId, SourceId

SOURCE = SourceId("source")


@dataclass
class Dataflow:
    """A chain or any other graph without cycles, in order; backpressure slows the sources to what the slowest operator can do."""

    rates: list[float]
    selectivities: list[float]
    inputs: list[list[int]]
    """Per operator the numbers of earlier ones; none means the source."""
    source: float
    sizes: list[int]

    def wanted(self) -> list[float]:
        out: list[float] = []
        wanted: list[float] = []
        for selectivity, inputs in zip(self.selectivities, self.inputs, strict=True):
            wanted.append(sum(out[i] for i in inputs) if inputs else self.source)
            out.append(wanted[-1] * selectivity)
        return wanted

    def observe(self) -> Observation:
        wanted = self.wanted()
        slowed = min(1.0, *(n * rate / max(rows, 1e-9) for n, rate, rows in zip(self.sizes, self.rates, wanted, strict=True)))
        loads = []
        for i, size in enumerate(self.sizes):
            each = np.full(size, wanted[i] * slowed / size)
            owners = np.arange(SLOTS) % size
            loads.append(
                OperatorLoad(name(i), each / self.rates[i], owners, rows_in_per_s=each, rows_out_per_s=each * self.selectivities[i])
            )
        graph: dict[OperatorId, tuple[InputId, ...]] = {name(i): tuple(map(name, each)) or (SOURCE,) for i, each in enumerate(self.inputs)}
        return Observation(0.0, tuple(loads), graph, {SOURCE: self.source})

    def step(self, config: RatesConfig) -> bool:
        acted = False
        for i, decision in enumerate(decide(self.observe(), config)):
            if isinstance(decision, ScaleOut | ScaleIn):
                assert decision.operator == name(i)
                self.sizes[i] = decision.instances
                acted = True
        return acted


def name(number: int) -> OperatorId:
    return OperatorId(f"o{number}")


@st.composite
def dataflows(draw: st.DrawFn) -> Dataflow:
    count = draw(st.integers(1, 6))
    inputs = [draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else [] for i in range(count)]
    each = st.lists(st.floats(10.0, 1000.0), min_size=count, max_size=count)
    selectivities = draw(st.lists(st.floats(0.1, 3.0), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    return Dataflow(draw(each), selectivities, inputs, draw(st.floats(10, 300)), sizes)


@settings(deadline=None)
@given(dataflows())
def test_one_step_is_enough_for_the_whole_query_and_the_next_changes_nothing(flow: Dataflow) -> None:
    config = RatesConfig()
    flow.step(config)
    for size, rate, rows in zip(flow.sizes, flow.rates, flow.wanted(), strict=True):
        assert size * rate * config.target >= rows * (1 - 1e-6), "nobody is busier than wanted"
        assert size == 1 or (size - 1) * rate * config.target <= rows * (1 + config.slack) + 1e-6, "and no instance is too many"
    assert not flow.step(config)


@settings(deadline=None)
@given(dataflows(), st.integers(0, 2**31))
def test_a_steady_load_measured_with_noise_does_not_swing(flow: Dataflow, seed: int) -> None:
    rng, source, seen = np.random.default_rng(seed), flow.source, []
    for _ in range(20):
        flow.source = source * rng.uniform(0.97, 1.03)
        flow.step(RatesConfig())
        seen.append(list(flow.sizes))
    for sizes in zip(*seen[1:], strict=True):
        changes = [(b > a) - (b < a) for a, b in itertools.pairwise(sizes) if a != b]
        assert changes == sorted(changes, reverse=True) or changes == sorted(changes), f"3% of noise is within the slack of 10%: {sizes}"


def test_the_order_in_which_operators_are_listed_does_not_matter() -> None:
    flow = Dataflow([100.0, 10.0, 50.0], [1.0, 2.0, 1.0], [[], [0], [1]], source=200.0, sizes=[1, 1, 1])
    seen = flow.observe()
    turned = Observation(0.0, seen.operators[::-1], seen.inputs, seen.source_rows_per_s)
    assert decide(turned, RatesConfig()) == decide(seen, RatesConfig())[::-1]


def test_a_slow_operator_hides_nothing_of_the_fast_ones_before_it() -> None:
    flow = Dataflow([1000.0, 10.0, 500.0], [1.0, 1.0, 4.0], [[], [0], [1]], source=2000.0, sizes=[1, 1, 1])
    flow.step(RatesConfig(target=1.0))
    assert flow.sizes == [2, 200, 4]


def test_an_operator_that_saw_no_rows_yet_is_left_alone_one_that_gets_none_shrinks() -> None:
    idle = OperatorLoad(name(0), np.zeros(2), np.arange(SLOTS) % 2)
    graph = {name(0): (SOURCE,)}
    (waiting,) = decide(Observation(0.0, (idle,), graph, {SOURCE: 5.0}), RatesConfig())
    assert isinstance(waiting, Nothing)
    assert waiting.why == "Input 5 rows/s, but the capacity of an instance is not known yet"
    (useless,) = decide(Observation(0.0, (idle,), graph, {SOURCE: 0.0}), RatesConfig())
    assert isinstance(useless, ScaleIn)
    assert useless.instances == 1


def test_a_source_of_unknown_rate_is_no_reason_to_shrink() -> None:
    idle = OperatorLoad(name(0), np.zeros(2), np.arange(SLOTS) % 2)
    with pytest.raises(InvariantError, match="a source with a known rate"):
        decide(Observation(0.0, (idle,), {name(0): (SOURCE,)}), RatesConfig())


def test_a_cycle_is_refused() -> None:
    a, b = (OperatorLoad(name(i), np.ones(1), np.zeros(SLOTS, dtype=np.int64)) for i in range(2))
    with pytest.raises(QueryError, match="without a cycle"):
        decide(Observation(0.0, (a, b), {name(0): (name(1),), name(1): (name(0),)}), RatesConfig())


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(QueryError, match="rates: wanted target in"):
        RatesConfig(target=80)
