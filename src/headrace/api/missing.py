"""Helpful errors for attributes that an object of ours does not have.

The error is also an ``AttributeError``, on which ``hasattr``, ``copy``, ``pickle`` and notebooks rely. Names with a leading underscore,
which only such tools ask for, get a plain ``AttributeError``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.api.origin import user_line
from headrace.errors import MissingError

STREAM = {
    **dict.fromkeys(("distinct", "dropDuplicatesWithinWatermark"), "use dropDuplicates"),
    **dict.fromkeys(("write", "show", "collect", "take", "first", "head", "toPandas", "foreach"), "a stream has no end: use writeStream"),
    **dict.fromkeys(("orderBy", "sort", "limit"), "results of complete mode can be sorted and cut in foreachBatch"),
    "count": "use groupBy().count()",
}
GROUPED = {
    **dict.fromkeys(("apply", "applyInPandas", "applyInArrow"), "use process with a hr.Processor"),
    "pivot": "Spark has no pivot of streams; give one aggregate per value, with F.when",
}
WRITER = {"table": "use toTable", "save": "use start", "mode": "use outputMode"}
"""Names that Spark has and Headrace has not, with advice."""


class Helpful:
    """Base class of streams, writers and queries."""

    _is: ClassVar[str]
    """What the object is called in messages."""
    _instead: ClassVar[dict[str, str]] = {}

    if not TYPE_CHECKING:  # A type checker must report missing attributes itself.

        def __getattr__(self, name: str) -> Any:
            raise self._missing(name)

    def _missing(self, name: str) -> AttributeError:
        if name.startswith("_"):
            return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        inner = getattr(type(self), "__dataclass_fields__", {})
        there = [each for each in dir(type(self)) if not each.startswith("_") and each not in inner]
        near = difflib.get_close_matches(name, there, n=3)
        hint = self._advice(name) or (f"did you mean {' or '.join(near)}?" if near else "")
        return MissingError(where=user_line(name), wanted=f"what {self._is} has: {', '.join(there)}", found=repr(name), hint=hint)

    def _advice(self, name: str) -> str:
        return self._instead.get(name, "")
