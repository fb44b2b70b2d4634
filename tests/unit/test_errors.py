from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import errors
from headrace.errors import (
    CheckpointError,
    CorruptStateError,
    HeadraceError,
    InvariantError,
    MissingRunError,
    QueryError,
    StorageError,
    UnsupportedError,
    VersionNotFoundError,
    require,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadraceError)]


def example(kind: type[HeadraceError]) -> HeadraceError:
    path = {"path": "runs/3.arrow"}
    supported = {"supported": ["sum", "avg"]}
    extra = {CorruptStateError: path, MissingRunError: path, StorageError: path, UnsupportedError: supported}.get(kind, {})
    return kind("agg failed", wanted="a thing", where="agg", found="another", hint="change it", **extra)


def test_a_message_says_where_what_was_wanted_what_was_found_and_what_to_do() -> None:
    error = QueryError(where="groupBy", wanted="a column of the stream", found="'user'", hint="use one of src, dst")
    assert str(error) == "groupBy: wanted a column of the stream; found 'user'; use one of src, dst"


def test_parts_that_are_not_given_leave_no_trace() -> None:
    assert str(HeadraceError("the query has no sink")) == "the query has no sink"


def test_an_unsupported_feature_lists_what_is_supported() -> None:
    error = UnsupportedError(wanted="an algebraic aggregate", found="median", supported=["sum", "avg"])
    assert str(error) == "wanted an algebraic aggregate; found median; supported: sum, avg"


def test_a_corrupt_file_is_named() -> None:
    error = CorruptStateError(path="runs/3.arrow", wanted="checksum 1a", found="2b")
    assert error.path == "runs/3.arrow"
    assert str(error) == "runs/3.arrow: wanted checksum 1a; found 2b"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[HeadraceError]) -> None:
    error = example(kind)
    error.add_note("in batch 7")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.__notes__ == ["in batch 7"]


def test_the_tree_can_be_caught_by_its_branches() -> None:
    assert issubclass(UnsupportedError, QueryError)
    assert issubclass(CorruptStateError, CheckpointError)
    assert issubclass(VersionNotFoundError, CheckpointError)
    assert not issubclass(InvariantError, CheckpointError | QueryError)


def test_a_broken_invariant_is_reported_as_a_bug() -> None:
    require(True, "fine")
    with pytest.raises(InvariantError, match="runs are sorted; this is a bug in Headrace"):
        require(False, "runs are sorted")


def test_errors_that_a_user_can_see_are_public_and_need_no_spark() -> None:
    names = {kind.__name__ for kind in KINDS} - {"MissingRunError"}
    assert {name for name in headrace.__all__ if name.endswith("Error")} == names
    assert all(getattr(headrace, name) is getattr(errors, name) for name in names)
    program = "import headrace, sys; headrace.FencedError; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_every_public_error_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    assert not [name for name in headrace.__all__ if name.endswith("Error") and f"`{name}`" not in text and f".{name}`" not in text]
