"""Arithmetic as Java does it (wrapping, rounding towards zero, saturating), with a record of overflows and divisions by zero.

In the results of this module, `failed` marks where the operation itself failed, also where the value is null. The caller decides what a
failure means. `failed` is None only if the bounds of the operands exclude failures for all values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.operators.scratch import Scratch
from headrace.operators.vectors import Array, Bounds, Values

OVERFLOW, DIVISION, CAST = 1, 2, 4
FAILURES = {OVERFLOW: "an arithmetic overflow", DIVISION: "a division by zero", CAST: "a number that does not fit the type it is cast to"}

_PLAIN: dict[str, Any] = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "abs": np.abs, "negate": np.negative}


def _marks(where: Array, bit: int) -> Array:
    return where.astype(np.uint8) * np.uint8(bit)


def _range(values: Values) -> Bounds:
    """The bounds of the values, or those of their type if none are known."""
    if values.bounds is not None:
        return values.bounds
    info = np.iinfo(values.values.dtype)
    return int(info.min), int(info.max)


def _fits(bounds: Bounds, dtype: np.dtype[Any]) -> bool:
    info = np.iinfo(dtype)
    return int(info.min) <= bounds[0] and bounds[1] <= int(info.max)


def binary(op: str, left: Values, right: Values, scratch: Scratch, *, is_square: bool = False) -> Values:
    """A binary operation on numbers."""
    if op in ("add", "subtract", "multiply"):
        found = _plain(op, left, right, scratch)
        if is_square and found.bounds is not None:
            return Values(found.values, None, (type(found.bounds[0])(0), found.bounds[1]), found.failed, found.owned)
        return found
    if op == "floordiv":
        return Values(np.floor_divide(left.values, right.values))
    by_zero = None
    divisor = right.values
    if right.bounds is None or right.bounds[0] <= 0 <= right.bounds[1]:
        zero = divisor == 0
        by_zero = _marks(zero, DIVISION)
        divisor = np.where(zero, divisor.dtype.type(1), divisor)
    if op == "divide" and by_zero is None and left.values.dtype == np.float64:
        return _into(np.divide, scratch, left, right, bounds=_ratio_bounds(left.bounds, right.bounds))
    if op == "divide":
        return Values(np.true_divide(left.values, divisor), failed=by_zero)
    if op == "remainder":
        return Values(np.fmod(left.values, divisor), failed=by_zero)
    return _quotient(left, right, divisor, by_zero)


def _plain(op: str, left: Values, right: Values, scratch: Scratch) -> Values:
    dtype = left.values.dtype
    if dtype.kind == "f":
        bounds = None
        # Doubles: bounds are rounded like the values, and rounding keeps the order.
        if dtype == np.float64 and left.bounds is not None and right.bounds is not None:
            bounds = _result_bounds(op, left.bounds, right.bounds)
            bounds = bounds if math.isfinite(bounds[0]) and math.isfinite(bounds[1]) else None
        return _into(_PLAIN[op], scratch, left, right, bounds=bounds)
    bounds = _result_bounds(op, _range(left), _range(right))
    if _fits(bounds, dtype):
        return _into(_PLAIN[op], scratch, left, right, bounds=bounds)
    a, b = left.values, right.values
    values = _PLAIN[op](a, b)
    if op == "multiply":
        over = _product_overflows(a, b, values)
    elif op == "add":
        over = ((a ^ values) & (b ^ values)) < 0
    else:
        over = ((a ^ b) & (a ^ values)) < 0
    scratch.give_owned(left, right)
    return Values(values, failed=_marks(over, OVERFLOW), owned=True)


def _result_bounds(op: str, a: Bounds, b: Bounds) -> Bounds:
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "subtract":
        return a[0] - b[1], a[1] - b[0]
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _ratio_bounds(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    """The bounds of a quotient; None if they are not known. The divisor's bounds must exclude zero."""
    if a is None or b is None:
        return None
    corners = [x / y for x in a for y in b]
    return (min(corners), max(corners)) if all(map(math.isfinite, corners)) else None


