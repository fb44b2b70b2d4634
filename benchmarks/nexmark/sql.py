"""Nexmark's queries in Spark SQL, over the streaming views ``person``, ``auction``, ``bid``, ``bid_now`` and the table ``side_input``.

They are as close to Nexmark's own texts as Spark's streaming allows. ``REFERENCE`` has Nexmark's own meaning for those that had to be said
in another way; Spark's batch engine runs it for the check.
"""

from __future__ import annotations

_RANKS = """count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""


def _distinct(count: str) -> str:
    """Distinct bidders and auctions, in all and by rank. ``count`` is the call that counts; a FILTER follows ``collect_set`` directly."""
    ranks = {"total": "", "rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
    found = []
    for column in ("bidder", "auction"):
        for name, condition in ranks.items():
            where = f" FILTER (WHERE {condition})" if condition else ""
            found.append(f"{count.format(column=column, where=where)} AS {name}_{column}s")
    return ",\n    ".join(found)


_BY_SETS = _distinct("CAST(size(collect_set({column}){where}) AS BIGINT)")
_BY_DISTINCT = _distinct("count(DISTINCT {column}){where}")

_WON = """auction a JOIN bid b
    ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires AND b.dateTime <= a.dateTime + INTERVAL 20 SECONDS"""
"""Bids on open auctions. The last condition always holds. It lets Spark forget auctions and bids: it derives no bound from ``expires``."""

_HOT = "'apple', 'google', 'facebook', 'baidu'"
_CHANNEL = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"

SQL = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT window, category, avg(final) AS price
FROM (
  SELECT a.id, a.category, a.dateTime, max(b.price) AS final
  FROM {_WON}
  GROUP BY a.id, a.category, a.dateTime)
GROUP BY window(dateTime, '10 seconds'), category""",
    "q5": """WITH counts AS (
  SELECT auction, count(*) AS num, window FROM bid GROUP BY auction, window(dateTime, '10 seconds', '2 seconds'))
SELECT c.auction, c.num, c.window
FROM counts c JOIN (SELECT max(num) AS most, window FROM counts GROUP BY window) m
  ON c.window = m.window AND c.num >= m.most""",
    "q7": """SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid b JOIN (
  SELECT price, window_time(window) AS dateTime
  FROM (SELECT max(price) AS price, window FROM bid GROUP BY window(dateTime, '10 seconds'))) m
  ON b.price = m.price AND b.dateTime BETWEEN m.dateTime - INTERVAL 10 SECONDS AND m.dateTime""",
    "q8": """SELECT p.id, p.name, p.window.start AS starttime
FROM (SELECT id, name, window FROM person GROUP BY id, name, window(dateTime, '10 seconds')) p
JOIN (SELECT seller, window FROM auction GROUP BY seller, window(dateTime, '10 seconds')) a
  ON p.id = a.seller AND p.window = a.window""",
    "q9": f"""SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
    won.auction, won.bidder, won.price, won.dateTime AS bid_dateTime, won.extra AS bid_extra
FROM (
  SELECT a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime, a.expires, a.seller, a.category, a.extra,
    max_by(struct(b.auction, b.bidder, b.price, b.dateTime, b.extra), struct(b.price, -unix_micros(b.dateTime), b.extra)) AS won
  FROM {_WON}
  GROUP BY a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime, a.expires, a.seller, a.category, a.extra)""",
    "q10": """SELECT auction, bidder, price, dateTime, extra,
    date_format(dateTime, 'yyyy-MM-dd') AS dt, date_format(dateTime, 'HH') AS hm
FROM bid""",
    "q11": "SELECT bidder, count(*) AS bid_count, session_window FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')",
    "q12": "SELECT bidder, count(*) AS bid_count, window FROM bid_now GROUP BY bidder, window(p_time, '10 seconds')",
    "q13": """SELECT b.auction, b.bidder, b.price, b.dateTime, s.value
FROM bid b JOIN side_input s ON b.auction % 10000 = s.key""",
    "q14": """SELECT auction, bidder, 0.908 * price AS price,
    CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
         WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
    dateTime, extra, length(extra) - length(replace(extra, 'C', '')) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"""SELECT date_format(dateTime, 'yyyy-MM-dd') AS day, {_RANKS},
    {_BY_SETS}
FROM bid GROUP BY date_format(dateTime, 'yyyy-MM-dd')""",
    "q16": f"""SELECT channel, date_format(dateTime, 'yyyy-MM-dd') AS day, max(date_format(dateTime, 'HH:mm')) AS minute, {_RANKS},
    {_BY_SETS}
FROM bid GROUP BY channel, date_format(dateTime, 'yyyy-MM-dd')""",
    "q17": f"""SELECT auction, date_format(dateTime, 'yyyy-MM-dd') AS day, {_RANKS},
    min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid GROUP BY auction, date_format(dateTime, 'yyyy-MM-dd')""",
    "q18": """SELECT auction, bidder, last.*
FROM (
  SELECT auction, bidder,
    max_by(struct(price, channel, url, dateTime, extra), struct(dateTime, price, extra)) AS last
  FROM bid GROUP BY auction, bidder)""",
    "q19": """SELECT auction, rank + 1 AS rank_number, top.*
FROM (
  SELECT auction, max_by(struct(bidder, price, channel, url, dateTime, extra), struct(price, dateTime, extra), 10) AS best
  FROM bid GROUP BY auction)
LATERAL VIEW posexplode(best) AS rank, top""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
    a.itemName, a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller, a.category,
    a.extra AS auction_extra
FROM bid b JOIN auction a ON b.auction = a.id
WHERE a.category = 10""",
    "q21": f"""SELECT auction, bidder, price, channel,
    CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
         WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
         ELSE {_CHANNEL} END AS channel_id
FROM bid WHERE {_CHANNEL} <> '' OR lower(channel) IN ({_HOT})""",
    "q22": """SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2, split(url, '/')[5] AS dir3
FROM bid""",
}

_WINNERS = """SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
    auction, bidder, price, bid_dateTime, bid_extra
FROM (
  SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime ASC, b.extra DESC) AS rownum
  FROM auction a JOIN bid b ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires)
WHERE rownum = 1"""

REFERENCE = {
    "q6": f"""SELECT seller, id, dateTime,
    avg(price) OVER (PARTITION BY seller ORDER BY dateTime, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS avg_price
FROM ({_WINNERS})""",
    "q9": _WINNERS,
    "q12": "SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder",
    "q15": SQL["q15"].replace(_BY_SETS, _BY_DISTINCT),
    "q16": SQL["q16"].replace(_BY_SETS, _BY_DISTINCT),
    "q18": """SELECT auction, bidder, price, channel, url, dateTime, extra
FROM (
  SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, price DESC, extra DESC) AS rownum FROM bid)
WHERE rownum = 1""",
    "q19": """SELECT auction, rank_number, bidder, price, channel, url, dateTime, extra
FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime DESC, extra DESC) AS rank_number FROM bid)
WHERE rank_number <= 10""",
}
"""Nexmark's own meaning. Other queries have the same text for streams and for tables."""
