"""Nexmark's persons, auctions and bids, as plain column expressions of row numbers.

Of 50 events one is a person, three are auctions and 46 are bids, as in Nexmark's own generator, whose distributions these are: half of the
bids go to a hot auction, three quarters come from a hot bidder, prices are 10 to the power of an even draw. Random draws are hashes of the
row number, so a stream, a second reading of it and the check have the same rows.

    row number -> which event, its ids -> fields                       event time: the number's place in time, minus up to JITTER_MS

Event time is out of order, by less than the watermark's delay, so that no row is late and the batch answer is the only right one.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks.rows import START_S, drawn

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EVENTS = PERSONS + AUCTIONS + BIDS

JITTER_MS = 3000
DELAY = "4 seconds"
"""The watermark's delay, Nexmark's own."""
AUCTION_MS_MAX = 20_000
"""No auction is open for longer. Queries say so, where state would be kept for ever otherwise."""

FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1000, 1000, 10
CATEGORIES = 5
HOT_STEP = 100
"""Every hundredth auction, seller and bidder is a hot one for a while."""
ACTIVE_PERSONS, LEAD = 1000, 10
CHANNELS = 10_000

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]

ONE_IN_FLIGHT_EVENTS = EVENTS / AUCTIONS


def horizon_ms(params: dict[str, Any]) -> int:
    """How far ahead, in event time, the auction is made that is ``in_flight`` auctions away. An auction is open for up to twice as long."""
    return max(1, int(params["in_flight"] * ONE_IN_FLIGHT_EVENTS * params["step_s"] * 1000 / params["rows"]))


def persons(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """New persons. ``rows`` has row numbers in ``value``."""
    n = F.col("value")
    id = _last_person(n)
    return _of_kind(rows, 0, PERSONS).select(
        (id + FIRST_PERSON).alias("id"),
        F.concat_ws(" ", _one_of(FIRST_NAMES, n, 11), _one_of(LAST_NAMES, n, 12)).alias("name"),
        F.concat(F.hex(drawn(2**40, n, 13)), F.lit("@"), F.hex(drawn(2**20, n, 14)), F.lit(".com")).alias("emailAddress"),
        F.concat_ws(" ", *[F.lpad(drawn(10_000, n, 15 + i).cast("string"), 4, "0") for i in range(4)]).alias("creditCard"),
        _one_of(CITIES, n, 19).alias("city"),
        _one_of(STATES, n, 20).alias("state"),
        _time(n, params).alias("dateTime"),
        _filler(n, 21).alias("extra"),
    )


def auctions(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """New auctions, each by a recent person."""
    n = F.col("value")
    time_ms = _time_ms(n, params)
    open_ms = F.least(F.lit(AUCTION_MS_MAX), 1 + drawn(2 * horizon_ms(params), n, 31))
    bid = _price(n, 32)
    seller = F.when(drawn(4, n, 33) > 0, _hot(_last_person(n))).otherwise(_recent_person(n, 34))
    return _of_kind(rows, PERSONS, PERSONS + AUCTIONS).select(
        (_last_auction(n) + FIRST_AUCTION).alias("id"),
        F.concat(F.lit("item "), F.hex(drawn(2**32, n, 35))).alias("itemName"),
        F.concat(F.lit("described as "), F.hex(F.xxhash64(n, F.lit(36)))).alias("description"),
        bid.alias("initialBid"),
        (bid + _price(n, 37)).alias("reserve"),
        F.timestamp_millis(time_ms).alias("dateTime"),
        F.timestamp_millis(time_ms + open_ms).alias("expires"),
        (seller + FIRST_PERSON).alias("seller"),
        (FIRST_CATEGORY + drawn(CATEGORIES, n, 38)).alias("category"),
        _filler(n, 39).alias("extra"),
    )


def bids(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Bids on recent auctions, by recent persons."""
    n = F.col("value")
    least = F.greatest(F.lit(0), _last_auction(n) - params["in_flight"])
    open_now = least + F.pmod(F.xxhash64(n, F.lit(51)), _last_auction(n) - least + 1 + LEAD)
    auction = F.when(drawn(2, n, 52) > 0, _hot(_last_auction(n))).otherwise(open_now)
    bidder = F.when(drawn(4, n, 53) > 0, _hot(_last_person(n)) + 1).otherwise(_recent_person(n, 54))
    is_hot, number = drawn(2, n, 55) > 0, drawn(CHANNELS, n, 56)
    page = F.concat_ws("/", F.lit("https://www.nexmark.com"), *[_letters(n, salt) for salt in (57, 58, 59)], F.lit("item.htm?query=1"))
    channel_id = F.concat(F.lit("&channel_id="), F.xxhash64(number).cast("string"))
    has_id = ~is_hot & (drawn(10, n, 60) > 0)
    return _of_kind(rows, PERSONS + AUCTIONS, EVENTS).select(
        (auction + FIRST_AUCTION).alias("auction"),
        (bidder + FIRST_PERSON).alias("bidder"),
        _price(n, 61).alias("price"),
        F.when(is_hot, _one_of(HOT_CHANNELS, n, 62)).otherwise(F.concat(F.lit("channel-"), number.cast("string"))).alias("channel"),
        F.concat(page, F.when(has_id, channel_id).otherwise("")).alias("url"),
        _time(n, params).alias("dateTime"),
        _filler(n, 63).alias("extra"),
    )


