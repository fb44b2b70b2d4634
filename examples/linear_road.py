"""Linear Road, the benchmark of stream processing, as one query: tolls that follow the traffic, minute by minute.

Vehicles report where they are every 30 s. Three operators with state, each written over all its keys at once:

    reports --by vehicle--> Vehicles --by expressway and direction--> Segments --by vehicle--> Accounts
                            stops? enters a segment?                  toll, accident ahead?    balance

python examples/linear_road.py
"""

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

EXIT = 4
STOPPED_REPORTS = 4
MINUTES = 5
AHEAD = 5
NAMES = ["Type", "Time", "VID", "Spd", "XWay", "Lane", "Dir", "Seg", "Pos", "QID", "Sinit", "Send", "DOW", "TOD", "Day"]
INPUT = ", ".join(f"{name} int" for name in NAMES)

Column = npt.NDArray[Any]


def columns(table: pa.Table, missing: int = -1) -> dict[str, Column]:
    """A table as arrays; what is null is missing."""
    return {name: pc.fill_null(table[name], missing).to_numpy() for name in table.column_names}


def begins(sorted_values: Column) -> Column:
    """Where a value stands for the first time."""
    return np.r_[True, sorted_values[1:] != sorted_values[:-1]][: len(sorted_values)]


class Vehicles(hr.Processor):
    """What a report means after the vehicle's last one."""

    state = "XWay int, Dir int, Seg int, Lane int, Pos int, standing int"
    output = "XWay int, Dir int, Time int, VID int, Seg int, Lane int, Pos int, Spd int, stopped int, enters int, leaves int"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        now = columns(rows.take(pa.array(np.lexsort((rows["Time"], rows["VID"])))))
        first = begins(now["VID"])
        kept = columns(state.get(pa.array(now["VID"][first])))
        before = {name: np.r_[-1, now[name]][:-1] for name in ("XWay", "Dir", "Seg", "Lane", "Pos")}
        for name in before:
            before[name][first] = kept[name]

        def same(*names: str) -> Column:
            return np.logical_and.reduce([now[name] == before[name] for name in names])

        stays, there = same("XWay", "Dir", "Lane", "Pos"), same("XWay", "Dir", "Seg")
        standing = self._counted(stays, first, kept["standing"])
        known = before["Lane"] >= 0
        out = {name: now[name] for name in ("XWay", "Dir", "Time", "VID", "Seg", "Lane", "Pos", "Spd")}
        out["stopped"] = standing >= STOPPED_REPORTS
        out["enters"] = (now["Lane"] != EXIT) & (~known | (before["Lane"] == EXIT) | ~there)
        out["leaves"] = known & (before["Lane"] != EXIT) & ~there
        last = begins(now["VID"][::-1])[::-1]
        state.put(pa.table({name: values[last] for name, values in (now | {"standing": standing}).items() if name != "Spd"}))
        return pa.table({name: pa.array(values.astype(np.int32)) for name, values in out.items()})

    def _counted(self, stays: Column, first: Column, kept: Column) -> Column:
        """How many reports in a row a vehicle has stood at its place."""
        at = np.arange(len(stays))
        begins = np.maximum.accumulate(np.where(first | ~stays, at, 0))
        earlier = np.zeros(len(stays), dtype=np.int64)
        earlier[first] = np.where(stays[first], kept, 0)
        return at - begins + 1 + earlier[begins]


