"""A Spark session that suits stateful streams, and a check of sessions that were made elsewhere."""

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

from headrace.errors import SessionError
from headrace.spark.contract import check_contract
from headrace.spark.gateway import is_connect
from headrace.spark.streaming import FILE_MANAGER

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
ARROW_ROWS_BOUNDED = 1_000_000

ARROW_ROWS_WANTED = "200000"
ADAPTIVE = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAMS = "spark.sql.adaptive.streaming.stateless.enabled"

SETTINGS: dict[str, str] = {
    # Micro-batches are small and alike: planning them anew in mid-flight costs more than it brings.
    ADAPTIVE: "false",
    # A task reads its whole share of a batch anyway; many small Arrow batches only cost.
    ARROW_ROWS: ARROW_ROWS_WANTED,
    # Homes are chosen by Headrace; a task that runs twice wastes a core.
    "spark.speculation": "false",
    # Spark's default manager sets permissions through FileContext, which costs tens of milliseconds a file on a local disk.
    # This one renames, which is atomic there; two queries on one checkpoint are kept apart by Headrace's manifest.
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    # Over TCP, small answers of a Python worker wait 40 ms for an acknowledgement (Nagle's rule meets delayed ones).
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Shuffle files of an executor that is gone do not come back; ask again soon, then compute them anew.
    "spark.shuffle.io.retryWait": "1s",
    **{f"spark.executorEnv.{variable}": "1" for variable in THREADS},
}

LOCAL_SETTINGS: dict[str, str] = {
    # Shuffle files never leave the machine, and mostly never the page cache: to compress them is work for nothing.
    "spark.shuffle.compress": "false",
    # They tell whether a lost map task, run again, gave other rows. There is no other machine to lose.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}
"""Where the driver does all the work itself."""
OWN_SETTINGS: dict[str, str] = {
    # As Spark does for its own stateful queries.
    ADAPTIVE: "false",
    # Combining before the shuffle is one complete aggregate to Spark, to which it would deny its fast hash map.
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
    # A batch that several operators read is kept for as long as they do; to compress it costs more than all of them.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
"""For the session that Spark gives a streaming query of its own: the user's is not touched."""
FIXED_WIDTH_SETTINGS: dict[str, str] = {
    # Spark measures an Arrow batch with every row that it adds to it; rows of a known width are bounded by their number.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


def session(name: str = "headrace", master: str | None = None, **settings: str) -> SparkSession:
    """A Spark session with the settings that suit Headrace. Any other classic SparkSession works too.

    - ``name``: the name of the application.
    - ``master``: Spark's master. By default it is the variable ``SPARK_MASTER``, or else all cores of this machine; the session is then
      bound to the loopback address, unless ``SPARK_LOCAL_IP`` says otherwise.
    - ``settings``: settings of Spark, with ``__`` for a dot: ``spark__driver__memory="4g"``. They win over Headrace's.

    If a session is active already, it is returned with the settings that can still be changed. Raises ``SessionError`` without Java.
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
    for key, value in {**SETTINGS, **own, **{k.replace("__", "."): v for k, v in settings.items()}}.items():
        builder = builder.config(key, value)
    created: SparkSession = builder.getOrCreate()
    return created


def _is_loopback(master: str) -> bool:
    """A standalone master on this machine, such as ``headrace cluster up`` starts: whoever binds elsewhere is not heard there."""
    return master.startswith(("spark://127.", "spark://localhost:"))


_starting = threading.Lock()


@contextmanager
def starting(spark: SparkSession) -> Iterator[None]:
    """Inside, streaming queries start without adaptive execution, as all stateful queries of Spark's do.

    To Spark our streaming plan is stateless, and it would run it in stages. Of a stage without results it then drops the plan, with the
    event times in it. A query takes a copy of the session's settings when it starts, before its first plan; later is too late.
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
    # A user may have asked for Arrow batches of any number of rows; then their size is all that bounds them.
    fixed = fixed and 0 < int(spark.conf.get(ARROW_ROWS) or 0) <= ARROW_ROWS_BOUNDED
    for key, value in (OWN_SETTINGS | (FIXED_WIDTH_SETTINGS if fixed else {})).items():
        spark.conf.set(key, value)


def check_java() -> None:
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
    """Refuse Spark Connect, and a Spark whose internals differ. Warn of settings that make queries slow, with the remedy."""
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
        warnings.warn("this session would run Headrace slowly; hr.session() sets what follows:\n  " + "\n  ".join(advice), stacklevel=4)
