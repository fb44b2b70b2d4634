"""The command line as a whole: it starts at once, fits 80 columns, completes words, and its commands are all listed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import cli
from headrace.cli import COMMANDS, app, run

HELP_CPU_S_MAX = 0.3
HEAVY = ("numpy", "pandas", "pyarrow", "pyspark", "scipy", "matplotlib", "rich")


def cpu_s(*command: str, **variables: str) -> tuple[float, str]:
    """The CPU time that a process of ours took, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "80", **variables}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def test_help_starts_at_once() -> None:
    # The best of three: the first one may have to compile, or share its core.
    assert min(cpu_s(sys.executable, "-m", "headrace", "--help")[0] for _ in range(3)) < HELP_CPU_S_MAX


@pytest.mark.parametrize("program", ["import headrace", "import headrace.cli"])
def test_importing_it_imports_nothing_heavy(program: str) -> None:
    code = f"{program}; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert cpu_s(sys.executable, "-c", code)[1].strip() == "[]"


def test_the_help_fits_80_columns_and_cuts_nothing() -> None:
    _, text = cpu_s(sys.executable, "-m", "headrace", "--help")
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.split("Commands:")[1]
    for name, lazy in COMMANDS.items():
        assert lazy.about in text, name


def test_every_command_is_listed_and_loads() -> None:
    helpers = {"__init__", "lazy", "keys", "top_view", "decisions", "replay", "replace"}
    files = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    assert files - helpers == {lazy.module for lazy in COMMANDS.values()}
    for name, lazy in COMMANDS.items():
        assert lazy.loaded(name).name == name


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--version"]) == 0
    assert capsys.readouterr().out == f"headrace {headrace.__version__}\n"


def test_a_shell_completes_commands() -> None:
    asked = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": "headrace c", "COMP_CWORD": "1"}
    command = [sys.executable, "-X", "importtime", "-c", "from headrace.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, **asked})
    assert done.stdout.split() == ["ctl", "chaos", "cluster"]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "headrace.cli" in imported
    assert not imported & set(HEAVY)


def test_the_verb_comes_first_and_the_older_order_still_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["ctl", "status", str(tmp_path)], ["ctl", str(tmp_path), "status"]):
        assert run(app, words) == cli.EXIT_ERROR
        said = capsys.readouterr().err
        assert "checkpoint of a Headrace query" in said
        assert ("note: the verb comes first now" in said) == (words[1] != "status")


@pytest.mark.parametrize("words", [["nothing"], ["ctl"], ["ctl", "rescale"], ["ctl", "rescale", "ckpt", "0"], ["state", "ls", "--nothing"]])
def test_a_wrong_argument_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, words) == cli.EXIT_ERROR
    assert "Usage: headrace" in capsys.readouterr().err
