"""Which function compiles which kind of node.

A compiler registers itself with `compiles`. So a new operator adds a module, and edits none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.compile.plan import StatefulPlan
from headrace.config import Config
from headrace.errors import QueryError, require
from headrace.graph.nodes import StatefulNode

N = TypeVar("N", bound=StatefulNode)

_COMPILERS: dict[type[Any], Callable[[Any, Config], StatefulPlan]] = {}


def compiles(kind: type[N]) -> Callable[[Callable[[N, Config], StatefulPlan]], Callable[[N, Config], StatefulPlan]]:
    """Decorator: the function compiles nodes of class `kind`. A class has one compiler."""

    def register(compiler: Callable[[N, Config], StatefulPlan]) -> Callable[[N, Config], StatefulPlan]:
        require(kind not in _COMPILERS, f"a class of nodes has one compiler: {kind.__name__}")
        _COMPILERS[kind] = compiler
        return compiler

    return register


def compiler_of(node: StatefulNode) -> Callable[[Any, Config], StatefulPlan]:
    """The compiler of a node's class. A class that has none is refused."""
    found = _COMPILERS.get(type(node))
    if found is None:
        raise QueryError(
            where=node.where,
            wanted="a node that has a compiler: " + ", ".join(sorted(kind.__name__ for kind in _COMPILERS)),
            found=type(node).__name__,
            hint=f"write a function under @compiles({type(node).__name__}), and import the module that it is in",
        )
    return found
