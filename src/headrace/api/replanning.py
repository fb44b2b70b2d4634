"""From what a user gives to ``query.replace`` to the plan that shall run."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame

from headrace.api.spark_frame import SparkFrame
from headrace.control.elastic import Elastic
from headrace.errors import QueryError
from headrace.frontend.lower import together
from headrace.graph.nodes import Rows
from headrace.runtime.options import CHECKPOINT, Options
from headrace.runtime.start import Output, QueryPlan, RunOptions, plan_query
from headrace.spark.writers import AskingWriter, written


class Writer(Protocol):
    """What is needed of a ``StreamWriter``."""

    _rows: Rows | SparkFrame
    _options: Options
    _name: str | None
    _trigger: dict[str, Any]
    _elastic: Elastic | None
    _deadline: str | None

    def _output(self, where: str) -> Output: ...


def common_options(writers: Iterable[Writer], location: str, where: str) -> Options:
    """The options that hold for the whole query. Two writers with different values for one option are refused."""
    options = Options({CHECKPOINT: location})
    for writer in writers:
        given = writer._options.ours()
        if CHECKPOINT in writer._options:
            given[CHECKPOINT] = writer._options[CHECKPOINT]
        for name, value in given.items():
            if options.get(name, value) != value:
                found = f"{options[name]!r} and {value!r}"
                raise QueryError(where=f"{where}, option {name!r}", wanted="one value for the whole query", found=found)
            options[name] = value
    return options


@dataclass(frozen=True)
class Written:
    """A query's plan, and the writers that asked for it."""

    plan: QueryPlan
    writers: tuple[Any, ...]

    def replaced(self, new: tuple[Any, ...], location: str, where: str) -> Written:
        """The same query with other DataFrames, streams or writers. What these do not say stays as it is: sink, trigger, options."""
        if not new:
            raise QueryError(where=where, wanted="the new DataFrame, stream or writers", found="none")
        writers = tuple(self._writer(each, where) for each in new)
        old = self.plan.run
        run = RunOptions(
            next((each._name for each in writers if each._name is not None), old.name),
            next((each._trigger for each in writers if each._trigger), old.trigger),
            next((each._elastic for each in writers if each._elastic is not None), old.elastic),
            where,
            next((each._deadline for each in writers if each._deadline is not None), old.deadline),
            all(isinstance(each._rows, SparkFrame) for each in writers) and (len(writers) == 1 or old.as_spark),
        )
        for each in writers:
            # Sinks such as memory use the name of the query.
            each._name = each._name or run.name
        given = common_options(writers, location, where)
        options = Options(self.plan.options.ours())
        options.update(given)
        with together():
            outputs = [each._output(where) for each in writers]
        return Written(plan_query(outputs, options, run), writers)

    def at(self, location: str, before: RunOptions) -> Written:
        """The same on the checkpoint of a query that runs, with its name and trigger unless this has its own."""
        plan = self.plan
        run = replace(plan.run, name=plan.run.name or before.name, trigger=plan.run.trigger or before.trigger)
        options = Options(plan.options)
        options[CHECKPOINT] = location
        return replace(self, plan=replace(plan, run=run, options=options))

    def _writer(self, new: Any, where: str) -> Any:
        """The writer for one of the things that the user gave. Those that were given are not changed."""
        kind, writer = type(self.writers[0]), self.writers[0]
        if isinstance(new, kind):
            writer = copy.copy(new)
            writer._options = Options(writer._options)
            return writer
        if isinstance(new, AskingWriter):
            asked = written(new)
            writer = kind(SparkFrame(asked.frame))
            for name, args, named in asked.calls:
                getattr(writer, name)(*args, **named)
            return writer
        rows = SparkFrame(new) if isinstance(new, DataFrame) else getattr(new, "rows", None)
        if not isinstance(rows, SparkFrame | Rows):
            wanted = "a streaming DataFrame, a stream, or writers (df.writeStream..., without start)"
            hint = "Spark's own writers are understood after hr.enable(spark); otherwise use hr.writeStream(df)"
            raise QueryError(where=where, wanted=wanted, found=type(new).__name__, hint=hint)
        if len(self.writers) != 1:
            found = f"a query with {len(self.writers)} sinks, and rows without one"
            raise QueryError(where=where, wanted="a writer for each sink", found=found, hint="give rows.writeStream.format(...)...")
        writer = copy.copy(self.writers[0])
        writer._rows, writer._options = rows, Options(writer._options)
        return writer
