"""Loads the user's query, with Headrace or on plain Spark. A query is a program, or a function of streams.

- A *program* is a Python file, as for ``headrace plan``. It runs, but its query is not started. What it reads with ``spark.readStream``
  is redirected to private folders, and its sinks are replaced. For Spark's batch answer the same program runs again:
  ``hr.stream(frame)`` is then the batch DataFrame itself, and what it writes is noted.
- A *function*, ``FILE.py:NAME`` or ``MODULE:NAME``, gets a stream for each input and returns a stream or a dict of streams by the names of
  sinks, as for ``headrace.testing``. Spark's batch answer is the same function of batch DataFrames.

If Spark's DataFrames lack a method that the query uses, the file has a function ``reference`` beside it: batch DataFrames in, one for each
source, and a DataFrame out, or a dict of them by sink.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

import headrace.api.stream
import headrace.api.writer
from headrace.api.planning import planning
from headrace.api.stream import Stream
from headrace.chaos.patched import patched
from headrace.chaos.sources import Opened, Redirect, SourceRequest
from headrace.errors import HeadraceError, QueryError
from headrace.operators.kernel import OutputMode

REFERENCE = "reference"
RESULT = "result"


@dataclass(frozen=True)
class Output:
    """A sink of the user's query, and the rows that it gets."""

    name: str
    mode: str
    stream: Stream


@dataclass(frozen=True)
class Built:
    """The user's query, built with Headrace."""

    outputs: tuple[Output, ...]
    options: dict[str, str]
    """The user's own ``headrace.*`` options."""


@dataclass(frozen=True)
class Target:
    """What the user named: a program, or a function with its inputs."""

    file: Path | None
    module: str = ""
    function: str = ""
    inputs: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    mode: str = "append"

    @classmethod
    def parse(cls, text: str, inputs: tuple[str, ...] = (), schemas: tuple[str, ...] = (), mode: str = "append") -> Target:
        """
        >>> Target.parse("module:totals", ("calls/",)).function
        'totals'
        """
        name, _, function = text.partition(":")
        file = Path(name).absolute() if name.endswith(".py") else None
        where = f"chaos {text}"
        if file is not None and not file.is_file():
            raise QueryError(where=where, wanted="a Python file", found=str(file), hint="give FILE.py, FILE.py:FUNCTION or MODULE:FUNCTION")
        if file is None and not function:
            raise QueryError(where=where, wanted="FILE.py, FILE.py:FUNCTION or MODULE:FUNCTION", found=text)
        if function and not inputs:
            raise QueryError(where=where, wanted="--input FOLDER for each argument of the function", found="none")
        if inputs and not function:
            hint = "a program reads its own input; name a function to give it another one"
            raise QueryError(where=where, wanted="FILE.py:FUNCTION with --input", found=text, hint=hint)
        return cls(file, "" if file else name, function, tuple(str(Path(each).absolute()) for each in inputs), schemas, mode)

    @property
    def folder(self) -> Path:
        """The folder that the user's modules are imported from."""
        return self.file.parent if self.file is not None else Path.cwd()

    def build(self, spark: SparkSession, opened: Opened) -> Built:
        """Build the query with Headrace."""
        if self.function:
            query = self._callable(self.function)
            made = query(*[headrace.api.stream.stream(opened(at, each)) for at, each in enumerate(self._requests())])
            streams = made if isinstance(made, dict) else {RESULT: made}
            return Built(tuple(Output(name, self.mode, _stream(each, self.function)) for name, each in streams.items()), {})
        with planning() as queries, Redirect(spark, opened).patch():
            _, failed = self._run(spark)
        if len(queries) != 1:
            found = f"{len(queries)}{f' before it ended with {failed}' if failed else ''}"
            raise QueryError(where=str(self.file), wanted="a program that starts one query", found=found)
        sinks = enumerate(queries[0].outputs)
        outputs = tuple(Output(f"{at}-{each.format}", str(each.mode.value), Stream(each.rows)) for at, each in sinks)
        return Built(outputs, queries[0].options.ours())

    def answer(self, spark: SparkSession, opened: Opened) -> dict[str, DataFrame]:
        """The same query on plain Spark, by sink. Of a program the names are those of ``build``."""
        if self.function:
            frames = [opened(at, each) for at, each in enumerate(self._requests())]
            known = vars(self._module()).get(REFERENCE)
            made = self._asked(known or self._callable(self.function), frames)
            return made if isinstance(made, dict) else {RESULT: made}
        frames = []

        def kept(at: int, request: SourceRequest) -> DataFrame:
            frames.append(opened(at, request))
            return frames[-1]

        noted: list[Noted] = []
        with Redirect(spark, kept).patch(), _on_plain_spark(spark, noted):
            names, failed = self._run(spark)
        if REFERENCE in names:
            made = self._asked(names[REFERENCE], frames)
            return made if isinstance(made, dict) else {"": made}
        if not noted:
            hint = f"write a function {REFERENCE} of batch DataFrames in the same file"
            raise QueryError(where=str(self.file), wanted="a query that Spark's DataFrames can run", found=failed or "none", hint=hint)
        return {f"{at}-{each.format}": each.frame for at, each in enumerate(noted)}

    def _asked(self, reference: Callable[..., Any], frames: list[DataFrame]) -> Any:
        try:
            return reference(*frames)
        except (TypeError, AttributeError, QueryError) as refused:
            hint = f"write a function {REFERENCE} of batch DataFrames in the same file"
            found = f"{type(refused).__name__}: {refused}"
            raise QueryError(where="chaos", wanted="a query that Spark's DataFrames can run", found=found, hint=hint) from refused

    def _requests(self) -> list[SourceRequest]:
        schemas = [*self.schemas, *[None] * len(self.inputs)]
        return [SourceRequest(_format_of(path), path, {}, schemas[at]) for at, path in enumerate(self.inputs)]

    def _callable(self, name: str) -> Callable[..., Any]:
        found = vars(self._module()).get(name)
        if not callable(found):
            raise QueryError(where=f"chaos {self.module or self.file}", wanted=f"a function {name!r}", found=repr(found))
        made: Callable[..., Any] = found
        return made

    def _module(self) -> Any:
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        return importlib.import_module(self.module or (self.file.stem if self.file else ""))

    def _run(self, spark: SparkSession) -> tuple[dict[str, Any], str]:
        """Run the program. Returns its names, and the error that it ended with; it may fail because a planned query has no results."""
        assert self.file is not None
        names: dict[str, Any] = {"__name__": "__main__", "__file__": str(self.file), "__builtins__": __builtins__}
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        code = compile(self.file.read_text(encoding="utf-8"), str(self.file), "exec")
        arguments, sys.argv = sys.argv, [str(self.file)]
        try:
            # The session belongs to the campaign. A program that stops its own would end all that follows.
            with contextlib.redirect_stdout(sys.stderr), patched(type(spark), stop=lambda _: None):
                exec(code, names)
        except HeadraceError:
            raise
        except SystemExit:
            pass
        except Exception as error:
            return names, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        finally:
            sys.argv = arguments
        return names, ""