def _product_overflows(a: Array, b: Array, product: Array) -> Any:
    if a.dtype != np.int64:
        return np.multiply(a, b, dtype=np.int64) != product
    least = np.iinfo(np.int64).min
    some = np.where(a == 0, 1, a)
    # If nothing overflowed, dividing the product gives b again. The least number is special: it is its own negative.
    wrong = (a != 0) & (np.floor_divide(product, np.where(some == -1, 1, some)) != b) & (a != -1)
    return wrong | ((a == -1) & (b == least))


def _into(ufunc: Any, scratch: Scratch, *operands: Values, bounds: Bounds | None = None) -> Values:
    out = scratch.result(operands[0].values.dtype, *operands)
    values = ufunc(*(each.values for each in operands), out=out)
    scratch.give_owned(*operands, but=values)
    return Values(values, bounds=bounds, owned=True)


def _quotient(left: Values, right: Values, divisor: Array, by_zero: Array | None) -> Values:
    """Java's division of longs."""
    a = left.values
    by_minus_one = divisor == -1
    some = np.where(by_minus_one, 1, divisor)
    values = np.floor_divide(a, some)
    values += (np.remainder(a, some) != 0) & ((a < 0) != (some < 0))
    values = np.where(by_minus_one, np.negative(a), values)
    low = _range(left)[0]
    failed = by_zero
    if low == np.iinfo(np.int64).min and _range(right)[0] <= -1 <= _range(right)[1]:
        over = _marks((a == low) & by_minus_one, OVERFLOW)
        failed = over if failed is None else failed | over
    return Values(values, failed=failed)


def unary(op: str, child: Values, scratch: Scratch) -> Values:
    """Absolute value and negation. The least integer has no positive counterpart."""
    values = child.values
    bounds = child.bounds
    if values.dtype.kind == "i":
        bounds = _range(child)
    least = values.dtype.kind == "i" and bounds is not None and bounds[0] == np.iinfo(values.dtype).min
    failed = _marks(values == bounds[0], OVERFLOW) if least and bounds is not None else None
    if least:
        bounds = None
    elif bounds is not None:
        low, high = bounds
        zero = type(low)(0)
        inside = zero if low <= 0 <= high else min(abs(low), abs(high))
        bounds = (inside, max(abs(low), abs(high))) if op == "abs" else (-high, -low)
    found = _into(_PLAIN[op], scratch, child, bounds=bounds)
    found.failed = failed
    return found


def cast(child: Values, to: np.dtype[Any], scratch: Scratch, *, checked: bool) -> Values:
    """A cast between numbers or booleans."""
    values = child.values
    if values.dtype == to:
        return Values(values, bounds=child.bounds, owned=child.owned)
    if to.kind == "b":
        return Values(values != 0)
    if to.kind == "f":
        return _cast_to_float(child, to, scratch)
    if values.dtype.kind == "f":
        return _float_to_integer(values, to, checked)
    if values.dtype == bool:
        return Values(values.astype(to), bounds=(0, 1))
    if _fits(_range(child), to):
        return Values(values.astype(to), bounds=_range(child))
    narrow = values.astype(to)
    return Values(narrow, failed=_marks(narrow != values, CAST))


def _cast_to_float(child: Values, to: np.dtype[Any], scratch: Scratch) -> Values:
    bounds = None
    if child.values.dtype == bool:
        bounds = (0.0, 1.0)
    elif child.bounds is not None:
        low, high = (to.type(each).item() for each in child.bounds)
        bounds = (low, high) if math.isfinite(low) and math.isfinite(high) else None
    out = scratch.take(child.values.shape, to)
    if out is None:
        return Values(child.values.astype(to), bounds=bounds)
    np.copyto(out, child.values, casting="unsafe")
    scratch.give_owned(child)
    return Values(out, bounds=bounds, owned=True)


