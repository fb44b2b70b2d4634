"""What a user sees when user code fails or Ctrl-C is pressed, in a program of its own: the terminal's signal reaches all its processes."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.cli import app, run

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
TIMEOUT_S = 240
LINES_MAX = 8


@dataclass
class Ended:
    """A program that was interrupted."""

    code: int
    parts: dict[str, list[str]]
    """By part: what it printed to stderr, without Spark's own warnings."""
    folder: Path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("uncaught")
    command = [sys.executable, "-m", "tests.uncaught.program", str(folder)]
    # As in a terminal: a group of its own, all of which gets the signal.
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        try:
            assert program.stdout is not None
            if program.stdout.readline() == "running\n":
                os.killpg(program.pid, signal.SIGINT)
            _, stderr = program.communicate(timeout=TIMEOUT_S)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    parts: dict[str, list[str]] = {}
    for part in stderr.split("== ")[1:]:
        name, *lines = part.rstrip().split("\n")
        parts[name] = [line for line in lines if line and not re.match(r"\d\d/\d\d/\d\d .* WARN (ProcessingTimeExecutor|Garbage)", line)]
    assert "interrupt" in parts, stderr
    return Ended(program.returncode, parts, folder)


@pytest.mark.parametrize(
    ("part", "said", "where"),
    [
        ("udf", "LookupError: no value like 0", "failing_udf"),
        ("pandas", "LookupError: no frame like 0", "failing_frames"),
        ("processor", "LookupError: no key like it", "process"),
        ("stateful", "LookupError: no rows like these", "handleInputRows"),
        ("state", "LookupError: no state like it", "failing_state"),
        ("sink", "LookupError: no sink for 0", "failing_sink"),
    ],
)
def test_the_user_s_exception_and_line_come_first(ended: Ended, part: str, said: str, where: str) -> None:
    lines = ended.parts[part]
    assert lines[0] == said, "\n".join(lines)
    line = next(at for at, text in enumerate(PROGRAM.read_text().split("\n"), 1) if "LookupError" in text and said[13:24] in text)
    assert lines[-2 if "Spark's report" in lines[-1] or "HEADRACE" in lines[-1] else -1].startswith("headrace.")
    assert f'  File "{PROGRAM}", line {line}, in {where}' in lines
    assert len(lines) <= LINES_MAX, "\n".join(lines)
    assert "org.apache" not in "\n".join(lines)


def test_sparks_pages_are_in_the_file_that_is_named(ended: Ended) -> None:
    named = re.search(r"Spark's report is in (\S+);", "\n".join(ended.parts["udf"]))
    assert named is not None
    file = Path(named[1]) / "spark.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert "failing_udf" in text
    assert "\tat org.apache.spark" in text


def test_a_mistake_shows_the_user_s_line_and_none_of_ours(ended: Ended) -> None:
    lines = ended.parts["mistake"]
    assert lines[-1].startswith("headrace.QueryError: groupBy at program.py:")
    assert str(PROGRAM) in lines[-3]
    assert "src/headrace" not in "\n".join(lines)


def test_ctrl_c_lets_the_batch_finish_and_prints_no_traceback(ended: Ended, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ended.parts["interrupt"]
    assert lines == [
        "Ctrl-C: interrupt stops after its current batch; a second Ctrl-C breaks the batch off",
        "interrupt has stopped after batch 1; a restart goes on from there",
    ]
    # What a shell shows as 130.
    assert ended.code == -signal.SIGINT
    assert (ended.folder / "interrupt" / "commits" / "1").exists()
    assert run(app, ["state", "verify", str(ended.folder / "interrupt")]) == 0, capsys.readouterr()
