"""A scenario reproduces a figure of a paper: a simulation, and a comparison of its results with the paper's claims.

SCENARIOS = (Scenario("seep-fig9", "SEEP Fig. 9", "best threshold between 50 and 70%", {"expressways": 64}, run),)

def run(options: Options, seed: int) -> Result: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.errors import QueryError
from headrace.report.plots import Plot
from headrace.sim.trace import Trace, Violation

Value = int | float | bool | str
Options = Mapping[str, Value]


ALL_HELD = "no row lost, slots owned once, copies in distinct zones, no overload left"
ROWS_AND_OWNERS_HELD = "no row lost, slots owned once"


@dataclass(frozen=True)
class Claim:
    """One row of the first table: the paper's claim beside the simulation's result."""

    what: str
    paper: str
    seen: str
    holds: bool | None = None
    """True if the result agrees with the paper; None if the paper gives nothing to compare with."""


@dataclass(frozen=True)
class Result:
    """Everything that `headrace simulate` shows of a run."""

    claims: tuple[Claim, ...]
    plots: tuple[Plot, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """A second table, such as results for each value of an option."""
    violations: tuple[Violation, ...] = ()
    """Violations of invariants in all runs of the scenario."""
    simulated_s: float = 0.0
    nodes: int = 0
    """The largest number of machines in a run."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name, for tests and documents."""
    note: str = ""
    held: str = ALL_HELD
    """The invariants that the checkers tested, in words; empty if no checker ran."""


@dataclass(frozen=True)
class Scenario:
    """A simulation that can be run by name."""

    name: str
    figure: str
    claim: str
    """The paper's claim, in one line."""
    options: Options
    """The options with their defaults. A user's values must have the types of the defaults."""
    run: Callable[[Options, int], Result]

    def with_options(self, given: Mapping[str, str]) -> dict[str, Value]:
        """The options of a run: the defaults, with the values that a user gave as text.

        >>> scenario = Scenario("fig", "Fig. 1", "it works", {"nodes": 4, "until": 0.5}, lambda options, seed: Result(()))
        >>> scenario.with_options({"nodes": "8"})
        {'nodes': 8, 'until': 0.5}
        >>> scenario.with_options({"nodes": "eight"})
        Traceback (most recent call last):
        ...
        headrace.errors.QueryError: --set nodes: wanted a value of type int; found 'eight'
        """
        options = dict(self.options)
        for key, text in given.items():
            if key not in options:
                raise QueryError(where="--set", wanted=f"one of {', '.join(options) or 'none'}", found=repr(key))
            options[key] = _parsed(key, text, options[key])
        return options


def _parsed(key: str, text: str, default: Value) -> Value:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        return type(default)(text)
    except (ValueError, KeyError):
        raise QueryError(where=f"--set {key}", wanted=f"a value of type {type(default).__name__}", found=repr(text)) from None


def number(options: Options, key: str) -> float:
    """A numeric option as a float."""
    return float(options[key])


def numbers(options: Options, key: str) -> list[float]:
    """An option that is a list of numbers, separated by slashes.

    >>> numbers({"rates": "100/500"}, "rates")
    [100.0, 500.0]
    """
    text = str(options[key])
    try:
        return [float(part) for part in text.split("/")]
    except ValueError:
        raise QueryError(where=f"--set {key}", wanted="numbers separated by /", found=repr(text)) from None


def positive(options: Options, *keys: str) -> None:
    """Raise an error if one of these options is not above 0."""
    for key in keys:
        if not number(options, key) > 0:
            raise QueryError(where=f"--set {key}", wanted="a number above 0", found=str(options[key]))


def violations_of(*traces: Trace) -> tuple[Violation, ...]:
    """The violations of all these runs."""
    return tuple(violation for trace in traces for violation in trace.violations)
