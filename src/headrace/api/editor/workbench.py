"""The editor's work in one session: what `headrace.dashboard.editor.workbench.Workbench` asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.api.editor.checking import NewWriter, StartSeveral, checked, columns_of
from headrace.api.editor.marks import TextError, short
from headrace.api.editor.sampling import SECONDS_MAX, Sampling, small
from headrace.api.editor.texts import Built, built_from_python, built_from_sql, does_more, frames_by_name, parsed
from headrace.api.query import HeadraceQuery
from headrace.api.spark_frame import SparkFrame
from headrace.dashboard.editor.workbench import Launch, Outlet, Wanted
from headrace.errors import HeadraceError, QueryError
from headrace.frontend.own import forgotten
from headrace.graph.nodes import Rows
from headrace.logs import logger, suppressed
from headrace.runtime.options import CHECKPOINT
from headrace.spark.gateway import context_is_stopped, same_session
from headrace.spark.sql_text import copy_of
from headrace.spark.streaming import source_names

_log = logger(__name__)
SQL = "sql"


class _Holder:
    """Rows that were built by methods of ``hr.stream``, held as a stream holds them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows


class SessionWorkbench:
    """Checks, tries, starts and replaces queries in a session. Several threads use it."""

    def __init__(self, session: SparkSession, new_writer: NewWriter, start: StartSeveral) -> None:
        self.session, self._new_writer, self._start = session, new_writer, start
        self._queries: list[HeadraceQuery] = []
        self._lock = threading.Lock()
        self._functions: dict[str, list[str]] = {}

    @property
    def is_over(self) -> bool:
        """True if the session was stopped."""
        return context_is_stopped(self.session)

    def offer(self, query: HeadraceQuery, session: SparkSession) -> None:
        """From now on, the query can be replaced, if it belongs to this session: texts are read with the views of this one."""
        if not same_session(session, self.session):
            _log.info("the editor is that of another session, and cannot replace this query", query=query._engine.checkpoint.location)
            return
        with self._lock:
            self._queries = [each for each in self._queries if each.isActive and each is not query] + [query]

    # What can be read

    def frames_of_streams(self) -> dict[str, DataFrame]:
        """The streams by name: the session's temporary views that are streaming."""
        found = {}
        for row in self.session.sql("SHOW VIEWS").collect():
            if row.isTemporary and not row.namespace:
                # A view may have become invalid, or vanish meanwhile.
                with suppressed(_log, f"the view {row.viewName} cannot be read", Exception):
                    frame = self.session.table("`" + row.viewName.replace("`", "``") + "`")
                    if frame.isStreaming:
                        found[str(row.viewName)] = frame
        return found

    def streams(self) -> list[dict[str, Any]]:
        """The streams with their columns."""
        return [
            {"name": name, "columns": columns_of(frame.schema), "sources": list(dict.fromkeys(source_names(frame)))}
            for name, frame in self.frames_of_streams().items()
        ]

    def functions(self) -> dict[str, list[str]]:
        """Names of functions, for completion."""
        if not self._functions:
            sql = [str(row[0]) for row in self.session.sql("SHOW FUNCTIONS").collect()]
            python = [name for name in dir(F) if not name.startswith("_") and callable(getattr(F, name)) and name[0].islower()]
            self._functions = {"sql": [each for each in sql if each.isidentifier()], "pyspark": python}
        return self._functions

    # Texts

    def check(self, wanted: Wanted) -> dict[str, Any]:
        """Analyse and plan a text. What is wrong with it is in ``errors``."""
        try:
            if wanted.language != SQL and not wanted.executes:
                found = does_more(parsed(wanted.text))
                if found is not None:
                    line, name = found
                    why = f"line {line}: {name} may do more than build a DataFrame, so this text is only executed when you say so"
                    return {"errors": [], "waits": why}
            with forgotten():
                built = self._built(wanted)
                return {"errors": [], **checked(built, wanted.mode, self._new_writer, self._start)}
        except TextError as wrong:
            return {"errors": [each.to_json() for each in wrong.marks]}

    def frames(self, text: str, names: Mapping[str, str]) -> dict[str, Any]:
        """Columns of the steps of a drawing's PySpark text, and what is wrong with them."""
        streams = self.frames_of_streams()
        found, marks = frames_by_name(self.session, text, streams)
        return {
            "columns": {box: columns_of(found[name].schema) for name, box in names.items() if name in found},
            "errors": [each.to_json() for each in marks],
        }

    def sample(self, wanted: Wanted, ended: threading.Event) -> dict[str, Any]:
        """First results, of each result of the text."""
        # Its own session: who waits for queries of the program's session must hear nothing of samples.
        session = copy_of(self.session)
        said: list[str] = []
        streams = {}
        for name, frame in self.frames_of_streams().items() if wanted.language != SQL else ():
            streams[name], each = small(frame, session)
            said += each

        def build() -> Built:
            return built_from_sql(session, wanted.text) if wanted.language == SQL else built_from_python(session, wanted.text, streams)

        with forgotten():
            return self._tried("sample", build, lambda built: self._sampled(built, wanted, said, ended))

    def _sampled(self, built: Built, wanted: Wanted, said: list[str], ended: threading.Event) -> dict[str, Any]:
        try:
            checked(built, wanted.mode, self._new_writer, self._start)
        except TextError as wrong:
            return {"errors": [each.to_json() for each in wrong.marks]}
        tables = []
        sampling = Sampling(self._new_writer, ended, SECONDS_MAX / (2 * len(built.results)))
        for name, rows in built.results.items():
            if isinstance(rows, SparkFrame):
                # What the text reads beside the named streams.
                frame, said = small(rows.frame, rows.session)
                rows = SparkFrame(frame)
            if not ended.is_set():
                tables.append({"result": name, **sampling.sample(rows, said, wanted.mode)})
        return {"errors": [], "tables": tables}

    def _built(self, wanted: Wanted) -> Built:
        if wanted.language == SQL:
            return built_from_sql(self.session, wanted.text)
        return built_from_python(self.session, wanted.text, self.frames_of_streams())

    # Queries that run

    def start(self, wanted: Wanted, launch: Launch) -> dict[str, Any]:
        """Start a query, and return where its page is."""
        return self._tried("start", lambda: self._built(wanted), lambda built: self._started(built, launch))

    def _started(self, built: Built, launch: Launch) -> dict[str, Any]:
        writers = self._writers(built, launch.outlets, {**launch.options, "headrace.ui": "true", "headrace.uiEditor": "true"})
        for writer in writers:
            if launch.trigger:
                writer.trigger(**launch.trigger)
        if len(writers) > 1:
            if not launch.checkpoint:
                raise QueryError(where="start", wanted="a checkpoint, because the query has several sinks", found="none")
            query = self._start(*writers, checkpointLocation=launch.checkpoint, queryName=launch.name or None, **launch.trigger)
        else:
            (writer,) = writers
            if launch.checkpoint:
                writer.option(CHECKPOINT, launch.checkpoint)
            if launch.name:
                writer.queryName(launch.name)
            query = writer.start()
        # With headrace.fallback=spark it may be a query of Spark's, which has no page.
        return {"errors": [], "page": (getattr(query, "ui", None) or "").rpartition("#/")[2], "name": query.name}

    def _writers(self, built: Built, outlets: tuple[Outlet, ...], options: Mapping[str, str]) -> list[Any]:
        by_name = {each.result: each for each in outlets}
        missing = [name for name in built.results if name not in by_name]
        if missing:
            raise QueryError(where="start", wanted=f"a sink for each result: {', '.join(built.results)}", found=f"none for {missing[0]!r}")
        writers = []
        for name, rows in built.results.items():
            outlet = by_name[name]
            writer = self._new_writer(rows).format(outlet.format).outputMode(outlet.mode).options(**options)
            writers.append(writer.options(**{name: value for name, value in outlet.options.items() if value != ""}))
        return writers

    def _tried(self, where: str, build: Callable[[], Built], use: Callable[[Built], dict[str, Any]]) -> dict[str, Any]:
        """What becomes of a text. Mistakes in it are in ``errors``; what cannot be done with it raises."""
        try:
            built = build()
        except TextError as wrong:
            return {"errors": [each.to_json() for each in wrong.marks]}
        try:
            return use(built)
        except HeadraceError:
            raise
        except Exception as refused:
            raise QueryError(where=where, found=short(refused)[1]) from refused

    def replaceable(self) -> list[str]:
        """Checkpoints of the queries that run."""
        return [each._engine.checkpoint.location for each in self._running()]

    def _running(self) -> list[HeadraceQuery]:
        with self._lock:
            self._queries = [each for each in self._queries if each.isActive]
            return list(self._queries)

    def replace(self, wanted: Wanted, location: str, backfill: bool, rename: Mapping[str, str], dry_run: bool) -> dict[str, Any]:
        """Give a running query the plan of a text, or say what that would do."""
        query = next((each for each in self._running() if each._engine.checkpoint.location == location), None)
        if query is None:
            raise QueryError(where="replace", wanted="a query that runs in this program", found=location)
        return self._tried("replace", lambda: self._built(wanted), lambda built: self._replaced(query, built, backfill, rename, dry_run))

    def _replaced(self, query: HeadraceQuery, built: Built, backfill: bool, rename: Mapping[str, str], dry_run: bool) -> dict[str, Any]:
        if len(built.results) != 1:
            found = f"{len(built.results)}: {', '.join(built.results)}"
            hint = "replace a query with several sinks from its program, with writers"
            raise QueryError(where="replace", wanted="a text with one result", found=found, hint=hint)
        (rows,) = built.results.values()
        new = rows.frame if isinstance(rows, SparkFrame) else _Holder(rows)
        with query._replacing:
            written = query._written.replaced((new,), query._engine.checkpoint.location, "replace")
            done = query._take(written, "replace", backfill=backfill, rename=rename, dry_run=dry_run)
        return {"errors": [], **done.to_json(), "words": str(done)}
