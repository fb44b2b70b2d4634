"""Links between the documents lead to files and headings that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for part in ("docs", "benchmarks", "src") for path in (ROOT / part).rglob("*.md"))])
CODE = re.compile(r"^(```+).*?^\1[ \t]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def links(text: str) -> list[str]:
    """The targets of all links outside of code."""
    return [inline or reference for inline, reference in LINK.findall(CODE.sub("", text))]


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and Sphinx make them."""
    text = re.sub(r"^(```+).*?^\1[ \t]*$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return frozenset(anchor(heading) for heading in HEADING.findall(text))


def anchor(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def broken(document: Path, text: str) -> list[str]:
    """Relative links of a document that lead nowhere."""
    found = []
    for link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert not broken(document, document.read_text())


def test_a_broken_link_is_found() -> None:
    readme = ROOT / "README.md"
    text = "[a](docs/nowhere.md) [b](docs/operators.md#nothing) [c](#nothing) [d](docs/operators.md#windows) [e](#why) [f](https://g.org)"
    assert broken(readme, text) == ["docs/nowhere.md", "docs/operators.md#nothing", "#nothing"]


def test_links_in_code_do_not_count() -> None:
    assert links("```\n[a](b)\n```\n`[c](d)` [e](f)") == ["f"]


@pytest.mark.parametrize(
    ("heading", "wanted"),
    [("join and crossJoin", "join-and-crossjoin"), ("An hour (`make soak`)", "an-hour-make-soak"), ("[Fig. 3](x.md): a", "fig-3-a")],
)
def test_anchors_of_headings(heading: str, wanted: str) -> None:
    assert anchor(heading) == wanted
