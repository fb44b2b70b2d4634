"""Where a checkpoint and its state are, and the note by which the one leads to the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.places import NOTE, Places
from headrace.runtime.private import private_folder
from headrace.state.hdfs import hdfs_store
from headrace.state.requests import Settings


def started(location: Path, state: str = "") -> Checkpoint:
    checkpoint = Checkpoint(str(location), state=state)
    checkpoint.open({}, {"identities": {}, "sources": [], "retired": []})
    return checkpoint


def test_state_is_found_again_without_the_option(tmp_path: Path) -> None:
    there = started(tmp_path / "logs", str(tmp_path / "state"))
    assert (tmp_path / "state" / "headrace" / "query.json").exists()
    assert [path.name for path in (tmp_path / "logs" / "headrace").iterdir()] == ["elsewhere.json"]
    again = Checkpoint.existing(str(tmp_path / "logs"))
    assert again.identity() == there.identity()
    assert again.location == str(tmp_path / "logs")
    with pytest.raises(CheckpointMismatchError, match=f"found that it is at {tmp_path}/state"):
        Checkpoint(str(tmp_path / "logs"), state=str(tmp_path / "other"))


def test_state_that_is_at_the_location_does_not_move(tmp_path: Path) -> None:
    started(tmp_path / "logs")
    with pytest.raises(CheckpointMismatchError, match="to move state"):
        Checkpoint(str(tmp_path / "logs"), state=str(tmp_path / "other"))
    assert Checkpoint(str(tmp_path / "logs"), state=str(tmp_path / "logs")).is_there
    assert not (tmp_path / "logs" / NOTE).exists()


def test_a_note_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    started(tmp_path / "logs", str(tmp_path / "state"))
    (tmp_path / "logs" / NOTE).write_text("{")
    with pytest.raises(CorruptStateError, match="where the query's state is"):
        Places.of(str(tmp_path / "logs"))


def test_settings_are_asked_for_stores_behind_a_network_only(tmp_path: Path) -> None:
    def settings() -> Settings:
        raise AssertionError

    Places.of(str(tmp_path), settings=settings)
    with pytest.raises(AssertionError):
        Places.of("webhdfs://nowhere:1/x", settings=settings)


def test_a_private_folder_that_others_can_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = private_folder("s3a://b/q")
    assert folder == private_folder("s3a://b/q") != private_folder("s3a://b/other")
    folder.chmod(0o777)
    with pytest.raises(CheckpointError, match="a folder of this user that nobody else can write to"):
        private_folder("s3a://b/q")


def test_name_nodes_are_those_of_hadoops_settings() -> None:
    plain = hdfs_store("hdfs://one:8020/q", Settings())
    assert (plain.name_nodes, plain.where("x")) == (("http://one:9870",), "hdfs://one:8020/q/x")
    service = (("dfs.ha.namenodes.s", "a, b"), ("dfs.namenode.http-address.s.a", "h1:50070"), ("dfs.namenode.http-address.s.b", "h2:50070"))
    assert hdfs_store("hdfs://s/q", Settings(service)).name_nodes == ("http://h1:50070", "http://h2:50070")
    default = Settings((("fs.defaultFS", "hdfs://one:8020"), ("dfs.namenode.http-address", "0.0.0.0:1234")))
    assert hdfs_store("hdfs:///q", default).name_nodes == ("http://one:1234",)
