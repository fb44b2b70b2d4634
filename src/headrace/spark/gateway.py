"""Access to Spark's JVM: handles, Scala collections, and errors.

PySpark talks to the JVM through py4j. Each attribute and each call on a Java object is one round trip of about 0.1 ms. Code that runs for
every batch keeps the handles that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from py4j.java_gateway import get_field
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.find_spark_home import _find_spark_home
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import QueryError

GONE = (Py4JError, OSError)
"""Raised by a call when the JVM, or the session in it, no longer exists."""
SPARK_ERRORS = (PySparkException, Py4JError)
"""Every exception that comes from Spark. Java exceptions without a PySpark class arrive as py4j errors."""
REFUSALS = (PySparkException, Py4JJavaError)
"""Exceptions thrown by Java code. The JVM still runs."""

CAUSES_MAX = 20
"""So many causes of a Java exception are read."""

T = TypeVar("T")


@dataclass(frozen=True)
class JavaFailure:
    """A Java exception."""

    text: str
    """Its class and message, as Java prints them."""
    messages: tuple[str, ...]
    """The message of the exception and of its causes, outermost first. An exception without a message gives the name of its class."""


def jvm_of(session: SparkSession) -> Any:
    """The JVM's packages: ``jvm_of(session).java.util.ArrayList()`` makes a Java list."""
    return session._jvm


def connection(session: SparkSession) -> Any:
    """PySpark's connection to the JVM. There is one object per JVM."""
    return session.sparkContext._gateway


def java_session(session: SparkSession) -> Any:
    """The Scala ``SparkSession`` behind a Python session."""
    return session._jsparkSession


def java_context(session: SparkSession) -> Any:
    """The Scala ``SparkContext`` behind a Python session."""
    java: Any = session.sparkContext._jsc
    return java.sc()


def java_frame(frame: DataFrame) -> Any:
    """The Scala ``Dataset`` behind a Python DataFrame."""
    return frame._jdf


def same_session(one: SparkSession, other: SparkSession) -> bool:
    """True if two objects stand for one session of Spark's."""
    return one is other or bool(java_session(one).equals(java_session(other)))


def context_is_stopped(session: SparkSession) -> bool:
    """True if the session's SparkContext was stopped."""
    java: Any = session.sparkContext._jsc
    return java is None or bool(java.sc().isStopped())


def seq(session: SparkSession, elements: list[Any]) -> Any:
    """A Scala Seq of a Python list."""
    return jvm_of(session).PythonUtils.toSeq(elements)


def seq_maker(session: SparkSession) -> Callable[[list[Any]], Any]:
    """The function from a Python list to a Scala Seq. Looking it up takes a round trip, so callers in a loop keep it."""
    maker: Callable[[list[Any]], Any] = jvm_of(session).PythonUtils.toSeq
    return maker


def scala_map(session: SparkSession, entries: dict[str, Any]) -> Any:
    """A Scala Map of a Python dict."""
    return jvm_of(session).PythonUtils.toScalaMap(entries)


def none(session: SparkSession) -> Any:
    """Scala's ``None``."""
    return jvm_of(session).scala.Option.empty()


def java_array(session: SparkSession, kind: Any, elements: list[Any]) -> Any:
    """A Java array of a class, such as ``jvm_of(session).java.lang.Object``."""
    made = connection(session).new_array(kind, len(elements))
    for at, element in enumerate(elements):
        made[at] = element
    return made


def class_named(session: SparkSession, name: str) -> Any:
    """The ``java.lang.Class`` of a full name."""
    return jvm_of(session).java.lang.Class.forName(name)


def singleton(package: Any, name: str) -> Any:
    """The Scala ``object`` of this name in a JVM package."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def items(seq: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (seq.apply(i) for i in range(seq.size()))


def iterated(iterator: Any) -> Iterator[Any]:
    """The elements of a Scala Iterator."""
    while iterator.hasNext():
        yield iterator.next()


def fields(java: Any, *names: str) -> list[Any]:
    """The values of a Java object's public fields."""
    return [get_field(java, name) for name in names]


