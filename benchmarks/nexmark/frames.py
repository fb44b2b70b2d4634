"""Nexmark's queries as DataFrames. They mean the same as those of ``sql.py``, and are written as one writes DataFrames."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from benchmarks.nexmark.last_ten import OUTPUT, LastTen
from benchmarks.nexmark.tables import Tables

Frame = Callable[[Tables], DataFrame]

DAY = "yyyy-MM-dd"


def q0(t: Tables) -> DataFrame:
    return t.bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(t: Tables) -> DataFrame:
    return t.bid.select("auction", "bidder", (F.expr("0.908") * t.bid.price).alias("price"), "dateTime", "extra")


def q2(t: Tables) -> DataFrame:
    return t.bid.where(F.col("auction") % 123 == 0).select("auction", "price")


def q3(t: Tables) -> DataFrame:
    sold = t.auction.where(F.col("category") == 10)
    people = t.person.where(F.col("state").isin("OR", "ID", "CA")).withColumnRenamed("id", "person")
    return sold.join(people, sold.seller == people.person).select("name", "city", "state", "id")


def _won(t: Tables) -> DataFrame:
    """Bids on open auctions. The last condition always holds; it lets Spark forget auctions and bids."""
    a, b = t.auction.alias("a"), t.bid.alias("b")
    opened, made = F.col("a.dateTime"), F.col("b.dateTime")
    is_open = made.between(opened, F.col("a.expires")) & (made <= opened + F.expr("INTERVAL 20 SECONDS"))
    return a.join(b, (F.col("b.auction") == F.col("a.id")) & is_open)


def q4(t: Tables) -> DataFrame:
    final = _won(t).groupBy("a.id", "a.category", "a.dateTime").agg(F.max("b.price").alias("final"))
    return final.groupBy(F.window("dateTime", "10 seconds"), "category").agg(F.avg("final").alias("price"))


def q5(t: Tables) -> DataFrame:
    counts = t.bid.groupBy("auction", F.window("dateTime", "10 seconds", "2 seconds")).agg(F.count("*").alias("num"))
    most = counts.groupBy("window").agg(F.max("num").alias("most"))
    return counts.join(most, "window").where("num >= most").select("auction", "num", "window")


def q6(t: Tables) -> DataFrame:
    final = _won(t).groupBy("a.id", "a.seller", "a.dateTime").agg(F.max("b.price").alias("final"))
    return final.groupBy("seller").transformWithState(LastTen(), OUTPUT, "Append", "None")


def q7(t: Tables) -> DataFrame:
    by_window = t.bid.groupBy(F.window("dateTime", "10 seconds")).agg(F.max("price").alias("top"))
    m = by_window.select("top", F.window_time("window").alias("closed"))
    within = t.bid.dateTime.between(m.closed - F.expr("INTERVAL 10 SECONDS"), m.closed)
    return t.bid.join(m, (t.bid.price == m.top) & within).select("auction", "price", "bidder", "dateTime", "extra")


def q8(t: Tables) -> DataFrame:
    tumbling = F.window("dateTime", "10 seconds")
    people = t.person.groupBy("id", "name", tumbling).agg(F.count("*").alias("times"))
    sellers = t.auction.groupBy(F.col("seller").alias("id"), tumbling).agg(F.count("*").alias("auctions"))
    return people.join(sellers, ["id", "window"]).select("id", "name", F.col("window.start").alias("starttime"))


AUCTION = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category", "extra")


def q9(t: Tables) -> DataFrame:
    bid = F.struct("b.auction", "b.bidder", "b.price", F.col("b.dateTime").alias("bid_dateTime"), F.col("b.extra").alias("bid_extra"))
    order = F.struct("b.price", -F.unix_micros("b.dateTime"), "b.extra")
    return _won(t).groupBy(*[f"a.{name}" for name in AUCTION]).agg(F.max_by(bid, order).alias("won")).select(*AUCTION, "won.*")


def q10(t: Tables) -> DataFrame:
    day, hour = F.date_format("dateTime", DAY).alias("dt"), F.date_format("dateTime", "HH").alias("hm")
    return t.bid.select("auction", "bidder", "price", "dateTime", "extra", day, hour)


def q11(t: Tables) -> DataFrame:
    sessions = t.bid.groupBy("bidder", F.session_window("dateTime", "10 seconds"))
    return sessions.agg(F.count("*").alias("bid_count")).select("bidder", "bid_count", "session_window")


def q12(t: Tables) -> DataFrame:
    windows = t.bid_now.groupBy("bidder", F.window("p_time", "10 seconds"))
    return windows.agg(F.count("*").alias("bid_count")).select("bidder", "bid_count", "window")


def q13(t: Tables) -> DataFrame:
    found = t.bid.join(t.side_input, t.bid.auction % 10000 == t.side_input.key)
    return found.select("auction", "bidder", t.bid.price, "dateTime", t.side_input.value)


def q14(t: Tables) -> DataFrame:
    hour, price = F.hour("dateTime"), F.expr("0.908 * price")
    kind = F.when((hour >= 8) & (hour <= 18), "dayTime").when((hour <= 6) | (hour >= 20), "nightTime").otherwise("otherTime")
    cs = F.length("extra") - F.length(F.replace("extra", F.lit("C"), F.lit("")))
    shown = ("auction", "bidder", price.alias("price"), kind.alias("bidTimeType"), "dateTime", "extra", cs.alias("c_counts"))
    return t.bid.where((price > 1000000) & (price < 50000000)).select(*shown)


def _ranks() -> dict[str, Column]:
    price = F.col("price")
    return {"rank1": price < 10000, "rank2": (price >= 10000) & (price < 1000000), "rank3": price >= 1000000}


def _counts() -> list[Column]:
    by_rank = [F.count(F.when(condition, 1)).alias(f"{rank}_bids") for rank, condition in _ranks().items()]
    return [F.count("*").alias("total_bids"), *by_rank]


def _distinct() -> list[Column]:
    """Distinct bidders and auctions. Spark's streaming has no count_distinct, but sets."""
    found = []
    for name in ("bidder", "auction"):
        of = {"total": F.col(name), **{rank: F.when(condition, F.col(name)) for rank, condition in _ranks().items()}}
        found += [F.size(F.collect_set(value)).cast("long").alias(f"{rank}_{name}s") for rank, value in of.items()]
    return found