def _float_to_integer(values: Array, to: np.dtype[Any], checked: bool) -> Values:
    """Cast as Java does: saturate at int or long, NaN gives 0, narrower types are cut from the int. If `checked`, overflow fails."""
    first = to if to.itemsize >= 4 else np.dtype(np.int32)
    whole = _saturated(values, first)
    if not checked:
        return Values(whole.astype(to))
    info = np.iinfo(to)
    wide = values.astype(np.float64)
    fits = (np.floor(wide) <= float(info.max)) & (np.ceil(wide) >= float(info.min))
    if first != to:
        # The fraction is dropped before the range is checked.
        fits = (whole >= info.min) & (whole <= info.max) & ~np.isnan(wide)
    return Values(whole.astype(to), failed=_marks(~fits, CAST))


def _saturated(values: Array, to: np.dtype[Any]) -> Array:
    info = np.iinfo(to)
    wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=math.inf, neginf=-math.inf)
    top, bottom = wide >= float(info.max), wide <= float(info.min)
    safe = np.where(top | bottom, 0.0, wide)
    return np.where(top, info.max, np.where(bottom, info.min, safe.astype(to))).astype(to)


_FUNCTIONS: dict[str, Any] = {
    "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "exp": np.exp, "ln": np.log, "log10": np.log10, "signum": np.sign,
    "rint": np.rint,
}  # fmt: skip
_FACTORS = {"radians": math.pi / 180.0, "degrees": 180.0 / math.pi}


def math1(function: str, child: Values, scratch: Scratch) -> Values:
    """A mathematical function of a double. The logarithm of a number that is not positive is null."""
    values = child.values
    if function in _FACTORS:
        factor = Values(np.array(_FACTORS[function]), bounds=(_FACTORS[function],) * 2)
        return _plain("multiply", child, factor, scratch)
    valid = None
    if function in ("ln", "log10") and (child.bounds is None or child.bounds[0] <= 0):
        valid = ~(values <= 0)
    bounds = _math1_bounds(function, child.bounds)
    found = _into(_FUNCTIONS[function], scratch, child, bounds=bounds)
    found.valid = valid
    return found


def whole(function: str, child: Values) -> Values:
    """Floor and ceiling as int64. They saturate beyond its range."""
    if child.values.dtype == np.int64:
        return Values(child.values, bounds=child.bounds, owned=child.owned)
    values = np.floor(child.values) if function == "floor" else np.ceil(child.values)
    limit = 2.0**63
    if child.bounds is not None and -limit < child.bounds[0] and child.bounds[1] < limit / 2:
        return Values(values.astype(np.int64), bounds=(math.floor(child.bounds[0]), math.ceil(child.bounds[1])))
    return Values(_saturated(values, np.dtype(np.int64)), failed=_marks((values >= limit) | (values < -limit), OVERFLOW))


def _math1_bounds(function: str, bounds: Bounds | None) -> Bounds | None:
    if bounds is None:
        return None
    if function in ("sin", "cos", "tanh", "signum"):
        return -1.0, 1.0
    if function == "atan":
        return -2.0, 2.0
    if function == "sqrt" and bounds[0] >= 0:
        return math.sqrt(bounds[0]), math.sqrt(bounds[1])
    return None


def math2(function: str, left: Values, right: Values, scratch: Scratch) -> Values:
    """A mathematical function of two doubles."""
    if function == "hypot":
        return _into(np.hypot, scratch, left, right)
    if function == "atan2":
        # Adding zero turns -0.0 into 0.0, as Spark does.
        return Values(np.arctan2(left.values + 0.0, right.values + 0.0))
    a, b = left.values, right.values
    if b.ndim == 0 and b == 2.0:
        square = _into(np.multiply, scratch, left, left) if not left.owned else _into(np.square, scratch, left)
        high = math.inf if left.bounds is None else max(each * each for each in left.bounds)
        return Values(square.values, bounds=(0.0, high) if math.isfinite(high) else None, owned=square.owned)
    values = np.power(a, b)
    # In Java, 1 to the power of infinity or NaN is NaN; in C it is 1.
    odd = (np.abs(a) == 1.0) & ~np.isfinite(b)
    return Values(np.where(odd, np.nan, values) if odd.any() else values)
