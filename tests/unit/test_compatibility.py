"""docs/compatibility.md is generated; it must say what the programs of tests/conformance say."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

from tests.conformance.program import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "compatibility.py"))
    assert (ROOT / "docs" / "compatibility.md").read_text() == script["page"]()


def test_each_program_has_a_name_of_its_own() -> None:
    assert PROGRAMS
    assert not [name for name, count in Counter(each.name for each in PROGRAMS).items() if count > 1]
