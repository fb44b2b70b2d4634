"""What a scenario is: a figure of a paper, what the paper claims of it, and a run that shows what we see.

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
    """One row of the first table: what the paper says beside what was seen."""

    what: str
    paper: str
    seen: str
    holds: bool | None = None
    """Whether what was seen agrees; None where the paper gives nothing to compare with."""


@dataclass(frozen=True)
class Result:
    claims: tuple[Claim, ...]
    plots: tuple[Plot, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """A further table, such as a figure per swept value."""
    violations: tuple[Violation, ...] = ()
    """What checkers found, of all runs."""
    simulated_s: float = 0.0
    nodes: int = 0
    """The most machines of any run; with the time simulated it says how much was simulated."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name, for tests and documents."""
    note: str = ""
    held: str = ALL_HELD
    """What checkers looked for, in words; nothing where none looked."""


@dataclass(frozen=True)
class Scenario:
    name: str
    figure: str
    claim: str
    """In one line."""
    options: Options
    """With their defaults, whose types hold for what a user sets."""
    run: Callable[[Options, int], Result]

    def with_options(self, given: Mapping[str, str]) -> dict[str, Value]:
        """The defaults, and what a user set as text.

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
    """An option that is a number, whatever its type."""
    return float(options[key])


def numbers(options: Options, key: str) -> list[float]:
    """An option that is a list.

    >>> numbers({"rates": "100/500"}, "rates")
    [100.0, 500.0]
    """
    text = str(options[key])
    try:
        return [float(part) for part in text.split("/")]
    except ValueError:
        raise QueryError(where=f"--set {key}", wanted="numbers with / between", found=repr(text)) from None


def positive(options: Options, *keys: str) -> None:
    """Refuse options that must be above 0."""
    for key in keys:
        if not number(options, key) > 0:
            raise QueryError(where=f"--set {key}", wanted="a number above 0", found=str(options[key]))


def violations_of(*traces: Trace) -> tuple[Violation, ...]:
    return tuple(violation for trace in traces for violation in trace.violations)
