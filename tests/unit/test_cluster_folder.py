"""`headrace cluster` trusts no files of other users, and the commands that it prints work.

Processes, signals and files are real. Only Spark's launcher is a small script, which starts faster than two JVMs. Tests in
tests/cluster start a real cluster.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import app, run
from headrace.errors import ClusterError
from headrace.runtime import standalone

LAUNCHER = f"""#!{sys.executable}
import http.server, sys
if "org.apache.spark.deploy.worker.Worker" in sys.argv:
    import signal
    signal.pause()
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"aliveworkers": 1}}')
port = int(sys.argv[sys.argv.index("--webui-port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "home" / "bin" / "spark-class"
    script.parent.mkdir(parents=True)
    script.write_text(LAUNCHER)
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "home"))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of the cluster's, though its command looks like Spark's."""
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", "org.apache.spark.deploy.master.Master"])
    yield process
    process.kill()
    process.wait()


def planted(folder: Path, **other: object) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    body = {"port": 1, "ui_port": 1, "pids": [], "began": [], "cores": 1, "memory": "1g"} | other
    (folder / "cluster.json").write_text(json.dumps(body))


def test_the_command_that_up_prints_stops_it(launcher: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "it's a [bold] name"
    code = run(app, ["cluster", "up", "--workers", "1", "--port", "0", "--ui-port", "0", "--dir", str(folder)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "cluster.json").stat().st_mode) == 0o600
        assert run(app, ["cluster", "up", "--port", "0", "--ui-port", "0", "--dir", str(folder)]) == 2
        refused = capsys.readouterr().err
        command = next(line.removeprefix("stop it").strip() for line in printed.splitlines() if line.startswith("stop it"))
        assert command in refused.replace("\n", " ")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "is down" in done.stdout
        assert not folder.exists()
    finally:
        left = standalone.known(folder) if folder.exists() else None
        if left is not None:
            standalone.down(left)


def test_without_a_folder_the_commands_need_none() -> None:
    cluster = standalone.Cluster(standalone.default_folder(), 7077, 8080, (), (), 1, "1g")
    assert cluster.down_command == "headrace cluster down"
    assert standalone.up_command(Path("/elsewhere")) == "headrace cluster up --dir /elsewhere"


def test_a_folder_that_is_a_link_is_refused_and_left(launcher: None, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    link = tmp_path / "cluster"
    link.symlink_to(precious)
    for use in (standalone.known, lambda folder: list(standalone.up(folder, 1, 1, "1g", 0, 0))):
        with pytest.raises(ClusterError, match="symbolic link"):
            use(link)
    assert not any(precious.iterdir())


def test_a_folder_that_others_can_write_to_is_refused(launcher: None, tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "cluster"
    planted(folder, pids=[stranger.pid], began=[standalone._began(stranger.pid)])
    folder.chmod(0o777)
    assert run(app, ["cluster", "down", "--dir", str(folder)]) == 2
    with pytest.raises(ClusterError, match="others can write"):
        list(standalone.up(folder, 1, 1, "1g", 0, 0))
    assert stranger.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    planted(folder)
    os.chown(folder, 12345, -1)
    with pytest.raises(ClusterError, match="belongs to user 12345"):
        standalone.known(folder)


def test_a_note_that_is_a_link_or_another_user_s_is_not_believed(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "cluster"
    about = {"pids": [stranger.pid], "began": [standalone._began(stranger.pid)]}
    planted(folder, **about)
    assert standalone.known(folder) is not None
    (folder / "cluster.json").rename(tmp_path / "note")
    (folder / "cluster.json").symlink_to(tmp_path / "note")
    assert standalone.known(folder) is None


@pytest.mark.parametrize("began", [0, 1, "x", None, True])
def test_a_process_that_began_at_another_time_is_not_signalled(
    tmp_path: Path, stranger: subprocess.Popen[bytes], began: object, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(tmp_path / "cluster", pids=[stranger.pid], began=[began])
    assert run(app, ["cluster", "down", "--dir", str(tmp_path / "cluster")]) == 2
    assert "found none" in capsys.readouterr().err.replace("\n", " ")
    assert stranger.poll() is None


@pytest.mark.parametrize("pids", [[-1], [0], [1], ["1"], [True], [2.0], {}, 7])
def test_numbers_that_are_no_process_s_are_not_signalled(tmp_path: Path, pids: object) -> None:
    planted(tmp_path / "cluster", pids=pids, began=[0])
    assert standalone.known(tmp_path / "cluster") is None


def test_a_log_that_is_a_link_does_not_lead_out_of_the_folder(launcher: None, tmp_path: Path) -> None:
    folder, precious = tmp_path / "cluster", tmp_path / "precious"
    planted(folder)
    precious.write_text("three years")
    (folder / "master.log").symlink_to(precious)
    with standalone.running(folder, workers=1) as cluster:
        assert len(cluster.alive()) == 2
    assert precious.read_text() == "three years"
