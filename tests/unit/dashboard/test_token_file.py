"""The monitor's token from a file of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.dashboard.security import token_of
from headrace.errors import QueryError

TOKEN = "0123456789abcdef-_XY"


def test_the_token_is_what_the_file_says_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert token_of(str(file)) == TOKEN


def test_without_a_file_each_token_is_new() -> None:
    assert token_of("") != token_of("")
    assert len(token_of("")) >= 32


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (TOKEN, 0o640, "a file that only its owner can read; found mode 640"),
        (TOKEN, 0o604, "found mode 604"),
        ("short", 0o600, "16 to 200 letters, digits, - or _; found 5 characters"),
        ("two words of a token", 0o600, "found 20 characters"),
        ("", 0o600, "found 0 characters"),
        (None, 0, "a file that can be read; found [Errno 2]"),
    ],
)
def test_a_file_that_is_not_secret_or_easily_guessed_is_refused(tmp_path: Path, text: str | None, mode: int, message: str) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(QueryError) as refused:
        token_of(str(file))
    assert message in str(refused.value)
    assert text is None or not text or text not in str(refused.value).replace(str(file), "")
