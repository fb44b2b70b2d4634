"""A page: headline figures, plots, tables and text, in one HTML file."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.report.plots import Plot, svg


@dataclass(frozen=True)
class Headline:
    """A headline figure."""

    value: str
    label: str


@dataclass(frozen=True)
class Page:
    """The content of a report, in the order of the page."""

    title: str
    subtitle: str
    verdict: str
    good: bool
    figures: Sequence[Headline] = ()
    plots: Sequence[Plot] = ()
    tables: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Tables by heading: rows of a name and a value."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Texts by heading, such as source code and plans, shown as they are."""


def render(page: Page) -> str:
    """The whole HTML document."""
    figures = "".join(f"<div><b>{_text(f.value)}</b><span>{_text(f.label)}</span></div>" for f in page.figures)
    parts = [
        f"<header><h1>{_text(page.title)}</h1><p>{_text(page.subtitle)}</p>",
        f'<p class="verdict {"good" if page.good else "bad"}">{_text(page.verdict)}</p></header>',
        f'<section class="figures">{figures}</section>' if figures else "",
    ]
    if page.plots:
        parts.append(f'<section class="plots">{"".join(_plot(p) for p in page.plots)}</section>')
    if page.tables:
        parts.append(f'<section class="tables">{"".join(_table(h, rows) for h, rows in page.tables.items())}</section>')
    parts += [f"<section><h2>{_text(heading)}</h2><pre>{_text(text)}</pre></section>" for heading, text in page.texts.items()]
    return _DOCUMENT.format(title=_text(page.title), style=_STYLE, body="\n".join(parts))


def _plot(plot: Plot) -> str:
    note = f"<p>{_text(plot.note)}</p>" if plot.note else ""
    return f"<figure><figcaption>{_text(plot.title)}</figcaption>{svg(plot)}{note}</figure>"


def _table(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<div><h2>{_text(heading)}</h2><table>{lines}</table></div>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)


_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light; --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb; --page: #f6f7f9; --card: #ffffff; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 0 0 8px; }
header p { margin: 0 0 12px; color: var(--muted); max-width: 75ch; }
header .verdict { display: inline-block; margin: 4px 0 0; padding: 5px 12px; border-radius: 6px; font-weight: 600; }
.good { background: #e3f4ea; color: #1c6b40 !important; }
.bad { background: #fbe5e3; color: #9b2c22 !important; }
section { margin-top: 24px; }
.figures { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1px; background: var(--line);
  border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.figures div { background: var(--card); padding: 14px 16px; }
.figures b { display: block; font-size: 22px; line-height: 1.25; font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures span { color: var(--muted); font-size: 13px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px 10px; min-width: 0; }
.plots > figure:only-child { max-width: 640px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
figure p { margin: 4px 0 0; color: var(--muted); font-size: 13px; }
figure svg { display: block; width: 100%; height: auto; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 24px 32px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--muted); font-weight: 400; width: 36%; }
pre { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px; overflow-x: auto;
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 720px) { .figures { grid-template-columns: repeat(2, 1fr); } }
@media (max-width: 520px) { main { padding: 20px 12px 32px; } figure { padding: 12px 10px 8px; } h1 { font-size: 24px; } }
@media print { body { background: #fff; } figure, pre { break-inside: avoid; } }
"""
