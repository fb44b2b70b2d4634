"""The typed settings of a query. They are given as ``option("headrace.NAME", value)`` on the writer, or as Spark settings of that name.

Upper and lower case are equal in names, as in all of Spark's options.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from headrace.errors import QueryError, UnsupportedError
from headrace.guarantees import Approach, Contradiction, Guarantee, Safety, chosen_safety
from headrace.logs import LEVELS as LOG_LEVELS

PREFIX = "headrace."
ALSO = "also"
"""Marks a field of `Config` with another name that the option has."""
IS_OPTION = "is an option"
"""Marks the fields of `Config` that users cannot set, because they follow from others."""
HANDOVERS = ("auto", "state recreation", "window recreation", "merge", "buffering")
KAFKA_DELIVERIES = ("transactions", "tasks")
KAFKA_LOST_NOTE = ("refuse", "deliver")
OPERATOR_CHANGES = ("refuse", "accept", "backfill")
FETCH_FROM = ("executors", "checkpoint")
ACKNOWLEDGE = ("home", "peers")
CHECKPOINT_ORDERS = ("min-max", "round-robin", "whole")
FALLBACKS = ("error", "spark")
COMBINE = ("auto", "always", "never")
STRATEGIES = ("operator-set-cloud", "operator-cloud")
PLANNED_STRATEGIES = ("query-cloud",)
"""Strategies of StreamCloud that `explain(mode="cost")` compares, but that no query can run yet."""


@dataclass(frozen=True)
class Config:
    """How a query runs. No setting changes its results."""

    instances: int = 0
    """The number of instances of each stateful operator; 0 means one per core."""
    instancesOf: str = ""
    """The number of instances by operator, for operators that differ: ``aggregate=4,join=2``."""
    strategy: str = "operator-set-cloud"
    """How the query is divided into subqueries: operator-set-cloud or operator-cloud. The first is right for nearly all queries."""
    idleSeconds: float = 300.0
    """A source that has no rows for this long, while others have some, no longer holds the watermark back. 0: never, as in Spark."""
    versionsToKeep: int = 10
    """The number of versions to keep. Older ones are removed."""
    durable: bool = True
    """Sync files to disk before a version is committed. If off, a crash of the machine (not of the process) may lose versions."""
    combine: str = "auto"
    """Pre-aggregate rows before the shuffle: auto (if it leaves fewer rows), always, or never."""
    depthMax: int = 4
    """Compaction begins when a slot has more runs than this."""
    compactRows: int = 200_000
    """Rows that compaction may merge per batch and instance. ``compactFactor`` may allow more."""
    compactFactor: float = 2.5
    """Compaction may also merge this many times the rows that the batch wrote."""
    panes: bool = True
    """Keep the rows of time windows in panes, each once. If off, a row counts in every window that it belongs to, as in Spark: for queries
    that were moved over from Spark with sliding windows (`headrace migrate`). A checkpoint goes on with what it began with."""
    productGrid: str = "4x4"
    """Rows and columns of the grid over which crossJoin divides its work. A row of one input goes to all cells of one grid row, and a row
    of the other input to all cells of one grid column. A checkpoint keeps the grid that it began with."""
    readyExecutors: int = -1
    """On a cluster: the least number of executors to keep ready beyond those that instances need. Headrace then requests and releases
    executors, and keeps more ready while the query scales out fast. With 0 it requests them when instances need them, and keeps none
    ready. With -1 it requests none, and uses those that the user has."""
    handover: str = "auto"
    """The protocol by which state goes to new owners: state recreation, window recreation, merge, buffering, or auto. Auto is state
    recreation, unless that would take longer than filling a window."""
    workingDirectory: str = "headrace"
    """On a cluster: where executors keep working copies of state. It is a folder in each executor's own directory, or an absolute path on a
    local disk. With none, they read the checkpoint's files."""
    fetchFrom: str = "executors"
    """On a cluster: where an instance that moves gets its state from. With executors, it comes from those that have it, and the rest from
    the checkpoint. With checkpoint, all of it comes from there."""
    checkpointSeconds: float = 0.0
    """How often state is made durable, in seconds. With 0, every version is durable when its results leave. Otherwise new state stays on
    the executors, or on the driver's local disk with a local master, and is shipped to the checkpoint in the background. After a loss, the
    versions since the last checkpoint are computed again from the source, exactly as before."""
    checkpointOrder: str = "min-max"
    """With checkpointSeconds: the order in which a checkpoint ships the state of instances. With min-max, the instance goes first that has
    most work to lose per second of shipping; with round-robin, they take turns; with whole, all are shipped at once. The first two ship in
    small rounds, and wait a little for moments without a batch."""
    replicas: int = 0
    """On a cluster: the number of other executors that keep a copy of each instance's state. If its executor is lost, the instance
    goes on at one of them."""
    acknowledge: str = "home"
    """On a cluster with replicas: what results wait for. With home, copies are made beside the batches, and the few versions that have none
    yet are computed again after a loss. With peers, results wait until the copies are there; then nothing is computed again."""
    parallelRecovery: int = 1
    """On a cluster: into how many parts the slots of a lost instance may be split, so that several executors take them over at once. They
    are joined again when other executors have come. Instances are split only if that lets the batch end earlier, and only over executors
    that can read their state: all of them if it is durable, else those with copies. 1: never."""
    stateLocation: str = ""
    """Where Headrace's own part of the checkpoint is, if not at the checkpointLocation: a path or a URI. Spark's logs stay there."""
    cacheBytes: int = 10_000_000_000
    """How much of the durable state executors keep on their disks, in bytes each. What was not used for longest is removed first. State
    that is on executors only (checkpointSeconds) is not counted. 0: any amount."""
    storeRequestSeconds: float = 30.0
    """How long one request to a store behind a network may take. A request that fails is made again, up to six times."""
    storeWaitSeconds: float = 60.0
    """How long a batch waits if the checkpoint's folder cannot be reached. When it is back, the batch runs again. With 0, the query ends at
    once."""
    guarantee: str = ""
    """What the query promises after a loss: precise (nothing is lost or doubled), rollback (results leave at once, and some may come
    twice), or gap (what was lost is skipped, counted and reported). If empty, the best that ``recovery`` gives."""
    recovery: str = ""
    """How the query recovers: checkpoint, peer, active, upstream or amnesia. If empty, peer with ``replicas``, and checkpoint without."""
    operatorChanges: str = "refuse"
    """What happens if operators or the columns of their state have changed since the checkpoint was written: refuse, accept or backfill.
    Changes that lose nothing are never refused. With accept, what is new starts without earlier rows, and the state of what was removed
    is dropped. With backfill, what is new is computed from all rows that the sources have had."""
    enabled: bool = False
    """``hr.enable(spark)`` sets it in the session: stateful queries that are started with Spark's own ``df.writeStream`` run on Headrace.
    On a writer, false leaves that one query to Spark."""
    fallback: str = "error"
    """What happens to a DataFrame of Spark's that Headrace cannot run, but Spark can: error, or spark. With spark, the query runs on
    Spark's own operators, and a warning says so."""
    metricsPort: int = -1
    """The port on which the program serves metrics of its queries for Prometheus, at ``/metrics``. 0: any that is free; -1: none. Queries
    with the same port share it."""
    metricsHost: str = "127.0.0.1"
    """The address on which metrics are served. Whoever can reach it can read them."""
    traces: bool = False
    """Trace batches with OpenTelemetry, by the tracer provider that the program has set. Needs ``pip install headrace[otel]``."""
    kafkaDelivery: str = "transactions"
    """How results reach Kafka: transactions or tasks. With transactions, the driver sends each version in one transaction, exactly once.
    With tasks, all tasks send their part, as Spark's own sink does: at least once, with the version in the header ``headrace-version``."""
    kafkaMarkerTopic: str = ""
    """The topic at whose partition 0 Kafka notes which versions it has. If empty, it is the sink's topic, or else
    ``headrace-deliveries``. It is created if it is not there, and nothing is written to it."""
    kafkaLostNote: str = "refuse"
    """What happens if the query was broken off while it delivered a version to Kafka, and Kafka has forgotten whether it has it: refuse the
    start, or deliver the version, perhaps for the second time."""
    history: bool = True
    """Append progress and decisions to the checkpoint, in files of bounded size. The monitor, ``headrace report`` and
    ``headrace simulate replay`` read them."""
    ui: bool = False
    """Serve the monitor, a page about the queries of this program, while it runs. ``hr.session`` switches it on."""
    uiHost: str = "127.0.0.1"
    """The address on which the monitor listens. Whoever can reach it and knows the token in its URL can read state and change queries."""
    uiPort: int = 0
    """The port of the monitor. 0: any that is free."""
    uiTokenFile: str = ""
    """A file with the monitor's token, so that it stays the same over restarts, as Prometheus needs it. If empty, each start has a new one.
    The token has at least 16 letters, digits, ``-`` or ``_``, and only the file's owner may read the file."""
    uiEditor: bool = field(default=False, metadata={ALSO: "ui.editor"})
    """Let the monitor have an editor of queries. It runs code in this program: whoever knows the URL of the monitor may do what the program
    may. Also called ``headrace.ui.editor``."""
    logLevel: str = ""
    """The level from which Headrace prints log messages to stderr, in the driver and in Spark's Python workers: debug, info, warning or
    error. If empty, it prints nothing. The level is that of the whole process: the last query that sets it wins."""
    hashBits: int = 64
    """The number of bits of the key hash that are used. With fewer bits different keys collide, for tests."""
    safety: Safety = field(default=Safety(), metadata={IS_OPTION: False})
    """What follows from ``guarantee``, ``recovery``, ``checkpointSeconds``, ``replicas`` and ``acknowledge``. It is no option itself."""

    @property
    def grid(self) -> tuple[int, int]:
        """``productGrid`` as numbers: rows and columns."""
        rows, _, columns = self.productGrid.partition("x")
        return int(rows), int(columns)

    def instances_by_operator(self) -> dict[str, int]:
        """``instancesOf`` as a dict.

        >>> Config(instancesOf="aggregate=4, join=2").instances_by_operator()
        {'aggregate': 4, 'join': 2}
        """
        found: dict[str, int] = {}
        for pair in filter(None, (part.strip() for part in self.instancesOf.split(","))):
            match = re.fullmatch(r"([^=]*[^=\s])\s*=\s*([0-9]{1,4})", pair)
            if match is None or not 1 <= int(match[2]) <= 4096:
                raise _bad("instancesOf", "operator=number, such as aggregate=4, the number from 1 to 4096", repr(pair))
            if match[1] in found:
                raise _bad("instancesOf", "each operator once", f"{match[1]!r} twice")
            found[match[1]] = int(match[2])
        return found

    @classmethod
    def read(cls, *sources: Mapping[str, Any]) -> Config:
        """Read the settings from mappings of options, of which later ones win. Refuses unknown ``headrace.`` names and bad values."""
        known = {name.lower(): each for each in option_fields() for name in (each.name, each.metadata.get(ALSO, each.name))}
        values: dict[str, Any] = {}
        for source in sources:
            for name, value in source.items():
                if not name.lower().startswith(PREFIX):
                    continue
                option = known.get(name[len(PREFIX) :].lower())
                if option is None:
                    raise _unknown(name)
                values[option.name] = _parse(option.name, value, type(option.default))
        config = cls(**values)
        _check(config)
        return replace(config, safety=_safety(config, values))


