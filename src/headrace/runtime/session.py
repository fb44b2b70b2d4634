"""Makes a Spark session with good settings for stateful streams, and checks sessions that were made elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.config import PREFIX
from headrace.errors import SessionError
from headrace.spark import worker_daemon
from headrace.spark.console import reports_in_file
from headrace.spark.contract import check_contract
from headrace.spark.gateway import is_connect
from headrace.spark.plans import EMPTY_RELATIONS
from headrace.spark.streaming import FILE_MANAGER

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_ROWS_BOUNDED = 1_000_000

ARROW_ROWS_WANTED = "200000"
ADAPTIVE = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAMS = "spark.sql.adaptive.streaming.stateless.enabled"

SETTINGS: dict[str, str] = {
    # Micro-batches are small and alike, so changing their plan while they run costs more than it gains.
    ADAPTIVE: "false",
    # A task reads all its rows before it works on them, so many small Arrow batches only cost time.
    ARROW_ROWS: ARROW_ROWS_WANTED,
    # Headrace chooses where tasks run. A second copy of a task only wastes a core.
    "spark.speculation": "false",
    # Spark's default manager sets permissions through FileContext, which takes tens of milliseconds per file on a local disk.
    # This one renames files, which is atomic on a local disk. Headrace itself refuses a second query on a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    # Over TCP, small answers of a Python worker wait up to 40 ms (Nagle's algorithm together with delayed acknowledgements).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Shuffle files of a lost executor do not come back. So retry soon, and then compute them again.
    "spark.shuffle.io.retryWait": "1s",
    **{f"spark.executorEnv.{variable}": "1" for variable in THREADS},
}

MONITOR = f"{PREFIX}ui"
"""The monitor, a page about the queries of this program."""
WORKER_DAEMON = "spark.python.daemon.module"
LOCAL_SETTINGS: dict[str, str] = {
    # Shuffle files stay on the machine, mostly in the page cache, so compressing them gains nothing.
    "spark.shuffle.compress": "false",
    # These checksums show whether a lost map task gave other rows when it ran again. Here no other machine can be lost.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}
"""Further settings for masters on which the driver does all the work itself."""
OWN_SETTINGS: dict[str, str] = {
    # Spark does the same for its own stateful queries.
    ADAPTIVE: "false",
    # To Spark, combining before the shuffle is a complete aggregate, for which it would not use its fast hash map.
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
    # A batch that several operators read is cached while they run. Compressing it would take longer than the operators do.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
"""Settings for the session that Spark makes for each streaming query. The user's session is not changed."""
FIXED_WIDTH_SETTINGS: dict[str, str] = {
    # With a limit in bytes, Spark measures an Arrow batch after every row. If rows have a fixed width, a limit in rows is enough.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def session(name: str = "headrace", master: str | None = None, **settings: str) -> SparkSession:
    """A Spark session with the settings that suit Headrace. Any other classic SparkSession works too.

    - ``name``: the name of the application.
    - ``master``: Spark's master. By default it is the variable ``SPARK_MASTER``, or else all cores of this machine; the session is then
      bound to the loopback address, unless ``SPARK_LOCAL_IP`` says otherwise.
    - ``settings``: settings of Spark, with ``__`` for a dot: ``spark__driver__memory="4g"``. They win over Headrace's.

    If a session is active already, it is returned with the settings that can still be changed. Raises ``SessionError`` without
    Java, and for a Spark that Headrace does not support.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for variable in THREADS:
        os.environ.setdefault(variable, "1")
    builder: Any = SparkSession.builder.appName(name)
    chosen = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if chosen.startswith("local") or _is_loopback(chosen):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", os.environ["SPARK_LOCAL_IP"])
    builder = builder.master(chosen)
    own = LOCAL_SETTINGS if chosen.startswith("local[") or chosen == "local" else {}
    if (chosen.startswith("local") or _is_loopback(chosen)) and os.environ["PYSPARK_PYTHON"] == sys.executable:
        # Executors on this machine run this interpreter, so they have Headrace before any file was sent to them.
        own = {**own, WORKER_DAEMON: worker_daemon.MODULE}
    given = {k.replace("__", "."): v for k, v in settings.items()}
    for key, value in {**SETTINGS, **own, **given}.items():
        if not key.startswith(PREFIX):
            builder = builder.config(key, value)
    with reports_in_file(given):
        created: SparkSession = builder.getOrCreate()
    if not is_connect(created):
        check_contract(created)
        # Spark warns of names that are not its own if it gets them before it starts.
        ours = {key: value for key, value in given.items() if key.startswith(PREFIX)}
        if MONITOR not in created.conf.getAll:
            ours = {MONITOR: "true", **ours}
        for key, value in ours.items():
            created.conf.set(key, value)
    return created


def _is_loopback(master: str) -> bool:
    """True for a standalone master on the loopback address, as ``headrace cluster up`` starts. The driver must use that address too."""
    return master.startswith(("spark://127.", "spark://localhost:"))


_starting = threading.Lock()


@contextmanager
def starting(spark: SparkSession) -> Iterator[None]:
    """Inside, streaming queries start without adaptive execution, like all of Spark's own stateful queries.

    To Spark our streaming plan is stateless, so it would run it in stages. It drops the plan of a stage without results, and the event
    times with it. A query copies the session's settings when it starts, so they cannot be set later.
    """
    with _starting:
        before = spark.conf.getAll.get(ADAPTIVE_STREAMS)
        spark.conf.set(ADAPTIVE_STREAMS, "false")
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(ADAPTIVE_STREAMS)
            else:
                spark.conf.set(ADAPTIVE_STREAMS, before)


def configure_query_session(spark: SparkSession, schemas: Iterable[pa.Schema]) -> None:
    """Set up the session of one running query, whose operators take rows of these schemas."""
    if ARROW_ROWS not in spark.conf.getAll:
        spark.conf.set(ARROW_ROWS, ARROW_ROWS_WANTED)
    fixed = all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for schema in schemas for kind in schema.types)
    # If the user has removed or raised the limit in rows, the limit in bytes must stay.
    fixed = fixed and 0 < int(spark.conf.get(ARROW_ROWS) or 0) <= ARROW_ROWS_BOUNDED
    for key, value in (OWN_SETTINGS | (FIXED_WIDTH_SETTINGS if fixed else {})).items():
        spark.conf.set(key, value)
    others = [each for each in (spark.conf.get(EXCLUDED_RULES, None) or "").split(",") if each.strip()]
    spark.conf.set(EXCLUDED_RULES, ",".join([*others, EMPTY_RELATIONS]))


def check_java() -> None:
    """Raise an error if no Java is found."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise SessionError(
        "Spark needs Java 17 or newer",
        where="session",
        found=f"no java on the PATH{' and none in JAVA_HOME=' + home if home else ''}",
        hint="install a JRE (on Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME",
    )


def check_session(spark: SparkSession) -> None:
    """Refuse Spark Connect, and a Spark whose internals differ. Warn about settings that make queries slow, and say what to set."""
    if is_connect(spark):
        raise SessionError(
            where="session", wanted="a classic Spark session", found="Spark Connect", hint="use hr.session() or a session with a master"
        )
    check_contract(spark)
    advice = []
    if int(spark.conf.getAll.get(ARROW_ROWS, 0)) in range(1, 50_000):
        advice.append(f'spark.conf.set("{ARROW_ROWS}", "{ARROW_ROWS_WANTED}"): fewer, larger Arrow batches')
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        advice.append("start Spark with spark.speculation=false: a task that runs twice wastes a core")
    if str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true":
        advice.append("start Spark with spark.dynamicAllocation.enabled=false: it takes away executors that state lives on")
    if advice:
        warnings.warn("Headrace would be slow in this session; hr.session() sets the following:\n  " + "\n  ".join(advice), stacklevel=4)
