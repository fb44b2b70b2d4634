"""Failures that a query survives are logged once, with their fields; by default nothing is printed."""

from __future__ import annotations

import ast
import logging
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.config import Config
from headrace.control.elastic import Elastic
from headrace.errors import CorruptStateError, QueryError
from headrace.ids import Version
from headrace.logs import log_fields, logger, suppressed
from headrace.runtime.autoscale import Autoscaler
from headrace.runtime.backlog import FileBacklog
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.control_server import ControlServer
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.endpoint import _sent
from headrace.runtime.failures import Stopping
from headrace.runtime.gate import BatchGate
from headrace.runtime.inspection import lease
from headrace.runtime.leases import leased_versions
from headrace.runtime.lifetime import QueryLifetime
from headrace.runtime.safety.outage import Outage
from headrace.runtime.spark_query import SparkQuery
from headrace.state.durable import FolderStore
from headrace.state.routing import Routing

SOURCE = Path(headrace.__file__).parent

_log = logger("headrace.test")


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in ("query", "version", "operator", "instance")}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)


def test_nothing_is_printed_by_default() -> None:
    done = run("from headrace.logs import logger\nlogger('headrace.x').error('it failed')")
    assert (done.stdout, done.stderr) == ("", "")


def test_a_level_prints_messages_of_that_level_to_stderr_with_their_fields() -> None:
    done = run(
        "from headrace.logs import log_fields, logger, set_level\n"
        "set_level('info')\n"
        "set_level('info')\n"
        "with log_fields(query='ckpt', version=7):\n"
        "    logger('headrace.x').info('rescaled to %d', 4, operator='sum')\n"
        "    logger('headrace.x').debug('too small')\n"
        "logger('headrace.x').warning('no fields')\n"
    )
    first, second = done.stderr.splitlines()
    assert first.endswith("INFO headrace.x [query=ckpt version=7 operator=sum] rescaled to 4")
    assert second.endswith("WARNING headrace.x no fields")


def test_a_program_with_handlers_of_its_own_gets_each_message_once() -> None:
    done = run(
        "import logging, sys\n"
        "from headrace.logs import logger, set_level\n"
        "logging.basicConfig(stream=sys.stdout, format='mine: %(message)s %(operator)s')\n"
        "set_level('debug')\n"
        "logger('headrace.x').debug('hello', operator='sum')\n"
    )
    assert (done.stdout, done.stderr) == ("mine: hello sum\n", "")


def test_the_option_knows_its_levels() -> None:
    assert Config.read({"headrace.loglevel": "debug"}).logLevel == "debug"
    with pytest.raises(QueryError, match="debug or info or warning or error; found 'loud'"):
        Config.read({"headrace.logLevel": "loud"})


def test_fields_of_an_inner_block_are_gone_after_it_and_other_threads_have_none(caplog: pytest.LogCaptureFixture) -> None:
    with log_fields(query="q", version=1):
        with log_fields(operator="sum", version=2):
            _log.warning("inner", instance=3)
        thread = threading.Thread(target=_log.warning, args=("thread",))
        thread.start()
        thread.join()
        _log.warning("outer")
    inner, other, outer = caplog.records
    assert fields(inner) == {"query": "q", "version": 2, "operator": "sum", "instance": 3}
    assert fields(other) == {"query": None, "version": None, "operator": None, "instance": None}
    assert fields(outer) == {"query": "q", "version": 1, "operator": None, "instance": None}


def test_a_suppressed_failure_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with suppressed(_log, "the copy was not made", CorruptStateError, OSError, operator="sum"):
        raise OSError("no space")
    (record,) = caplog.records
    assert record.getMessage() == "the copy was not made: OSError: no space"
    assert fields(record)["operator"] == "sum"
    assert record.exc_info is not None


def test_what_is_not_to_be_suppressed_is_raised_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="other"), suppressed(_log, "failed", OSError):
        raise ValueError("other")
    assert not caplog.records


def test_a_policy_that_fails_is_logged_with_its_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    elastic = Elastic(period_s=1)
    decisions = DecisionLog(elastic)
    live = LiveRouting(checkpoint, {"sum": Routing.even(1)}, threading.Lock(), decisions=decisions)
    scaler = Autoscaler(elastic, live, decisions, lambda: True)
    # A batch that is none: whatever a policy stumbles over, its thread goes on.
    scaler.inbox.append(None)  # type: ignore[arg-type]
    scaler.woken.set()
    scaler.start()
    while not decisions.entries:
        pass
    scaler.stop()
    (record,) = caplog.records
    assert record.name == "headrace.runtime.autoscale"
    assert record.exc_info is not None
    assert fields(record)["query"] == checkpoint.location


def test_a_control_request_that_fails_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"half": request["whole"] / 2}

    server = ControlServer("token", answer)
    status, said = _sent(server.port, "token", {"do": "halve"})
    server.close()
    assert status == 400
    assert "KeyError" in said["error"]
    (record,) = [each for each in caplog.records if each.name == "headrace.runtime.control_server"]
    assert record.getMessage() == "a control request failed: halve"
    assert record.exc_info is not None


