"""Call records, made from the numbers of rows and a seed: the same rows for every engine, and for the check.

    row 4711 -> caller, callee, when it began -> where the caller is -> how long it lasted -> what it cost

The schema is StreamCloud's (Table II) and a price. The paper's own records were an operator's and are not described further, so what is
made up here is said: callers are drawn evenly from `numbers`; each lives in a district, more in the first ones than in the last, and
makes one call in twenty elsewhere; a call is made within ten kilometres or so of a corner of its district; customers differ in how long
they talk (one in fourteen for more than ten minutes on average), and one customer's calls are spread exponentially. Durations are whole
seconds, so that their averages are exact in any order and can be compared bit by bit. Records come in the order in which calls begin
(`ts` is `start`), as a log of finished calls is replayed.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.rows import drawn, event_ms

CALLERS, CALLEES, HOMES, AWAY, ELSEWHERE, LATS, LONS, NORTH, EAST, TALKS, LASTS, RATES = range(1, 13)
"""What is drawn; each has hashes of its own."""
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
    # Nobody calls himself.
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
    """That of the caller's home, or another one. The square of an even draw: half of the people live in the first quarter."""
    seed, districts = params["seed"], params["districts"]
    away = drawn(AWAY_ONE_IN, value, AWAY, seed) == 0
    even = F.when(away, _part(value, ELSEWHERE, seed)).otherwise(_part(caller, HOMES, seed))
    return F.floor(even * even * districts).cast("int")


def _lasts_s(value: Any, caller: Any, seed: int) -> Any:
    """Exponential, with a mean of the caller's own: 40 s to 800 s, mostly short."""
    mean_s = MEAN_S_MIN + MEAN_S_SPREAD * F.pow(_part(caller, TALKS, seed), F.lit(4))
    return F.least(F.ceil(-F.log((drawn(_FINE, value, LASTS, seed) + 1) / (_FINE + 1)) * mean_s), F.lit(LASTS_S_MAX)).cast("long")


def _price_cents(callee: Any, lasts: Any, seed: int) -> Any:
    """By the second, at the rate of the callee's network: 5 to 34 cents a minute."""
    return (CONNECTION_CENTS + F.ceil(lasts * (5 + drawn(30, callee, RATES, seed)) / 60)).cast("int")


def _part(of: Any, salt: int, seed: int) -> Any:
    """Even between 0 and 1."""
    return drawn(_FINE, of, salt, seed) / _FINE