def _stream(made: Any, where: str) -> Stream:
    if not isinstance(made, Stream):
        found = type(made).__name__
        raise QueryError(where=f"chaos, {where}", wanted="a function that returns a stream, or a dict of streams", found=found)
    return made


def _format_of(path: str) -> str:
    """The format of an input, by the names of its files.

    >>> _format_of("calls.json")
    'json'
    """
    names = [file.name for file in Path(path).rglob("*")] if Path(path).is_dir() else [path]
    endings = {ending for name in names for ending in name.split(".")[1:]}
    return next((each for each in ("json", "csv", "orc") if each in endings), "parquet")


@dataclass
class Noted:
    """A sink of a program that runs on plain Spark."""

    frame: DataFrame
    format: str
    mode: str = "append"


@dataclass
class NotingWriter:
    """Stands in for the writer of a stream on plain Spark: it notes the DataFrame when it is started."""

    frame: DataFrame
    into: list[Noted]
    noted: Noted = field(init=False)

    def __post_init__(self) -> None:
        self.noted = Noted(self.frame, str(self.frame.sparkSession.conf.get("spark.sql.sources.default", "parquet")))

    def format(self, source: str) -> Self:
        self.noted.format = source
        return self

    def outputMode(self, outputMode: str) -> Self:
        self.noted.mode = OutputMode(outputMode.lower()).value
        return self

    def start(self, path: str | None = None) -> Ended:
        self.into.append(self.noted)
        return Ended()

    def toTable(self, tableName: str) -> Ended:
        return self.start()

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self


class Ended:
    """The handle of a query that was noted. Every method returns None at once."""

    isActive = False
    lastProgress = None

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None


@contextlib.contextmanager
def _on_plain_spark(spark: SparkSession, noted: list[Noted]) -> Iterator[None]:
    """Inside the block a program that was written for Headrace runs on batch DataFrames."""

    def start(*writers: NotingWriter, **_: Any) -> Ended:
        for writer in writers:
            writer.start()
        return Ended()

    frames = type(spark.range(1))
    with (
        patched(headrace.api.stream, stream=lambda frame: frame),
        patched(headrace.api.writer, start=start),
        patched(frames, writeStream=property(lambda frame: NotingWriter(frame, noted))),
    ):
        yield
