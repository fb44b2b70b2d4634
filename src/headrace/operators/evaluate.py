"""Evaluates expressions with numpy, for all rows or pairs at once, with Spark's results.

Arrays broadcast: in a grid the left columns have the shape (n, 1) and the right ones (1, m), or the reverse; in flat form all have the same
length.

Errors are data. Spark skips parts that it need not evaluate (`x <> 0 AND 1 / x > 2`), but numpy computes everything. So each value carries
the errors that its computation would have raised. AND, OR, CASE and coalesce drop the errors of parts that Spark skips. The errors that
remain are raised at the end.

Functions such as sin are numpy's. They agree with Java's up to the last bits of a double, and Java's differ as much between processors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError
from headrace.operators import arithmetic
from headrace.operators import expressions as E
from headrace.operators.arithmetic import FAILURES
from headrace.operators.expressions import Expr
from headrace.operators.scratch import Scratch
from headrace.operators.vectors import Array, Side, Values, align, literal_code


@dataclass(slots=True)
class Frame:
    """The columns of one evaluation, and its buffers."""

    columns: Mapping[tuple[str, str], Values]
    texts: pa.Array
    """The sorted dictionary of all texts. A text is represented by its rank in it."""
    scratch: Scratch = field(default_factory=Scratch)
    shared: frozenset[int] = frozenset()
    """Ids of nodes that occur more than once in the tree. They are computed once."""
    known: dict[int, Values] = field(default_factory=dict)
    """The values of shared nodes that are computed already."""

    def forget(self) -> None:
        """Give back the values of shared nodes, because the next evaluation has other columns."""
        self.scratch.give_owned(*self.known.values())
        self.known.clear()


def evaluate(expr: Expr, sides: Mapping[str, Side], *, where: str = "") -> Values:
    """The value of the expression for each row. The columns of both sides have one length. Raises the errors that Spark would raise."""
    named, texts = align(expr, sides)
    columns = {(side, name): Values(v.values, v.valid, v.bounds) for side, vectors in named.items() for name, v in vectors.items()}
    with np.errstate(all="ignore"):
        found = compute(expr, Frame(columns, texts))
    raise_failure(found.failed, where or str(expr))
    return found


def holds(expr: Expr, sides: Mapping[str, Side], *, where: str = "") -> Array:
    """True for each row where the condition is true, neither false nor null."""
    found = evaluate(expr, sides, where=where)
    rows = {len(v) for side in sides.values() for v in side.values()}
    return np.broadcast_to(true(found), (rows.pop(),) if rows else ())


def true(condition: Values) -> Any:
    """True where the values are true, neither false nor null."""
    return condition.values if condition.valid is None else condition.values & condition.valid


def raise_failure(failed: Array | None, where: str) -> None:
    """Raise the first of these errors, if there is any."""
    if failed is None or not failed.any():
        return
    bits = int(np.bitwise_or.reduce(np.ravel(failed)))
    found = next(text for bit, text in FAILURES.items() if bits & bit)
    hint = "use try_add, try_divide, try_cast and the like, or set spark.sql.ansi.enabled to false, to get null instead"
    raise QueryError(where=where, found=found, hint=hint)


def compute(expr: Expr, frame: Frame) -> Values:
    """The value of the expression, with its errors as data. The caller must silence numpy's floating-point warnings."""
    key = id(expr)
    if key not in frame.shared:
        return _COMPUTE[type(expr)](expr, frame)
    if key not in frame.known:
        frame.known[key] = _COMPUTE[type(expr)](expr, frame)
    found = frame.known[key]
    return Values(found.values, found.valid, found.bounds, found.failed)