class Segments(hr.Processor):
    """Cars, speeds and accidents of each segment; what those who enter it have to pay."""

    state = hr.State(
        "minute int",
        maps={
            "cars": ("Seg int, VID int", "speed long, reports int"),  # of the minute that runs
            "minutes": ("minute int, Seg int", "cars int, speed double"),
            "stops": ("Lane int, Pos int, VID int", "at int"),
            "accidents": ("minute int, Seg int", "at int"),
        },
    )
    output = "VID int, Time int, leaves int, enters int, Lane int, LAV int, Toll int, AccSeg int"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        minutes = pc.add(pc.divide(rows["Time"], 60), 1)
        rows = rows.append_column("minute", minutes.cast(pa.int32())).sort_by("Time")
        parts = []
        for minute in sorted(pc.unique(rows["minute"]).to_pylist()):
            mine = rows.filter(pc.equal(rows["minute"], minute))
            self._begin(minute, mine, state)
            self._count(mine, state)
            self._look_for_accidents(minute, mine, state)
            parts.append(self._told(minute, mine, state))
        return pa.concat_tables(parts) if parts else self._told(0, rows, state)

    def _begin(self, minute: int, rows: pa.Table, state: hr.KeyedState) -> None:
        """When a minute is over its cars are counted, once and for all; what is too old to matter is forgotten."""
        keys = state.keys(rows)
        last = state.get(keys)["minute"]
        over = keys.append_column("minute", last).filter(pc.less(last, minute))
        state.put(keys.append_column("minute", pa.array([minute] * len(keys), pa.int32())))
        if not len(over):
            return
        cars = state.map("cars").items(over)
        mean = pc.divide(cars["speed"].cast(pa.float64()), cars["reports"].cast(pa.float64()))
        done = cars.append_column("mean", mean).group_by(["XWay", "Dir", "Seg"]).aggregate([("mean", "mean"), ("VID", "count")])
        done = done.join(over, ["XWay", "Dir"]).rename_columns({"VID_count": "cars", "mean_mean": "speed"})
        state.map("minutes").put(done)
        state.map("cars").delete(cars)
        for name in ("minutes", "accidents"):
            entries = state.map(name).items(over)
            state.map(name).delete(entries.filter(pc.less(entries["minute"], minute - MINUTES)))

    def _count(self, rows: pa.Table, state: hr.KeyedState) -> None:
        new = rows.group_by(["XWay", "Dir", "Seg", "VID"]).aggregate([("Spd", "sum"), ("Spd", "count")])
        old = columns(state.map("cars").get(new), missing=0)
        sums = pa.array(new["Spd_sum"].to_numpy() + old["speed"])
        counts = pa.array((new["Spd_count"].to_numpy() + old["reports"]).astype(np.int32))
        state.map("cars").put(new.select(["XWay", "Dir", "Seg", "VID"]).append_column("speed", sums).append_column("reports", counts))

    def _look_for_accidents(self, minute: int, rows: pa.Table, state: hr.KeyedState) -> None:
        """Two vehicles that stand at one place within 30 s of one another. Few do, so they are looked at one by one."""
        stopped = rows.filter(pc.equal(rows["stopped"], 1))
        if not len(stopped):
            return
        place = ["XWay", "Dir", "Lane", "Pos"]
        stops = state.map("stops")
        kept = stops.items(stopped)
        seen = {(*key, vid): at for *key, vid, at in zip(*(kept[name].to_pylist() for name in (*place, "VID", "at")), strict=True)}
        accidents = set()
        for *key, vid, at, seg in zip(*(stopped[name].to_pylist() for name in (*place, "VID", "Time", "Seg")), strict=True):
            if any(other[:4] == tuple(key) and other[4] != vid and at - 30 <= when <= at for other, when in seen.items()):
                accidents.add((key[0], key[1], minute, seg, at))
            seen[(*key, vid)] = at
        stops.put(pa.table(dict(zip((*place, "VID"), zip(*seen, strict=True), strict=True)) | {"at": list(seen.values())}))
        if accidents:
            found = pa.table(dict(zip(("XWay", "Dir", "minute", "Seg", "at"), zip(*accidents, strict=True), strict=True)))
            last = found.group_by(["XWay", "Dir", "minute", "Seg"]).aggregate([("at", "max")])
            state.map("accidents").put(last.rename_columns({"at_max": "at"}))

    def _told(self, minute: int, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        """Toll and accident for those who enter; that they went, for those who leave a segment or the road."""
        told = rows.filter(pc.or_(pc.or_(pc.equal(rows["enters"], 1), pc.equal(rows["leaves"], 1)), pc.equal(rows["Lane"], EXIT)))
        segments = told.group_by(["XWay", "Dir", "Seg"]).aggregate([])
        lav, toll, ahead = self._tolls(minute, segments, state)
        facts = segments.append_column("LAV", lav).append_column("Toll", toll).append_column("AccSeg", ahead)
        return told.join(facts, ["XWay", "Dir", "Seg"]).select(["VID", "Time", "leaves", "enters", "Lane", "LAV", "Toll", "AccSeg"])

    def _tolls(self, minute: int, segments: pa.Table, state: hr.KeyedState) -> tuple[pa.Array, pa.Array, pa.Array]:
        seg, step = segments["Seg"].to_numpy(), np.where(segments["Dir"].to_numpy() == 0, 1, -1)

        def at(name: str, minute: int, ahead: int = 0) -> dict[str, Column]:
            there = {"XWay": segments["XWay"], "Dir": segments["Dir"], "Seg": pa.array((seg + step * ahead).astype(np.int32))}
            return columns(state.map(name).get(pa.table(there | {"minute": pa.array([minute] * len(segments), pa.int32())})))

        stats = [at("minutes", minute - back) for back in range(1, MINUTES + 1)]
        has = np.stack([each["cars"] > 0 for each in stats])
        speeds = np.stack([each["speed"] for each in stats])
        lav = np.where(has.any(0), np.where(has, speeds, 0).sum(0) / np.maximum(has.sum(0), 1), -1).astype(np.int32)
        cars = stats[0]["cars"].astype(np.int64)
        accident = np.full(len(segments), -1)
        for ahead in reversed(range(AHEAD)):
            accident = np.where(at("accidents", minute - 1, ahead)["at"] >= 0, seg + step * ahead, accident)
        free = (lav >= 40) | (cars <= 50) | (accident >= 0)
        toll = np.where(free, 0, 2 * (cars - 50) ** 2)
        return pa.array(lav), pa.array(toll.astype(np.int32)), pa.array(accident.astype(np.int32))


class Accounts(hr.Processor):
    """A toll is due when its segment is left behind; balances are told when they are asked for."""

    state = "balance long, owes int"
    output = "VID int, Time int, QID int, balance long"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        now = columns(rows.take(pa.array(np.lexsort((rows["QID"], rows["Time"], rows["VID"])))))
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
    """What a vehicle has spent on a day of the past. Nothing changes; the history is there from the start, as state."""

    state = "days array<int>, tolls array<int>"
    output = "Time int, QID int, Bal int"

    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        kept, told = state.get(rows), []
        for day, days, tolls in zip(*(each.to_pylist() for each in (rows["Day"], kept["days"], kept["tolls"])), strict=True):
            told.append(dict(zip(days or [], tolls or [], strict=True)).get(day))
        found = rows.select(["Time", "QID"]).append_column("Bal", pa.array(told, pa.int32()))
        return found.filter(pc.is_valid(found["Bal"]))


def answers(tuples: hr.Stream, history: DataFrame, journeys: DataFrame) -> dict[str, hr.Stream]:
    """The five answers. ``history`` has what each vehicle spent on each day (VID, XWay, Day, Toll); ``journeys`` how long and how dear it
    is from the road's beginning to the edges of its segments (seconds and tolls, arrays), by day of the week, hour and direction."""
    reports = tuples.filter("Type = 0").select("VID", "Time", "Spd", "XWay", "Lane", "Dir", "Seg", "Pos")
    vehicles = reports.groupBy("VID").process(Vehicles(), Vehicles.output, Vehicles.state)
    notices = vehicles.groupBy("XWay", "Dir").process(Segments(), Segments.output, Segments.state)
    asked = tuples.filter("Type = 2").selectExpr(
        "VID", "Time", "0 leaves", "0 enters", "-1 Lane", "-1 LAV", "0 Toll", "-1 AccSeg", "QID"
    )
    accounts = notices.withColumn("QID", F.lit(-1)).union(asked).groupBy("VID").process(Accounts(), Accounts.output, Accounts.state)
    when = ("DOW", "(TOD - 1) div 60 AS hour", "if(Send >= Sinit, 0, 1) AS Dir")
    where = ("least(Sinit, Send) AS before", "greatest(Sinit, Send) + 1 AS after")
    journey = tuples.filter("Type = 4").selectExpr("QID", "Time", *when, *where)
    planned = journey.join(journeys, ["DOW", "hour", "Dir"])
    diaries = history.groupBy("VID", "XWay").agg(F.collect_list("Day").alias("days"), F.collect_list("Toll").alias("tolls"))
    days = tuples.filter("Type = 3").select("VID", "XWay", "Day", "Time", "QID").groupBy("VID", "XWay")
    return {
        "toll": notices.filter("enters = 1").select("VID", "Time", "LAV", "Toll"),
        "accident": notices.filter("enters = 1 AND AccSeg >= 0").select("Time", "VID", "AccSeg"),
        "balance": accounts.select("Time", "QID", F.col("balance").alias("Bal")),
        "daily": days.process(Diaries(), Diaries.output, Diaries.state, initial=diaries),
        "travel": planned.selectExpr(
            "QID", "Time", "int(floor(seconds[after] - seconds[before])) AS TravelTime", "tolls[after] - tolls[before] AS Toll"
        ),
    }


def a_small_jam(folder: Path) -> None:
    """Sixty cars crawl through segment 10 for two minutes; then one more comes along, and asks later what it has paid."""
    reports = [(0, 30 * at + car % 30, car, 20, 0, 1, 0, 10, 52_800 + car, *[-1] * 6) for at in range(4) for car in range(60)]
    late = [(0, 125, 99, 40, 0, 1, 0, 10, 53_000, *[-1] * 6), (0, 155, 99, 40, 0, 1, 0, 11, 58_100, *[-1] * 6)]
    balance = (2, 156, 99, *[-1] * 6, 7, *[-1] * 5)
    daily = (3, 157, 99, -1, 0, *[-1] * 4, 8, *[-1] * 4, 3)
    travel = (4, 158, 99, -1, 0, *[-1] * 4, 9, 10, 12, 2, 480, -1)
    rows = sorted([*reports, *late, balance, daily, travel], key=lambda row: row[1])
    folder.mkdir()
    for minute in range(3):
        now = zip(*(row for row in rows if row[1] // 60 == minute), strict=True)
        pq.write_table(pa.table([pa.array(each, pa.int32()) for each in now], names=NAMES), folder / f"{minute}.parquet")


def main(spark: SparkSession, folder: str) -> None:
    a_small_jam(Path(folder) / "tuples")
    tuples = hr.stream(spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(f"{folder}/tuples"))
    history = spark.createDataFrame([(99, 3, 0, 42)], "VID int, Day int, XWay int, Toll int")
    edges = [(2, 7, 0, [edge * 80.0 for edge in range(101)], [edge * 3 for edge in range(101)])]
    journeys = spark.createDataFrame(edges, "DOW int, hour int, Dir int, seconds array<double>, tolls array<int>")

    def show(name: str) -> Any:
        return lambda rows, batch: print(name, *[tuple(row) for row in rows.filter("Time > 120").collect()])

    writers = [each.writeStream.foreachBatch(show(name)) for name, each in answers(tuples, history, journeys).items()]
    hr.start(*writers, checkpointLocation=f"{folder}/checkpoint", availableNow=True).awaitTermination()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(hr.session("linear road"), scratch)
