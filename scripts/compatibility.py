"""Writes docs/compatibility.md from the programs of tests/conformance. With --check, only says whether the page is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.conformance import programs  # noqa: E402
from tests.conformance.program import NOT_YET, PROGRAMS, SPARK_REFUSES, WORKS, Program  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
HEAD = """# Compatibility

Each idiom here is a small program in `tests/conformance/programs`. The tests run it on plain Spark and on Headrace, with one line changed,
over the same files, and compare the results after each file. Headrace begins with one instance and is rescaled to three in the middle. Some
also run with all files there at the start, one in each batch, and some are stopped and started again in the middle. This page is generated
from these programs by `scripts/compatibility.py`.

{works} idioms work and give Spark's results; {refused} are refused by Spark and by Headrace in Spark's words; {missing} are not there yet.
[Unmodified PySpark programs](pyspark.md) describes the front end.
"""


def page() -> str:
    """The text of the page."""
    assert programs.ALL
    counts = {claim: sum(each.claim == claim for each in PROGRAMS) for claim in (WORKS, SPARK_REFUSES, NOT_YET)}
    lines = [HEAD.format(works=counts[WORKS], refused=counts[SPARK_REFUSES], missing=counts[NOT_YET])]
    for module in programs.ALL:
        group = module.__name__.rsplit(".", 1)[-1]
        title = (module.__doc__ or group).strip().rstrip(".")
        lines += [f"## {title}", "| idiom | output mode | on Headrace |", "| --- | --- | --- |"]
        lines += [_row(each) for each in PROGRAMS if each.group == group]
        lines.append("")
    return "\n".join(lines)


def _row(program: Program) -> str:
    words = {WORKS: "works", SPARK_REFUSES: f"Spark refuses it: {program.why}", NOT_YET: f"not yet: {program.why}"}
    idiom = program.idiom.replace("|", "\\|")
    return f"| {idiom} | {program.mode} | {words[program.claim]} |"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else "docs/compatibility.md is out of date: run scripts/compatibility.py")
    PAGE.write_text(page())
