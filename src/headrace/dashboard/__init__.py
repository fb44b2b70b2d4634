"""The monitor: a server and a page that show the queries of a program, or of some checkpoints, and change those that run.

    checkpoint/headrace/history  --read-->  queries.py  --JSON, server-sent events-->  static/*.js in a browser
    control endpoint of the query  <--ask--  pages/*.py  <--POST-----------------------  (with the cookie)

The server reads what the query has written to its checkpoint, and asks its control endpoint. So it is the same inside of the query's
program (`live.py`, started with the first query) and elsewhere (``headrace dashboard``), and works after the end of a query, too. Inside a
program, it is a socket and a thread that waits; uvicorn and the rest are imported when somebody first connects.

A page has two modules, one on each side:

- ``pages/NAME.py`` has ``routes(known) -> list[Route]``. `known` (`queries.Queries`) finds queries by the id in the path. An endpoint that
  is a plain function runs in a thread of its own, so it may read files and wait. It returns `answers.data(...)`, and raises our errors,
  which become ``{"error": text}``. Add the module to `pages.PAGES`. Which requests are let in is not its business: `security.py` has
  checked Host, Origin, content type and cookie before any route is called. Everything under ``/api/`` needs the cookie.
- ``static/pages/NAME.js`` exports ``{id, title, Page, shownFor}``; add it to ``static/pages/index.js``. ``Page`` is a Preact component that
  gets ``{query, live}``: the summary of the query, and what was pushed last. ``static/ui.js`` has tables, buttons and messages,
  ``static/api.js`` has `get` and `post`, ``static/chart.js`` series, ``static/graph.js`` the graph. No inline script, style or event
  handler is possible (CSP), nothing is loaded from elsewhere, and text is only ever set as text.

The query editor (``static/pages/editor.js``, ``static/editor``, ``pages/editor.py``, ``editor/``) is about no single query: it has an
address of its own (``#/editor``), is loaded only when it is opened, and exists only in a program that has switched it on
(`Queries.workbench`).

Static files are listed in pyproject.toml (package-data), vendored libraries with their licences in ``static/vendor``.
"""