def test_a_lease_that_cannot_be_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "leases" / "folder.json").mkdir(parents=True)
    assert leased_versions(FolderStore(tmp_path)) == set()
    (record,) = caplog.records
    assert "the lease cannot be read" in record.getMessage()


def test_reading_a_version_without_a_lease_is_logged_with_the_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    with caplog.at_level(logging.INFO, "headrace"), lease(checkpoint, 7):
        pass
    (record,) = caplog.records
    assert fields(record) == {"query": checkpoint.location, "version": 7, "operator": None, "instance": None}


def test_an_entry_of_sparks_log_that_cannot_be_read_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backlog = FileBacklog(tmp_path / "files", FolderStore(tmp_path / "log"))
    (tmp_path / "files").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0").write_text("v1\nno json\n")
    assert backlog.waiting() == backlog.waiting() == (0, None)
    (record,) = caplog.records
    assert str(tmp_path / "log" / "0") in record.getMessage()


def test_what_failed_in_a_cancelled_batch_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(batch: DataFrame, version: Version) -> None:
        raise FileNotFoundError("runs/v7.arrow")

    spark = SparkQuery(cast(SparkSession, None))
    spark.attach(cast(StreamingQuery, SimpleNamespace(isActive=False)))
    gate = BatchGate(fail, checkpoint := Checkpoint(str(tmp_path)), spark, threading.Lock(), Outage(checkpoint, 0))
    batch = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None)))
    with caplog.at_level(logging.INFO, "headrace"), pytest.raises(Stopping) as stopped:
        gate(cast(DataFrame, batch), 7)
    assert stopped.value.__cause__ is None
    (record,) = caplog.records
    assert record.getMessage() == "the batch was cancelled, because the query is being stopped: FileNotFoundError"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "runs/v7.arrow"
    assert fields(record) == {"query": gate.checkpoint.location, "version": 7, "operator": None, "instance": None}
    assert gate.error is None


def test_a_jvm_that_has_ended_is_logged_once_at_info(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Gone:
        @property
        def isActive(self) -> bool:
            raise ConnectionRefusedError(111, "Connection refused")

        def stop(self) -> None:
            raise ConnectionRefusedError(111, "Connection refused")

        _jsq = isActive

    spark = SparkQuery(cast(SparkSession, None))
    spark.attach(cast(StreamingQuery, Gone()))
    gate = BatchGate(lambda batch, version: None, checkpoint := Checkpoint(str(tmp_path)), spark, threading.Lock(), Outage(checkpoint, 0))
    with caplog.at_level(logging.INFO, "headrace"):
        assert [spark.is_active(), spark.is_active()] == [False, False]
        (record,) = caplog.records
        assert record.getMessage() == "the JVM has ended: ConnectionRefusedError: [Errno 111] Connection refused"
        caplog.clear()
        QueryLifetime(gate, spark, lambda: None).stop_now()
    assert caplog.records[0].getMessage().startswith("Spark's query had ended before it was stopped: ConnectionRefusedError")
    assert fields(caplog.records[0])["query"] == gate.checkpoint.location


def test_closing_an_endpoint_that_has_ended_is_logged_for_debugging_only(caplog: pytest.LogCaptureFixture) -> None:
    server = ControlServer("token", lambda request: {})
    server.close()
    (thread,) = [each for each in threading.enumerate() if each.name == "headrace-control"]
    thread.join(10)
    with caplog.at_level(logging.DEBUG, "headrace"):
        server.close()
    (record,) = [each for each in caplog.records if each.name == "headrace.runtime.control_server"]
    assert record.levelname == "DEBUG"
    assert "RuntimeError" in record.getMessage()


def swallowing(tree: ast.AST) -> list[int]:
    """Lines at which every exception, or every error of the system, is caught and neither logged, raised nor used."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = "BaseException" if node.type is None else ast.unparse(node.type)
            silent = node.name is None and not any(
                isinstance(each, ast.Raise) or (isinstance(each, ast.Name) and each.id == "_log") for each in ast.walk(node)
            )
            if silent and all(isinstance(each, ast.Pass) or ast.unparse(each) == "return" for each in node.body):
                found.append((node.lineno, caught))
        elif isinstance(node, ast.With):
            for item in node.items:
                if "suppress(" in ast.unparse(item.context_expr):
                    found.append((node.lineno, ast.unparse(item.context_expr)))
    return [line for line, caught in found if not any(word in caught for word in EXPECTED)]


EXPECTED = ("FileExistsError", "FileNotFoundError", "ProcessLookupError", "SystemExit")
"""Answers rather than failures: it is there already, it is gone, a program ends itself."""


def test_no_module_swallows_an_exception_in_silence() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        found += [f"{path.relative_to(SOURCE)}:{line}" for line in swallowing(ast.parse(path.read_text(encoding="utf-8")))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    f()\nexcept Exception:\n    pass",
        "def g():\n    try:\n        f()\n    except (OSError, ValueError):\n        return",
        "with contextlib.suppress(OSError):\n    f()",
    ],
)
def test_an_exception_that_is_swallowed_in_silence_is_noticed(source: str) -> None:
    assert swallowing(ast.parse(source))
