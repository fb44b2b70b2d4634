"""Call records, made from row numbers and a seed: the same rows for every engine and for the check.

    row 4711 -> caller, callee, when it began -> where the caller is -> how long it lasted -> what it cost

The schema is StreamCloud's (Table II) with a price. The paper does not describe its records further, so these are our assumptions:

- Callers are drawn uniformly from `numbers`. More of them live in the first districts than in the last.
- One call in twenty is made from another district, and all within about ten kilometres of a corner of the district.
- The mean duration differs between customers (for one in fourteen it is above ten minutes); durations of a customer are exponential.
- Durations are whole seconds. So averages are exact in any order and can be compared bit by bit.
- Records are ordered by the beginning of calls (`ts` is `start`), like a replayed log of finished calls.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.rows import drawn, event_ms

CALLERS, CALLEES, HOMES, AWAY, ELSEWHERE, LATS, LONS, NORTH, EAST, TALKS, LASTS, RATES = range(1, 13)
"""The random draws; each has its own hash."""
AWAY_ONE_IN = 20
MEAN_S_MIN, MEAN_S_SPREAD, LASTS_S_MAX = 40, 760, 3_600
CONNECTION_CENTS = 15
_FINE = 1 << 20


def phone(customer: Any) -> Any:
    return F.concat(F.lit("+346"), F.lpad(customer.cast("string"), 8, "0"))


def calls(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """The records of these row numbers (`value`)."""
    value, seed, numbers = F.col("value"), params["seed"], params["numbers"]
    ms = event_ms(value, params)
    caller = drawn(numbers, value, CALLERS, seed)
    # Nobody calls their own number.
    callee = F.pmod(caller + 1 + drawn(max(1, numbers - 1), value, CALLEES, seed), F.lit(numbers))
    district = _district(value, caller, params)
    lasts = _lasts_s(value, caller, seed)
    return rows.select(
        phone(caller).alias("src"),
        phone(callee).alias("dst"),
        F.timestamp_millis(ms).alias("start"),
        F.timestamp_millis(ms + lasts * 1000).alias("end"),
        district.alias("district"),
        (36 + drawn(7_000, district, LATS, seed) / 1000 + drawn(100, value, NORTH, seed) / 1000).alias("lat"),
        (-9 + drawn(12_000, district, LONS, seed) / 1000 + drawn(100, value, EAST, seed) / 1000).alias("lon"),
        _price_cents(callee, lasts, seed).alias("price_cents"),
        F.timestamp_millis(ms).alias("ts"),
    )


def _district(value: Any, caller: Any, params: dict[str, Any]) -> Any:
    """The district: that of the caller's home, or another one. Homes are the square of a uniform draw: half are in the first quarter."""
    seed, districts = params["seed"], params["districts"]
    away = drawn(AWAY_ONE_IN, value, AWAY, seed) == 0
    even = F.when(away, _part(value, ELSEWHERE, seed)).otherwise(_part(caller, HOMES, seed))
    return F.floor(even * even * districts).cast("int")


def _lasts_s(value: Any, caller: Any, seed: int) -> Any:
    """The duration: exponential, with a mean of 40 s to 800 s that depends on the caller; most means are short."""
    mean_s = MEAN_S_MIN + MEAN_S_SPREAD * F.pow(_part(caller, TALKS, seed), F.lit(4))
    return F.least(F.ceil(-F.log((drawn(_FINE, value, LASTS, seed) + 1) / (_FINE + 1)) * mean_s), F.lit(LASTS_S_MAX)).cast("long")


def _price_cents(callee: Any, lasts: Any, seed: int) -> Any:
    """The price: per second, at the rate of the callee's network, 5 to 34 cents a minute."""
    return (CONNECTION_CENTS + F.ceil(lasts * (5 + drawn(30, callee, RATES, seed)) / 60)).cast("int")


def _part(of: Any, salt: int, seed: int) -> Any:
    """Uniform between 0 and 1."""
    return drawn(_FINE, of, salt, seed) / _FINE