def option_fields() -> list[Field[Any]]:
    """The fields of `Config` that users can set as options."""
    return [each for each in fields(Config) if each.metadata.get(IS_OPTION, True)]


def _bad(name: str, wanted: str, found: str) -> QueryError:
    return QueryError(where=f"option '{PREFIX}{name}'", wanted=wanted, found=found)


def _unknown(name: str) -> QueryError:
    """The error for an unknown name. It suggests the most similar known name."""
    names = {(PREFIX + each.name).lower(): PREFIX + each.name for each in option_fields()}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]}?" if near else ""
    return QueryError(where=f"option {name!r}", wanted=f"one of {', '.join(names.values())}", found="an unknown name", hint=hint)


def _parse(name: str, value: Any, kind: type) -> Any:
    """Convert a value to its type. It may be text, or what a program passes. As a whole number, 2.5 and True are refused."""
    text = str(value).strip()
    if kind is str:
        return str(value)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise _bad(name, "true or false", repr(value))
    if kind is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if kind is float and re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        return float(text)
    low, high = _BOUNDS[name]
    raise _bad(name, f"a {'whole ' if kind is int else ''}number from {low} to {high}", repr(value))


_BOUNDS: dict[str, tuple[float, float]] = {
    "instances": (0, 4096),
    "idleSeconds": (0, 10**9),
    "versionsToKeep": (2, 1_000_000),
    "depthMax": (1, 64),
    "hashBits": (1, 64),
    "compactRows": (1, 10**9),
    "compactFactor": (0, 10**6),
    "readyExecutors": (-1, 10_000),
    "checkpointSeconds": (0, 10**6),
    "storeWaitSeconds": (0, 10**6),
    "storeRequestSeconds": (0.1, 3600),
    "cacheBytes": (0, 10**18),
    "replicas": (0, 16),
    "metricsPort": (-1, 65_535),
    "parallelRecovery": (1, 64),
    "uiPort": (0, 65_535),
}
"""The allowed range of each numeric option."""

