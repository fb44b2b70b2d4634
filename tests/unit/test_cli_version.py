from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headrace.cli import app, run
from headrace.cli.version import java_version
from headrace.errors import QueryError


def failing(error: BaseException) -> typer.Typer:
    application = typer.Typer(pretty_exceptions_enable=False)

    @application.command()
    def fail() -> None:
        raise error

    return application


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn colours off, so that the output is plain text even if colours are forced on."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "HEADRACE_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


def fake_java(folder: Path, script: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


def test_version_names_everything_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["version"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == ["headrace", "pyspark", "pyarrow", "python", "java"]
    assert lines["python"] == platform.python_version()
    assert lines["pyspark"].startswith("4.")


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, """echo 'Picked up options' >&2; echo 'openjdk version "21.0.1"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == 'openjdk version "21.0.1"'


def test_a_missing_java_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_version() == "not found: install Java 17 or newer, or set JAVA_HOME"


def test_a_java_home_without_java_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version().startswith("does not run (")
    assert java_version().endswith("point JAVA_HOME at Java 17 or newer, or unset it")


def test_an_error_becomes_a_message_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing(QueryError(wanted="a column", found="[user]")), []) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: wanted a column; found [user]\n"


def test_the_traceback_is_there_for_who_asks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TRACEBACK", "1")
    assert run(failing(QueryError("a column is required")), []) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.endswith("error: a column is required\n")


def test_an_interrupt_exits_with_the_code_of_the_signal() -> None:
    assert run(failing(KeyboardInterrupt()), []) == 130


def test_a_bug_is_not_dressed_up() -> None:
    with pytest.raises(ZeroDivisionError):
        run(failing(ZeroDivisionError()), [])


def test_a_wrong_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["version", "--no-such-option"]) == 2
    assert "no-such-option" in capsys.readouterr().err


def test_the_command_line_starts_without_spark() -> None:
    code = "import sys, headrace.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