def q15(t: Tables) -> DataFrame:
    return t.bid.groupBy(F.date_format("dateTime", DAY).alias("day")).agg(*_counts(), *_distinct())


def q16(t: Tables) -> DataFrame:
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    return t.bid.groupBy("channel", F.date_format("dateTime", DAY).alias("day")).agg(minute, *_counts(), *_distinct())


def q17(t: Tables) -> DataFrame:
    prices = [getattr(F, name)("price").alias(f"{name}_price") for name in ("min", "max", "avg", "sum")]
    return t.bid.groupBy("auction", F.date_format("dateTime", DAY).alias("day")).agg(*_counts(), *prices)


def q18(t: Tables) -> DataFrame:
    last = F.max_by(F.struct("price", "channel", "url", "dateTime", "extra"), F.struct("dateTime", "price", "extra"))
    return t.bid.groupBy("auction", "bidder").agg(last.alias("last")).select("auction", "bidder", "last.*")


def q19(t: Tables) -> DataFrame:
    bid = F.struct("bidder", "price", "channel", "url", "dateTime", "extra")
    best = t.bid.groupBy("auction").agg(F.max_by(bid, F.struct("price", "dateTime", "extra"), 10).alias("best"))
    ranked = best.select("auction", F.posexplode("best").alias("rank", "top"))
    return ranked.select("auction", (F.col("rank") + 1).alias("rank_number"), "top.*")


def q20(t: Tables) -> DataFrame:
    times = {"dateTime": "bid_dateTime", "extra": "bid_extra"}
    others = {"dateTime": "auction_dateTime", "extra": "auction_extra"}
    sold = t.auction.where(F.col("category") == 10).withColumnsRenamed(others)
    found = t.bid.withColumnsRenamed(times).join(sold, F.col("auction") == sold.id)
    bid = ("auction", "bidder", "price", "channel", "url", "bid_dateTime", "bid_extra")
    of = ("itemName", "description", "initialBid", "reserve", "auction_dateTime", "expires", "seller", "category", "auction_extra")
    return found.select(*bid, *of)


def q21(t: Tables) -> DataFrame:
    channel, given = F.lower("channel"), F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2)
    id = given
    for number, name in enumerate(("apple", "google", "facebook", "baidu")):
        id = F.when(channel == name, str(number)).otherwise(id)
    known = channel.isin("apple", "google", "facebook", "baidu")
    return t.bid.where((given != "") | known).select("auction", "bidder", "price", "channel", id.alias("channel_id"))


def q22(t: Tables) -> DataFrame:
    parts = F.split("url", "/")
    return t.bid.select("auction", "bidder", "price", "channel", *[parts[3 + at].alias(f"dir{at + 1}") for at in range(3)])


FRAMES: dict[str, Frame] = {
    each.__name__: each
    for each in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22)
}
