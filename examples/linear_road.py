"""Linear Road, a benchmark of stream processing, as one query: tolls that follow the traffic, minute by minute.

Vehicles report their position every 30 s. There are three stateful operators, each written for all its keys at once:

    reports --by vehicle--> Vehicles --by expressway and direction--> Segments --by vehicle--> Accounts
                            stops? enters a segment?                  toll, accident ahead?    balance

python examples/linear_road.py
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr

SEGMENTS = 100
DAYS = 69
EXIT = 4
STOPPED_REPORTS = 4
MINUTES = 5
AHEAD = 5
ROUNDING = 1e-9  # a mean that is a whole number must not come out below it
NAMES = ["Type", "Time", "VID", "Spd", "XWay", "Lane", "Dir", "Seg", "Pos", "QID", "Sinit", "Send", "DOW", "TOD", "Day"]
INPUT = ", ".join(f"{name} int" for name in NAMES)

Column = npt.NDArray[Any]


def columns(table: pa.Table, missing: int = -1) -> dict[str, Column]:
    """The columns of a table as arrays, with ``missing`` for null."""
    return {name: pc.fill_null(table[name], missing).to_numpy() for name in table.column_names}


def begins(sorted_values: Column) -> Column:
    """True where a value occurs for the first time."""
    return np.r_[True, sorted_values[1:] != sorted_values[:-1]][: len(sorted_values)]


def with_roads(*parts: dict[str, Any]) -> pa.Table:
    """Rows of several kinds, in the columns of ``Vehicles``."""

    def whole(name: str) -> Column:
        return np.concatenate([np.broadcast_to(part[name], len(part["place"])) for part in parts])

    place = whole("place")
    found = {"road": place // SEGMENTS, "Seg": place % SEGMENTS}
    found |= {name: whole(name) for name in ("Time", "VID", "Lane", "Pos", "stopped", "enters", "leaves", "cars")}
    return pa.table({name: values.astype(np.int32) for name, values in found.items()} | {"speed": whole("speed")})


def grid(column: pa.ChunkedArray) -> Column:
    """Lists as grids of minutes and segments; zeros if a road has no list yet."""
    values = column.combine_chunks()
    flat = values.flatten().to_numpy()
    whole = np.zeros((len(values), MINUTES + 1, SEGMENTS), dtype=flat.dtype)
    whole[values.is_valid().to_numpy(zero_copy_only=False)] = flat.reshape(-1, MINUTES + 1, SEGMENTS)
    return whole


def moved_on(grids: Column, minutes: Column) -> Column:
    """Shift the rows of a grid: the current minute becomes the previous one, and so on."""
    row = np.arange(MINUTES + 1) - minutes[:, None]
    return np.where((row >= 0)[:, :, None], np.take_along_axis(grids, np.maximum(row, 0)[:, :, None], axis=1), 0)


class Vehicles(hr.Processor):
    """Emits vehicles that enter or leave a segment, leave the road, or stand still.

    It also emits, by minute and segment, the changes of the number of cars and of the sum of their mean speeds.
    """

    # seen: the places of the vehicle in its current minute, three numbers each: the place, the sum of its speeds, the number of reports.
    state = "place int, Lane int, Pos int, standing int, minute int, seen array<int>"
    output = "road int, Time int, VID int, Seg int, Lane int, Pos int, stopped int, enters int, leaves int, cars int, speed double"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        now = columns(rows)
        now["minute"] = now["Time"] // 60 + 1
        first, last = begins(now["VID"]), begins(now["VID"][::-1])[::-1]
        kept_rows = state.get(pa.array(now["VID"][first]))
        kept = columns(kept_rows.drop_columns("seen"))
        before = {name: np.r_[-1, now[name]][:-1] for name in ("place", "Lane", "Pos")}
        for name in before:
            before[name][first] = kept[name]
        known, there, exits = before["Lane"] >= 0, now["place"] == before["place"], now["Lane"] == EXIT
        now["standing"] = self._counted(there & (now["Lane"] == before["Lane"]) & (now["Pos"] == before["Pos"]), first, kept["standing"])
        now["stopped"] = now["standing"] >= STOPPED_REPORTS
        now["enters"] = ~exits & (~known | (before["Lane"] == EXIT) | ~there)
        now["leaves"] = known & (before["Lane"] != EXIT) & ~there
        seen, added = self._added(now, first, last, kept["minute"], kept_rows["seen"].combine_chunks())
        ends = {name: now[name][last] for name in ("VID", "place", "Lane", "Pos", "standing", "minute")}
        state.put(pa.table(ends | {"seen": seen}))
        told = now["stopped"] | now["enters"] | now["leaves"] | exits
        names = ("place", "Time", "VID", "Lane", "Pos", "stopped", "enters", "leaves")
        return with_roads(*({name: now[name][told] for name in names} | {"cars": 0, "speed": 0.0}, added))

    def _counted(self, stays: Column, first: Column, kept: Column) -> Column:
        """The number of consecutive reports of a vehicle from one place."""
        at = np.arange(len(stays))
        begins = np.maximum.accumulate(np.where(first | ~stays, at, 0))
        earlier = np.zeros(len(stays), dtype=np.int64)
        earlier[first] = np.where(stays[first], kept, 0)
        return at - begins + 1 + earlier[begins]

    def _added(
        self, now: dict[str, Column], first: Column, last: Column, minutes: Column, seen: pa.ListArray
    ) -> tuple[pa.ListArray, dict[str, Any]]:
        """The places of each vehicle in its last minute, and what all vehicles add to the cars and speeds of each minute and place."""
        earlier = seen.flatten().to_numpy().reshape(-1, 3)
        owner = np.repeat(np.arange(len(seen)), pc.fill_null(pc.list_value_length(seen), 0).to_numpy() // 3)
        who = np.r_[owner, np.cumsum(first) - 1]
        minute, place = np.r_[minutes[owner], now["minute"]], np.r_[earlier[:, 0], now["place"]]
        places, since = int(place.max(initial=0)) + 1, int(now["minute"].min(initial=minute.max(initial=0)))
        visit = (who * (int(minute.max(initial=0)) + 1) + minute) * places + place
        order = np.argsort(visit, kind="stable")
        starts = np.flatnonzero(begins(visit[order]))
        speeds, counts = np.r_[earlier[:, 1], now["Spd"]], np.r_[earlier[:, 2], np.ones(len(first), dtype=np.int32)]
        speed, reports = np.add.reduceat(speeds[order], starts), np.add.reduceat(counts[order], starts)
        # The sort is stable, so what earlier batches know of a visit comes first.
        at = order[starts]
        old_speed, old_reports = (np.where(at < len(owner), each[at], 0) for each in (speeds, counts))
        who, minute, place = who[at], minute[at], place[at]
        mean_before = np.where(old_reports > 0, old_speed / np.maximum(old_reports, 1), 0)
        fresh = np.flatnonzero(reports > old_reports)
        cell = (minute[fresh] - since) * places + place[fresh]
        where = np.flatnonzero(np.bincount(cell))
        added = {
            "place": where % places,
            "Time": (where // places + since - 1) * 60,
            "cars": np.bincount(cell, weights=(old_reports == 0)[fresh])[where],
            "speed": np.bincount(cell, weights=(speed / reports - mean_before)[fresh])[where],
        }
        kept = np.flatnonzero(minute == now["minute"][last][who])
        values = np.stack([each[kept].astype(np.int32) for each in (place, speed, reports)], axis=1)
        offsets = np.r_[0, 3 * np.cumsum(np.bincount(who[kept], minlength=len(seen)))].astype(np.int32)
        nobody = {"VID": -1, "Lane": -1, "Pos": -1, "stopped": 0, "enters": 0, "leaves": 0}
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.ravel())), added | nobody


class Segments(hr.Processor):
    """Keeps cars, speeds and accidents of a road (an expressway in one direction) by segment, and computes tolls.

    The state of a road is three grids of minutes and segments: row 0 is the current minute, row 1 the one before, and so on.
    """

    state = hr.State(
        "minute int, cars array<int>, speed array<double>, accident array<int>", maps={"stops": ("Lane int, Pos int, VID int", "at int")}
    )
    output = "VID int, Time int, leaves int, enters int, Lane int, LAV int, Toll int, AccSeg int"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        now = columns(rows)
        roads, road = np.unique(now["road"], return_inverse=True)
        kept = state.get(pa.array(roads))
        at = columns(kept.select(["minute"]))["minute"].copy()
        grids = {name: grid(kept[name]) for name in ("cars", "speed", "accident")}
        minutes = now["Time"] // 60 + 1
        answer = {name: np.zeros(len(rows), dtype=np.int64) for name in ("LAV", "Toll", "AccSeg")}
        for minute in np.unique(minutes):
            mine = np.flatnonzero(minutes == minute)
            here, of = np.unique(road[mine], return_inverse=True)
            for each in grids.values():
                each[here] = moved_on(each[here], minute - at[here])
            at[here] = minute
            where = road[mine] * SEGMENTS + now["Seg"][mine]
            for name in ("cars", "speed"):
                added = np.bincount(where, weights=now[name][mine], minlength=len(roads) * SEGMENTS)
                grids[name][:, 0] += added.reshape(-1, SEGMENTS).astype(grids[name].dtype)
            for which in self._accidents(rows, mine[now["stopped"][mine] == 1], state):
                grids["accident"][road[which], 0, now["Seg"][which]] = 1
            tolls = self._tolls(roads[here], *(grids[name][here] for name in ("cars", "speed", "accident")))
            for name, values in zip(answer, tolls, strict=True):
                answer[name][mine] = values[of, now["Seg"][mine]]
        flat = {name: pa.FixedSizeListArray.from_arrays(each.ravel(), (MINUTES + 1) * SEGMENTS) for name, each in grids.items()}
        state.put(pa.table({"road": roads, "minute": at} | flat))
        told = (now["enters"] == 1) | (now["leaves"] == 1) | (now["Lane"] == EXIT)
        names = ("VID", "Time", "leaves", "enters", "Lane")
        return pa.table({name: values[told].astype(np.int32) for name, values in ({n: now[n] for n in names} | answer).items()})

    def _accidents(self, rows: pa.Table, stopped: Column, state: hr.KeyedState) -> list[int]:
        """The reports of vehicles that stand where another one stands, or stood 30 s ago. Few stand, so a Python loop is enough."""
        if not len(stopped):
            return []
        names = ("road", "Lane", "Pos", "VID", "Time")
        found = rows.take(pa.array(stopped)).append_column("at", pa.array(stopped)).sort_by("Time")
        stops, oldest = state.map("stops"), found["Time"][0].as_py() - 30
        kept = stops.items(found)
        stops.delete(kept.filter(pc.less(kept["at"], oldest)))
        standing: dict[tuple[int, ...], dict[int, int]] = {}
        for *key, vid, time in zip(*(kept[name].to_pylist() for name in (*names[:4], "at")), strict=True):
            standing.setdefault(tuple(key), {})[vid] = time
        accidents, changed = [], {}
        for *key, vid, time, at in zip(*(found[name].to_pylist() for name in (*names, "at")), strict=True):
            others = standing.setdefault(tuple(key), {})
            if any(other != vid and time - 30 <= when <= time for other, when in others.items()):
                accidents.append(at)
            others[vid] = changed[(*key, vid)] = time
        stops.put(pa.table(dict(zip(names[:4], zip(*changed, strict=True), strict=True)) | {"at": list(changed.values())}))
        return accidents

    def _tolls(self, roads: Column, cars: Column, speed: Column, accident: Column) -> tuple[Column, Column, Column]:
        """For each road and segment in the current minute: LAV, toll, and the segment of the nearest accident ahead (or -1)."""
        has = cars[:, 1:] > 0
        means = np.where(has, speed[:, 1:] / np.maximum(cars[:, 1:], 1), 0).sum(axis=1) / np.maximum(has.sum(axis=1), 1)
        lav = np.where(has.any(axis=1), means + ROUNDING, -1).astype(np.int64)
        step = np.where(roads % 2 == 0, 1, -1)[:, None]
        ahead = np.full(lav.shape, -1)
        for far in reversed(range(AHEAD)):
            seg = np.arange(SEGMENTS) + step * far
            there = (seg >= 0) & (seg < SEGMENTS) & (np.take_along_axis(accident[:, 1], np.clip(seg, 0, SEGMENTS - 1), axis=1) > 0)
            ahead = np.where(there, seg, ahead)
        free = (lav >= 40) | (cars[:, 1] <= 50) | (ahead >= 0)
        return lav, np.where(free, 0, 2 * (cars[:, 1].astype(np.int64) - 50) ** 2), ahead


class Accounts(hr.Processor):
    """Charges a toll when the vehicle leaves its segment, and answers questions about balances."""

    state = "balance long, owes int"
    output = "VID int, Time int, QID int, balance long"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        now = columns(rows)
        first = begins(now["VID"])
        who = np.cumsum(first) - 1
        vids = pa.array(now["VID"][first])
        kept = columns(state.get(vids), missing=0)
        balance, owes = kept["balance"].copy(), kept["owes"].copy()
        told = np.zeros(len(who), dtype=np.int64)
        turn = np.arange(len(who)) - np.flatnonzero(first)[who]
        for each in range(int(turn.max(initial=-1)) + 1):
            at = np.flatnonzero(turn == each)
            mine = who[at]
            balance[mine] += np.where(now["leaves"][at] == 1, owes[mine], 0)
            gone = (now["leaves"][at] == 1) | (now["Lane"][at] == EXIT)
            owes[mine] = np.where(now["enters"][at] == 1, now["Toll"][at], np.where(gone, 0, owes[mine]))
            told[at] = balance[mine]
        state.put(pa.table({"VID": vids, "balance": balance, "owes": owes}))
        asked = now["QID"] >= 0
        names = ("VID", "Time", "QID")
        return pa.table({name: now[name][asked] for name in names} | {"balance": told[asked]})


class Diaries(hr.Processor):
    """Answers what a vehicle spent on a past day. The history is the initial state and never changes."""

    state = "tolls array<int>"  # by day, from 0 on; -1 if nothing was spent
    output = "Time int, QID int, Bal int"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        kept = state.get(rows)["tolls"].combine_chunks()
        there = kept.is_valid().to_numpy(zero_copy_only=False)
        asked = columns(rows.select(["Time", "QID", "Day"]).filter(pa.array(there)))
        tolls = kept.flatten().to_numpy().reshape(-1, DAYS + 1)
        told = tolls[np.arange(len(tolls)), np.clip(asked["Day"], 0, DAYS)]
        found = (told >= 0) & (asked["Day"] >= 0) & (asked["Day"] <= DAYS)
        return pa.table({"Time": asked["Time"][found], "QID": asked["QID"][found], "Bal": told[found]})


def diaries(history: DataFrame) -> DataFrame:
    """The initial state of ``Diaries``, from what each vehicle spent by day and expressway (VID, Day, XWay, Toll)."""
    spent = history.groupBy("VID", "XWay").agg(F.map_from_entries(F.collect_list(F.struct("Day", "Toll"))).alias("spent"))
    return spent.selectExpr("VID", "XWay", f"transform(sequence(0, {DAYS}), day -> coalesce(spent[day], -1)) AS tolls")


def answers(tuples: hr.Stream, diaries: DataFrame, journeys: DataFrame) -> dict[str, hr.Stream]:
    """The streams of the five answers.

    ``diaries`` has what each vehicle spent by day. ``journeys`` has, by day of the week, hour and direction, the seconds and tolls
    from the beginning of the road to the edges of its segments, as arrays.
    """
    kinds = tuples.split(reports="Type = 0", balance="Type = 2", daily="Type = 3", travel="Type = 4")
    place = f"(XWay * 2 + Dir) * {SEGMENTS} + Seg AS place"
    reports = kinds.reports.selectExpr("VID", "Time", "Spd", "Lane", "Pos", place)
    vehicles = reports.groupBy("VID").process(Vehicles(), Vehicles.output, Vehicles.state, orderBy="Time").named("vehicles")
    notices = vehicles.groupBy("road").process(Segments(), Segments.output, Segments.state).named("segments")
    asked = kinds.balance.selectExpr("VID", "Time", "0 leaves", "0 enters", "-1 Lane", "-1 LAV", "0 Toll", "-1 AccSeg", "QID")
    dues = notices.withColumn("QID", F.lit(-1)).union(asked).groupBy("VID")
    accounts = dues.process(Accounts(), Accounts.output, Accounts.state, orderBy=("Time", "QID")).named("accounts")
    when = ("DOW", "(TOD - 1) div 60 AS hour", "if(Send >= Sinit, 0, 1) AS Dir")
    where = ("least(Sinit, Send) AS before", "greatest(Sinit, Send) + 1 AS after")
    journey = kinds.travel.selectExpr("QID", "Time", *when, *where)
    planned = journey.join(F.broadcast(journeys), ["DOW", "hour", "Dir"])
    days = kinds.daily.select("VID", "XWay", "Day", "Time", "QID").groupBy("VID", "XWay")
    return {
        "toll": notices.filter("enters = 1").select("VID", "Time", "LAV", "Toll"),
        "accident": notices.filter("enters = 1 AND AccSeg >= 0").select("Time", "VID", "AccSeg"),
        "balance": accounts.select("Time", "QID", F.col("balance").alias("Bal")),
        "daily": days.process(Diaries(), Diaries.output, Diaries.state, initial=diaries).named("diaries"),
        "travel": planned.selectExpr(
            "QID", "Time", "int(floor(seconds[after] - seconds[before])) AS TravelTime", "tolls[after] - tolls[before] AS Toll"
        ),
    }


def a_small_jam(folder: Path) -> None:
    """Sixty cars drive slowly through segment 10 for two minutes. Then one more enters, and later asks for its balance."""
    reports = [(0, 30 * at + car % 30, car, 20, 0, 1, 0, 10, 52_800 + car, *[-1] * 6) for at in range(4) for car in range(60)]
    late = [(0, 125, 99, 40, 0, 1, 0, 10, 53_000, *[-1] * 6), (0, 155, 99, 40, 0, 1, 0, 11, 58_100, *[-1] * 6)]
    balance = (2, 156, 99, *[-1] * 6, 7, *[-1] * 5)
    daily = (3, 157, 99, -1, 0, *[-1] * 4, 8, *[-1] * 4, 3)
    travel = (4, 158, 99, -1, 0, *[-1] * 4, 9, 10, 12, 2, 480, -1)
    rows = sorted([*reports, *late, balance, daily, travel], key=lambda row: row[1])
    folder.mkdir()
    for minute in range(3):
        now = zip(*(row for row in rows if row[1] // 60 == minute), strict=True)
        file = folder / f"{minute}.parquet"
        pq.write_table(pa.table([pa.array(each, pa.int32()) for each in now], names=NAMES), file)
        # Spark reads files by their time. Files that are written within one millisecond could come in any order.
        os.utime(file, (1_800_000_000 + minute,) * 2)


def main(spark: SparkSession, folder: str) -> None:
    a_small_jam(Path(folder) / "tuples")
    tuples = hr.stream(spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(f"{folder}/tuples"))
    history = spark.createDataFrame([(99, 3, 0, 42)], "VID int, Day int, XWay int, Toll int")
    edges = [(2, 7, 0, [edge * 80.0 for edge in range(101)], [edge * 3 for edge in range(101)])]
    journeys = spark.createDataFrame(edges, "DOW int, hour int, Dir int, seconds array<double>, tolls array<int>")

    def show(name: str) -> Any:
        return lambda rows, batch: print(name, *[tuple(row) for row in rows.filter("Time > 120").collect()])

    writers = [each.writeStream.foreachBatch(show(name)) for name, each in answers(tuples, diaries(history), journeys).items()]
    hr.start(*writers, checkpointLocation=f"{folder}/checkpoint", availableNow=True).awaitTermination()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("linear road"), scratch)