_CHOICES = {
    "operatorChanges": OPERATOR_CHANGES,
    "strategy": STRATEGIES,
    "handover": HANDOVERS,
    "fetchFrom": FETCH_FROM,
    "acknowledge": ACKNOWLEDGE,
    "checkpointOrder": CHECKPOINT_ORDERS,
    "combine": COMBINE,
    "kafkaDelivery": KAFKA_DELIVERIES,
    "kafkaLostNote": KAFKA_LOST_NOTE,
    "fallback": FALLBACKS,
    "guarantee": ("", *Guarantee),
    "recovery": ("", *Approach),
    "logLevel": ("", *LOG_LEVELS),
}


def _safety(config: Config, given: Mapping[str, Any]) -> Safety:
    """What the settings together promise. ``given`` has those that the user has set."""
    try:
        safety = chosen_safety(
            guarantee=config.guarantee,
            recovery=config.recovery,
            checkpoint_s=given.get("checkpointSeconds"),
            replicas=given.get("replicas"),
            acknowledge=given.get("acknowledge"),
        )
    except Contradiction as found:
        raise _bad(found.setting, found.wanted, found.found) from None
    if config.workingDirectory == "none" and (safety.at_home or safety.replicas):
        raise _bad("workingDirectory", "a folder, because state is kept on executors", "'none'")
    return safety


def _check(config: Config) -> None:
    for name, (low, high) in _BOUNDS.items():
        value = getattr(config, name)
        # Written so that NaN fails too, because all its comparisons are false.
        if not low <= value <= high:
            raise _bad(name, f"a number from {low} to {high}", str(value))
    if config.strategy in PLANNED_STRATEGIES:
        hint = "leave the option out, and set headrace.instances for more instances of every operator"
        found = f"{config.strategy!r}, which is not built yet"
        raise UnsupportedError(where=f"option '{PREFIX}strategy'", wanted=" or ".join(STRATEGIES), found=found, hint=hint)
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            raise _bad(name, " or ".join(filter(None, choices)), repr(getattr(config, name)))
    directory = config.workingDirectory
    if not directory.strip() or "\0" in directory or ".." in directory.split("/"):
        raise _bad("workingDirectory", "a folder's name, a path without '..', or none", repr(directory))
    config.instances_by_operator()
    grid = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", config.productGrid)
    if grid is None or int(grid[1]) * int(grid[2]) > 4096:
        raise _bad("productGrid", "rows and columns such as '4x4', at most 4096 cells", repr(config.productGrid))