def both_valid(left: Array | None, right: Array | None) -> Array | None:
    """The mask of rows in which both operands are valid; None: all rows."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _either(left: Array | None, right: Array | None) -> Array | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _where(condition: Array | None, failed: Array | None) -> Array | None:
    """The errors, restricted to where the condition holds. A condition of None holds everywhere."""
    return failed if failed is None or condition is None else failed * condition


def _failed(first: Values, second: Values) -> Array | None:
    """The errors of two operands. Spark does not evaluate the second one where the first is null."""
    return _either(first.failed, _where(first.valid, second.failed))


def _column(expr: E.Column, frame: Frame) -> Values:
    return frame.columns[expr.side, expr.name]


def _literal(expr: E.Literal, frame: Frame) -> Values:
    kind = np.dtype(np.int32 if expr.type == "text" else expr.type)
    if expr.value is None:
        return Values(np.zeros((), kind), np.zeros((), bool))
    value: Any = literal_code(expr.value, frame.texts) if isinstance(expr.value, bytes) else expr.value
    array = np.array(value, kind)
    known = kind.kind in "if" and bool(np.isfinite(array))
    return Values(array, bounds=(array.item(), array.item()) if known else None)


_PLAIN: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _compare(expr: E.Compare, frame: Frame) -> Values:
    left, right = compute(expr.left, frame), compute(expr.right, frame)
    values = _compared(expr.op, left, right, frame.scratch)
    frame.scratch.give_owned(left, right, but=values)
    return Values(values, both_valid(left.valid, right.valid), failed=_failed(left, right), owned=True)


def _compared(op: str, left: Values, right: Values, scratch: Scratch) -> Any:
    """Compare values with Spark's rule that NaN is the greatest value. In numpy every comparison with NaN is false, except `<>`."""
    a, b = left.values, right.values
    left_nan, right_nan = (x.values.dtype.kind == "f" and x.bounds is None for x in (left, right))
    if left_nan and right_nan:
        return _compared_with_nan(op, a, b)
    out = scratch.result(np.dtype(bool), left, right)
    if (left_nan and op in ("gt", "ge")) or (right_nan and op in ("lt", "le")):
        return np.logical_not(_PLAIN[_OPPOSITE[op]](a, b, out=out), out=out)
    return _PLAIN[op](a, b, out=out)


def _compared_with_nan(op: str, a: Array, b: Array) -> Any:
    a_nan, b_nan = np.isnan(a), np.isnan(b)
    if op in ("eq", "ne"):
        equal = (a == b) | (a_nan & b_nan)
        return equal if op == "eq" else ~equal
    if op in ("lt", "ge"):
        less = (a < b) | (b_nan & ~a_nan)
        return less if op == "lt" else ~less
    greater = (a > b) | (a_nan & ~b_nan)
    return greater if op == "gt" else ~greater


def _same(expr: E.Same, frame: Frame) -> Values:
    left, right = compute(expr.left, frame), compute(expr.right, frame)
    equal = _compared("eq", left, right, frame.scratch)
    frame.scratch.give_owned(left, right, but=equal)
    failed = _either(left.failed, right.failed)
    if left.valid is None and right.valid is None:
        return Values(equal, failed=failed, owned=True)
    a, b = (np.True_ if x.valid is None else x.valid for x in (left, right))
    return Values((equal & a & b) | (~a & ~b), failed=failed)


def _and(expr: E.And, frame: Frame) -> Values:
    result = compute(expr.items[0], frame)
    for item in expr.items[1:]:
        other = compute(item, frame)
        skipped = None if other.failed is None else _false(result)
        failed = _either(result.failed, None if skipped is None else _where(~skipped, other.failed))
        if result.valid is None and other.valid is None:
            result = _combined(np.logical_and, result, other, failed, frame.scratch)
            continue
        valid = _false(result) | _false(other) | both_valid(result.valid, other.valid)
        result = Values(true(result) & true(other), valid, failed=failed)
    return result


def _or(expr: E.Or, frame: Frame) -> Values:
    result = compute(expr.items[0], frame)
    for item in expr.items[1:]:
        other = compute(item, frame)
        failed = _either(result.failed, None if other.failed is None else _where(~true(result), other.failed))
        if result.valid is None and other.valid is None:
            result = _combined(np.logical_or, result, other, failed, frame.scratch)
            continue
        values = true(result) | true(other)
        result = Values(values, values | both_valid(result.valid, other.valid), failed=failed)
    return result


def _combined(combine: Any, left: Values, right: Values, failed: Array | None, scratch: Scratch) -> Values:
    out = scratch.result(np.dtype(bool), left, right)
    values = combine(left.values, right.values, out=out)
    scratch.give_owned(left, right, but=values)
    return Values(values, failed=failed, owned=True)


def _false(condition: Values) -> Any:
    return ~condition.values if condition.valid is None else ~condition.values & condition.valid


