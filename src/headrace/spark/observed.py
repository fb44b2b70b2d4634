"""What ``DataFrame.observe`` counted while a DataFrame was computed."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from headrace.spark.gateway import items, iterated, java_frame


def observed(frame: DataFrame) -> dict[str, dict[str, object]]:
    """By name of an observation: its values by column. The DataFrame itself must have been computed, not one made of it.

    Values of tasks that ran twice may count twice, as in Spark's own metrics. Observations that no task has made are left out.
    """
    return _observed(java_frame(frame).queryExecution())


def observed_in_batch(execution: Any) -> dict[str, dict[str, object]]:
    """The same of the streaming plan of a batch, until now. ``execution`` is Spark's ``StreamExecution``, while the batch runs."""
    last = execution.lastExecution()
    return {} if last is None else _observed(last)


def _observed(planned: Any) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for entry in iterated(planned.observedMetrics().iterator()):
        row = entry._2()
        names = row.schema().fieldNames()
        found[str(entry._1())] = {str(name): _plain(row.get(at)) for at, name in enumerate(names)}
    return found


def _plain(value: Any) -> object:
    return list(items(value)) if hasattr(value, "apply") else value
