"""``approx_count_distinct`` with exactly Spark's results: the same registers, bias tables and formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import LongType

from headrace.operators.sets import RANK_BITS
from headrace.spark.expressions import hyperloglog_tables

_NEIGHBOURS = 6
"""Spark interpolates the bias over this many neighbours of the raw estimate."""


def precision(relative_sd: float) -> int:
    """Bits of the register index for a relative standard deviation, by Spark's rule."""
    return math.ceil(2.0 * math.log(1.106 / relative_sd) / math.log(2.0))


def register(hashed: Column, bits: int) -> Column:
    """``index << 8 | rank`` of a 64-bit hash: the index is its top bits, the rank is one more than the number of zeros after them."""
    index = F.shiftrightunsigned(hashed, 64 - bits)
    padded = F.shiftleft(hashed, bits).bitwiseOR(F.lit(1 << (bits - 1)).cast("long"))
    leading_zeros = F.lit(64) - F.length(F.bin(padded))
    return (F.shiftleft(index, RANK_BITS) + leading_zeros + 1).cast("int")


def estimator(session: SparkSession, bits: int) -> Callable[[Column], Column]:
    """A function of columns that computes Spark's estimate from registers."""
    raw, bias, threshold = hyperloglog_tables(session, bits)
    m = 1 << bits
    alpha = {4: 0.673, 5: 0.697, 6: 0.709}.get(bits, 0.7213 / (1.0 + 1.079 / m)) * m * m

    def one(codes: Any) -> int:
        return estimate(np.asarray(codes if codes is not None else [], dtype=np.int64), m, alpha, raw, bias, threshold)

    def estimates(registers: pd.Series) -> pd.Series:
        return registers.map(one)

    # PySpark's overloads do not cover a plain function with a type object.
    annotate: Any = pandas_udf
    column_of = annotate(estimates, LongType())
    return lambda registers: column_of(F.coalesce(registers, F.array().cast("array<int>")))


def estimate(codes: Any, m: int, alpha: float, raw: list[float], bias: list[float], threshold: float) -> int:
    """Spark's HyperLogLog++ estimate. `codes` are the registers that are not zero."""
    ranks = codes & ((1 << RANK_BITS) - 1)
    zeros = m - len(codes)
    inverse = float(np.sum(2.0 ** -ranks.astype(np.float64))) + zeros
    first = alpha / inverse
    corrected = first - _bias(first, raw, bias) if raw and first < 5.0 * m else first
    if zeros > 0:
        linear = m * math.log(m / zeros)
        if (raw and linear <= threshold) or first <= 2.5 * m:
            corrected = linear
    # Java rounds half up.
    return math.floor(corrected + 0.5)


def _bias(first: float, raw: list[float], bias: list[float]) -> float:
    """The mean bias of the nearest estimates in the table, found as Spark finds them."""
    count = len(raw)
    nearest = int(np.searchsorted(raw, first))
    low = max(nearest - _NEIGHBOURS + 1, 0)
    high = min(low + _NEIGHBOURS, count)
    while high < count and (first - raw[high]) ** 2 < (first - raw[low]) ** 2:
        low, high = low + 1, high + 1
    return sum(bias[low:high]) / (high - low)
