"""Sphinx settings of the documentation: `make docs` builds it in site/. Any warning, such as a broken link, fails the build."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import headrace

project = "Headrace"
version = release = headrace.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated_pages"]
nitpicky = True
# Other packages have no pages here. Of ours, some are type variables; ids are kinds of text and numbers; two are only passed on.
nitpick_ignore_regex = [
    ("py:.*", r"(?!headrace\.).*"),
    ("py:class", r"headrace\.(api\.(grouped\.Stream|(naming|shedding)\.Frame)|ids\.\w+|state\.gaps\.Gap|runtime\.sinks\.upsert\.Upsert)"),
]

# Otherwise two hyphens become a dash, also in the options of commands.
smartquotes = False

# Links to headings, as GitHub makes them: docs/engineering-notes.md#what-we-learned.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"Headrace {version}"
html_copy_source = False
html_show_copyright = False