def side_input(rows: DataFrame) -> DataFrame:
    """The table that q13 looks bids up in: keys from 0 to CHANNELS - 1 in ``value``."""
    return rows.select(F.col("value").alias("key"), F.concat(F.lit("side "), F.col("value").cast("string")).alias("value"))


def _of_kind(rows: DataFrame, begin: int, end: int) -> DataFrame:
    place = F.pmod(F.col("value"), F.lit(EVENTS))
    return rows.filter((place >= begin) & (place < end))


def _last_person(n: Column) -> Column:
    """The newest person at this event, counted from 0."""
    return F.floor(n / EVENTS)


def _last_auction(n: Column) -> Column:
    """The newest auction at this event, counted from 0. Before the first auction of a round it is the last one of the round before."""
    place = F.pmod(n, F.lit(EVENTS))
    within = F.when(place < PERSONS, -1).otherwise(F.least(place - PERSONS, F.lit(AUCTIONS - 1)))
    return F.greatest(F.lit(0), F.floor(n / EVENTS) * AUCTIONS + within)


def _recent_person(n: Column, salt: int) -> Column:
    active = F.least(_last_person(n) + 1, F.lit(ACTIVE_PERSONS))
    return _last_person(n) + 1 - active + F.pmod(F.xxhash64(n, F.lit(salt)), active + LEAD)


def _hot(last: Column) -> Column:
    return F.floor(last / HOT_STEP) * HOT_STEP


def _price(n: Column, salt: int) -> Column:
    """In cents: 10 to the power of an even draw from 0 to 6, times 100."""
    return F.round(F.pow(F.lit(10.0), drawn(1_000_000, n, salt) * 6 / 1_000_000) * 100).cast("long")


def _one_of(words: list[str], n: Column, salt: int) -> Column:
    return F.element_at(F.array(*map(F.lit, words)), (drawn(len(words), n, salt) + 1).cast("int"))


def _letters(n: Column, salt: int) -> Column:
    return F.translate(F.lpad(drawn(100_000, n, salt).cast("string"), 5, "0"), "0123456789", "abcdefghij")


def _filler(n: Column, salt: int) -> Column:
    return F.concat(F.hex(F.xxhash64(n, F.lit(salt))), F.hex(F.xxhash64(n, F.lit(salt + 1000))))


def _time_ms(n: Column, params: dict[str, Any]) -> Column:
    """Event time goes on by ``step_s`` seconds with every ``rows`` events. Each row is up to JITTER_MS earlier than its place."""
    return F.lit(START_S * 1000) + F.floor(n * (params["step_s"] * 1000) / params["rows"]) - drawn(JITTER_MS, n, 1)


def _time(n: Column, params: dict[str, Any]) -> Column:
    return F.timestamp_millis(_time_ms(n, params))
