"""What a user is told who asks one of our objects for something that it does not have.

It is an ``AttributeError`` still, so ``hasattr``, ``copy``, ``pickle`` and notebooks find what they expect; names with an underscore in
front, which only such tools ask for, get a plain one.
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
    **dict.fromkeys(("apply", "applyInPandas", "applyInArrow", "applyInPandasWithState"), "use process with a hr.Processor"),
    **dict.fromkeys(("transformWithState", "transformWithStateInPandas"), "use process with a hr.KeyProcessor"),
    "pivot": "Spark has no pivot of streams; give one aggregate per value, with F.when",
}
WRITER = {"foreach": "use foreachBatch", "table": "use toTable", "save": "use start", "mode": "use outputMode"}
"""For names that Spark has and ours have not: what to do instead."""


class Helpful:
    """Base of the objects that users hold."""

    _is: ClassVar[str]
    """What it is, in a user's words."""
    _instead: ClassVar[dict[str, str]] = {}

    if not TYPE_CHECKING:  # For a type checker, what is missing is missing.

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