def private_field(java: Any, name: str) -> Any:
    """The value of a private field of a Java object."""
    found = java.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(java)


def class_name(node: Any) -> str:
    """The simple name of an object's class."""
    return str(node.getClass().getSimpleName())


def has_method(node: Any, name: str) -> bool:
    """True if a JVM object has a public method of this name."""
    return any(str(each.getName()) == name for each in node.getClass().getMethods())


def full_class_name(node: Any) -> str:
    """The name of an object's class, with its package."""
    return str(node.getClass().getName())


def pickled(thing: Any) -> bytes:
    """The bytes in which PySpark sends a Python object to a task. Raises if it cannot be sent."""
    return bytes(CloudPickleSerializer().dumps(thing))


def unpickled(session: SparkSession, function: Any) -> Any:
    """The Python object in a ``PythonFunction`` of the JVM."""
    one_byte = jvm_of(session).scala.reflect.ClassTag.Byte()
    return CloudPickleSerializer().loads(bytes(function.command().toArray(one_byte)))


def java_version(session: SparkSession) -> str:
    """The version of the Java that Spark runs on."""
    return str(jvm_of(session).System.getProperty("java.version"))


def spark_home() -> str:
    """The folder of the Spark that PySpark would start."""
    return str(_find_spark_home())


def jvm_pid() -> int | None:
    """The process id of the JVM that this process started. None in a Python worker, which did not start its JVM."""
    context = SparkContext._active_spark_context
    process = getattr(context._gateway, "proc", None) if context is not None else None
    return None if process is None else int(process.pid)


def log_level(context: SparkContext) -> str:
    """The level of Spark's root logger."""
    jvm: Any = context._jvm
    return str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())


def is_connect(thing: Any) -> bool:
    """True for a session or DataFrame of Spark Connect, which has no JVM to talk to."""
    return type(thing).__module__.startswith("pyspark.sql.connect")


def is_spark_interrupt_handler(handler: Any) -> bool:
    """True for PySpark's SIGINT handler, which cancels all jobs."""
    return getattr(handler, "__module__", "") == "pyspark.core.context"


def checked(where: str, build: Callable[[], T]) -> T:
    """Run ``build``, which Spark analyses. If Spark refuses, raise a ``QueryError`` without Spark's traceback."""
    try:
        return build()
    except AnalysisException as refused:
        raise QueryError(where=where, found=first_line(refused), hint=advice(refused)) from None
    except REFUSALS as refused:
        raise QueryError(where=where, found=first_line(refused)) from None


def advice(refused: PySparkException) -> str:
    """A hint for the user, for errors that Headrace knows."""
    condition = refused.getCondition() or ""
    if condition.startswith("UNRESOLVED_COLUMN"):
        return "use a column that the stream has at this point; printSchema() shows them"
    return ""


def first_line(error: BaseException) -> str:
    """The first line of a Spark error, without its SQLSTATE."""
    return description(error).strip().split("\n")[0].split(" SQLSTATE")[0]


def description(failure: BaseException) -> str:
    """The whole text of a Spark error, without the Java stack trace that ``str`` may add."""
    return str(failure._desc or failure) if isinstance(failure, CapturedException) else str(failure)


def printed(failure: BaseException) -> str:
    """A Spark error as Java prints it, or else as Python does."""
    return str(failure.java_exception or failure) if isinstance(failure, Py4JJavaError) else str(failure)


def java_failure(failure: BaseException) -> JavaFailure | None:
    """The Java exception behind a Spark error. None if PySpark or py4j itself raised the error."""
    if isinstance(failure, Py4JJavaError):
        return java_failure_of(failure.java_exception)
    origin = failure._origin if isinstance(failure, CapturedException) else None
    return None if origin is None else java_failure_of(origin)


def java_failure_of(java: Any) -> JavaFailure:
    """The text and the messages of a Java exception."""
    return JavaFailure(str(java.toString()), tuple(islice(_messages(java), CAUSES_MAX)))


def _messages(java: Any) -> Iterator[str]:
    while java is not None:
        yield str(java.getMessage() or java.getClass().getSimpleName())
        java = java.getCause()