def _not(expr: E.Not, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    values = np.logical_not(child.values, out=frame.scratch.result(np.dtype(bool), child))
    frame.scratch.give_owned(child, but=values)
    return Values(values, child.valid, failed=child.failed, owned=True)


def _is_null(expr: E.IsNull, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    frame.scratch.give_owned(child)
    values = np.zeros(child.values.shape, dtype=bool) if child.valid is None else ~child.valid
    return Values(values, failed=child.failed)


def _is_nan(expr: E.IsNaN, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    frame.scratch.give_owned(child)
    values = np.isnan(child.values)
    return Values(values if child.valid is None else values & child.valid, failed=child.failed)


def _arithmetic(expr: E.Arithmetic, frame: Frame) -> Values:
    left, right = compute(expr.left, frame), compute(expr.right, frame)
    divides = expr.op in ("divide", "remainder", "quotient")
    # Spark evaluates the divisor first.
    failed = _failed(right, left) if divides else _failed(left, right)
    is_square = expr.op == "multiply" and expr.left == expr.right
    found = arithmetic.binary(expr.op, left, right, frame.scratch, is_square=is_square)
    return _settled(found, both_valid(left.valid, right.valid), failed, expr.mode, null_bits=arithmetic.DIVISION)


def _negate(expr: E.Negate | E.Abs, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    found = arithmetic.unary("abs" if isinstance(expr, E.Abs) else "negate", child, frame.scratch)
    return _settled(found, child.valid, child.failed, expr.mode)


def _cast(expr: E.Cast, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    found = arithmetic.cast(child, np.dtype(expr.type), frame.scratch, checked=expr.mode != "legacy")
    return _settled(found, child.valid, child.failed, expr.mode)


def _settled(found: Values, valid: Array | None, failed: Array | None, mode: str, *, null_bits: int = 0) -> Values:
    """Turn overflow and division by zero into errors or nulls, by the expression's mode. `found.failed` marks them, also in null rows."""
    own = found.failed
    if own is None:
        return Values(found.values, valid, found.bounds, failed, found.owned)
    if mode == "ansi":
        return Values(found.values, valid, found.bounds, _either(failed, _where(valid, own)), found.owned)
    becomes_null = own != 0 if mode == "try" else (own & null_bits) != 0
    if mode == "try" or null_bits:
        valid = both_valid(valid, ~becomes_null)
    return Values(found.values, valid, found.bounds, failed, found.owned)


def _math1(expr: E.Math1, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    found = arithmetic.math1(expr.function, child, frame.scratch)
    # Of these functions only the logarithm can give nulls.
    return Values(found.values, both_valid(child.valid, found.valid), found.bounds, child.failed, found.owned)


def _whole(expr: E.Whole, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    return _settled(arithmetic.whole(expr.function, child), child.valid, child.failed, expr.mode)


def _math2(expr: E.Math2, frame: Frame) -> Values:
    left, right = compute(expr.left, frame), compute(expr.right, frame)
    found = arithmetic.math2(expr.function, left, right, frame.scratch)
    return Values(found.values, both_valid(left.valid, right.valid), found.bounds, _failed(left, right), found.owned)


def _coalesce(expr: E.Coalesce, frame: Frame) -> Values:
    result = compute(expr.items[-1], frame)
    for item in reversed(expr.items[:-1]):
        value = compute(item, frame)
        if value.valid is None:
            result = value
            continue
        failed = _either(value.failed, _where(~value.valid, result.failed))
        values = np.where(value.valid, value.values, result.values)
        valid = None if result.valid is None else value.valid | result.valid
        result = Values(values, valid, _hull(value, result), failed)
    return result


def _case(expr: E.CaseWhen, frame: Frame) -> Values:
    result = compute(expr.otherwise, frame)
    for condition, value in zip(reversed(expr.conditions), reversed(expr.values), strict=True):
        when, then = compute(condition, frame), compute(value, frame)
        chosen = true(when)
        failed = _either(when.failed, _either(_where(chosen, then.failed), _where(~chosen, result.failed)))
        valid = None
        if then.valid is not None or result.valid is not None:
            valid = np.where(chosen, *(np.True_ if x.valid is None else x.valid for x in (then, result)))
        result = Values(np.where(chosen, then.values, result.values), valid, _hull(then, result), failed)
    return result


def _hull(left: Values, right: Values) -> Any:
    if left.bounds is None or right.bounds is None:
        return None
    return min(left.bounds[0], right.bounds[0]), max(left.bounds[1], right.bounds[1])


def _text_test(expr: E.TextTest, frame: Frame) -> Values:
    child = compute(expr.child, frame)
    tests = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}
    # Each distinct text is tested once.
    passed = tests[expr.test](frame.texts, expr.text).to_numpy(zero_copy_only=False)
    values = passed[child.values] if len(passed) else np.zeros(child.values.shape, dtype=bool)
    return Values(values, child.valid, failed=child.failed)


_COMPUTE: dict[type[Any], Callable[[Any, Frame], Values]] = {
    E.Column: _column,
    E.Literal: _literal,
    E.Compare: _compare,
    E.Same: _same,
    E.And: _and,
    E.Or: _or,
    E.Not: _not,
    E.IsNull: _is_null,
    E.IsNaN: _is_nan,
    E.Arithmetic: _arithmetic,
    E.Negate: _negate,
    E.Abs: _negate,
    E.Math1: _math1,
    E.Whole: _whole,
    E.Math2: _math2,
    E.Cast: _cast,
    E.Coalesce: _coalesce,
    E.CaseWhen: _case,
    E.TextTest: _text_test,
}
