"""Which function lowers which kind of stateful node of Spark's plans.

A function registers itself with ``lowers``, for the simple name of a Catalyst class. So a further operator adds a module, and edits none
but the list of modules in ``frontend/lower.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from headrace.errors import require
from headrace.frontend.lowered import Lowered
from headrace.spark.logical import Logical


class Lowering(Protocol):
    """What a function that lowers a node can ask for."""

    @property
    def where(self) -> str:
        """The user's line, for error messages."""

    @property
    def mode(self) -> str:
        """The output mode of the query; ``append`` if it is not known yet."""

    @property
    def panes(self) -> bool:
        """True if time windows may be divided into panes."""

    def lower(self, node: Logical) -> Lowered:
        """The rows of a node below."""

    def used(self, node: Logical) -> tuple[frozenset[int], ...] | None:
        """For each input of a node: the ids of the columns that somebody uses; None if that is not known."""

    def above(self, node: Logical) -> Logical:
        """The node at the top of the piece of stateless steps that reads this node's results.

        The node itself if there are no such steps, or if several pieces read the results.
        """

    def is_named(self, node: Logical) -> bool:
        """True if the user has given a name to the operator, so that its state must not depend on the steps behind it."""


Lower = Callable[[Logical, Lowering], Lowered]
F = TypeVar("F", bound=Lower)
_LOWERED_BY: dict[str, Lower] = {}


def lowers(*kinds: str) -> Callable[[F], F]:
    """Decorator: the function lowers stateful nodes of these Catalyst classes."""

    def register(function: F) -> F:
        for kind in kinds:
            require(kind not in _LOWERED_BY, f"a class of nodes is lowered by one function: {kind}")
            _LOWERED_BY[kind] = function
        return function

    return register


def lowered_by(kind: str) -> Lower | None:
    """The function for a Catalyst class; None if there is none."""
    return _LOWERED_BY.get(kind)
