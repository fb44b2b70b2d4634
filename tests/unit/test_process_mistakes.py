"""Errors when a user's operator does not fit its state or its columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import ProcessorError
from headrace.operators.process import Process
from headrace.operators.processor import KeyProcessor, Processor
from headrace.operators.shape import TimerClock
from tests.unit.processors import (
    SEEN,
    TimersVectorised,
    at,
    instance,
    shape,
)


def fails(processor: Any, folder: Path, **more: Any) -> str:
    with pytest.raises(ProcessorError) as caught:
        instance(processor, folder, where="process at app.py:7", **more).batch([("a", "put", 1)])
    return str(caught.value)


def vectorised(process: Callable[[pa.Table, Any], Any]) -> Processor:
    return type("Mine", (Processor,), {"process": lambda self, rows, state: process(rows, state)})()


def per_key(process: Callable[[Any, Any, Any], Any]) -> KeyProcessor:
    return type("Mine", (KeyProcessor,), {"process": lambda self, key, rows, state: process(key, rows, state)})()


def _set(state: Any, name: str, value: Any) -> None:
    setattr(state, name, value)


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (
            vectorised(lambda rows, state: rows),
            "what process gives; wanted the columns k string, n int64; found k string, op string",
        ),
        (vectorised(lambda rows, state: None), "wanted a pyarrow Table with the columns k string, n int64; found NoneType"),
        (vectorised(lambda rows, state: pa.table({"k": rows["k"], "n": rows["op"]})), "wanted column 'n' of type int64; found string"),
        (vectorised(lambda rows, state: state.put(rows)), "state.put; wanted the columns n int64, word string; found k string"),
        (vectorised(lambda rows, state: state.get(pa.array(["z"]))), "a key that does not belong to this call; wanted keys of the rows"),
        (vectorised(lambda rows, state: state.get(rows.drop(["k"]))), "keys; wanted the columns k string; found op string"),
        (vectorised(lambda rows, state: state.map("seen")), "wanted one of the maps (none are declared); found 'seen'"),
        (vectorised(lambda rows, state: state.set_timer(rows, at(1))), "declare them: hr.State(..., timers='event')"),
        (vectorised(lambda rows, state: rows["v"][5]), "Mine.process raised IndexError"),
        (per_key(lambda key, rows, state: ("a", 1)), "wanted a tuple or a dict of k, n; found 'a'; process gives back a list of rows"),
        (per_key(lambda key, rows, state: [("a", "b")]), "wanted int64 in column 'n'"),
        (per_key(lambda key, rows, state: [{"k": "a"}]), "found {'k': 'a'}"),
        (per_key(lambda key, rows, state: _set(state, "n", "x")), "a value of the state; wanted int64 in column 'n'"),
        (per_key(lambda key, rows, state: _set(state, "m", 1)), "AttributeError"),
        (per_key(lambda key, rows, state: state.set_timer(at(1))), "declare them"),
        (per_key(lambda key, rows, state: 1 / 0), "Mine.process raised ZeroDivisionError: division by zero (for key 'a')"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, processor: Any, said: str) -> None:
    message = fails(processor, tmp_path)
    assert message.startswith("process at app.py:7: Mine")
    assert said in message


def test_an_exception_shows_the_lines_of_the_user() -> None:
    def deep(v: int) -> int:
        return v // 0

    message = fails(per_key(lambda key, rows, state: [(key, deep(rows[0].v))]), Path())
    assert "return v // 0" in message
    assert "headrace/operators" not in message


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    twice = vectorised(lambda rows, state: state.put(pa.table({"k": ["a", "a"], "n": [1, 2], "word": ["", ""]})))
    assert "wanted each key once" in fails(twice, tmp_path)
    again = vectorised(
        lambda rows, state: state.map("seen").put(pa.table({"k": ["a"] * 2, "item": [1, 1], "twice": [1, 2], "x": ["", ""]}))
    )
    assert "wanted each key once" in fails(again, tmp_path, maps=(SEEN,))


def test_a_trial_on_no_rows_finds_wrong_columns() -> None:
    with pytest.raises(ProcessorError, match="wanted the columns k string, n int64"):
        Process(vectorised(lambda rows, state: rows), shape(), False).trial()
    Process(TimersVectorised(), shape(timers=TimerClock.EVENT), True).trial()
