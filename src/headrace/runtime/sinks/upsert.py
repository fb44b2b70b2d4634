"""``hr.upsert``: results are merged by their keys into a table of PostgreSQL, each version once.

    one transaction:   lock the query's row in headrace_versions -> this version or later? done
                       rows -> temporary table -> INSERT ... ON CONFLICT DO UPDATE -> note the version -> commit

So the table never shows a part of a version. A version that comes again, after a crash or from a driver that was replaced, changes nothing.
The rows go through the driver, because a transaction belongs to one connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from headrace.errors import SinkError
from headrace.logs import logger
from headrace.operators.kernel import OutputMode

VERSIONS = "headrace_versions"
_TYPES: dict[type[T.DataType], str] = {
    T.StringType: "text",
    T.LongType: "bigint",
    T.IntegerType: "integer",
    T.ShortType: "smallint",
    T.ByteType: "smallint",
    T.DoubleType: "double precision",
    T.FloatType: "real",
    T.BooleanType: "boolean",
    T.TimestampType: "timestamptz",
    T.TimestampNTZType: "timestamp",
    T.DateType: "date",
    T.BinaryType: "bytea",
}
_BATCH_ROWS = 10_000
_log = logger(__name__)


class Upsert:
    """A function for ``foreachBatch``; ``hr.upsert`` makes it."""

    def __init__(self, address: str, table: str, keys: tuple[str, ...], name: str, where: str) -> None:
        self._address, self._table, self._keys, self._name, self._where = address, table, keys, name, where
        self._given = name
        self._replaces = False
        self._ready = False

    def identify(self, query: str, number: int, mode: OutputMode) -> None:
        """Called when a Headrace query starts with this sink: it has an id of its own, under which versions are noted."""
        self._name = self._given or f"{query}-{number}"
        self._replaces = mode is OutputMode.COMPLETE
        self._ready = False

    def __call__(self, batch: DataFrame, version: int) -> None:
        import psycopg

        self._check(batch)
        try:
            # The connection's context is a transaction, which is rolled back by an exception.
            with psycopg.connect(self._address, application_name=f"headrace {self._name}") as connection:
                self._merge(connection.cursor(), batch, version)
        except psycopg.Error as refused:
            raise SinkError(where=self._place, wanted=f"to merge version {version}", found=_said(refused), hint=_hint(refused)) from refused

    @property
    def _place(self) -> str:
        # Not the address, which may have a password.
        return f"table {self._table} ({self._where})"

    def _check(self, batch: DataFrame) -> None:
        missing = [key for key in self._keys if key not in batch.columns]
        if missing:
            raise SinkError(where=self._place, wanted=f"keys among the columns {', '.join(batch.columns)}", found=", ".join(missing))
        if not self._name:
            raise SinkError(
                where=self._place,
                wanted="a name under which versions are noted",
                found="a query of Spark's own, which has none",
                hint="give hr.upsert(..., name='...') one that no other query has, and a new one with a new checkpoint",
            )

    def _merge(self, cursor: Any, batch: DataFrame, version: int) -> None:
        from psycopg import sql

        table, columns = sql.Identifier(*self._table.split(".")), sql.SQL(", ").join(map(sql.Identifier, batch.columns))
        if not self._ready:
            self._create(cursor, batch.schema, table)
        if not self._is_next(cursor, version):
            _log.info("%s has version %d already", self._place, version)
            return
        copied = sql.Identifier("headrace_batch")
        cursor.execute(sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} LIMIT 0").format(copied, columns, table))
        types = [each.type_code for each in cursor.execute(sql.SQL("SELECT * FROM {}").format(copied)).description]
        with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(copied)) as copy:
            copy.set_types(types)
            for row in self._rows(batch):
                copy.write_row(row)
        if self._replaces:
            cursor.execute(sql.SQL("DELETE FROM {}").format(table))
        keys = sql.SQL(", ").join(map(sql.Identifier, self._keys))
        others = [sql.Identifier(name) for name in batch.columns if name not in self._keys]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
        merge = "INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT ({}) DO "
        cursor.execute(sql.SQL(merge).format(table, columns, columns, copied, keys) + (action if others else sql.SQL("NOTHING")))
        cursor.execute(f"UPDATE {VERSIONS} SET version = %s, written = now() WHERE query = %s", (version, self._name))
        self._ready = True

    def _rows(self, batch: DataFrame) -> Iterator[tuple[Any, ...]]:
        at = [batch.columns.index(key) for key in self._keys]
        for part in batch.toArrow().to_batches(_BATCH_ROWS):
            for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
                if any(row[i] is None for i in at):
                    hint = "filter them out, or put a value in their place: F.coalesce('key', F.lit(''))"
                    raise SinkError(where=self._place, wanted="keys that are not null: nulls are never equal", found=str(row), hint=hint)
                yield row

    def _create(self, cursor: Any, schema: T.StructType, table: Any) -> None:
        """Create the table of versions, and the user's table if there is none."""
        from psycopg import sql

        # Two queries that start at once would both try to create it.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (VERSIONS,))
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {VERSIONS} (query text PRIMARY KEY, version bigint NOT NULL, written timestamptz NOT NULL)"
        )
        if cursor.execute("SELECT to_regclass(%s)", (table.as_string(cursor),)).fetchone()[0] is None:
            columns = [sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(self._type(each))) for each in schema.fields]
            keys = sql.SQL(", ").join(map(sql.Identifier, self._keys))
            cursor.execute(sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(table, sql.SQL(", ").join(columns), keys))
            _log.info("created %s", self._place)

    def _type(self, column: T.StructField) -> Any:
        if isinstance(column.dataType, T.DecimalType):
            return f"numeric({column.dataType.precision}, {column.dataType.scale})"
        found = _TYPES.get(type(column.dataType))
        if found is None:
            hint = "select its parts, or F.to_json(column); a table that is there already may have any types that PostgreSQL can convert"
            found = f"column {column.name} of type {column.dataType.simpleString()}"
            raise SinkError(where=self._place, wanted="columns of simple types", found=found, hint=hint)
        return found

    def _is_next(self, cursor: Any, version: int) -> bool:
        """Take the lock of this query, which lasts until the end of the transaction. False if the version was merged before."""
        cursor.execute(f"INSERT INTO {VERSIONS} VALUES (%s, -1, now()) ON CONFLICT DO NOTHING", (self._name,))
        noted = cursor.execute(f"SELECT version FROM {VERSIONS} WHERE query = %s FOR UPDATE", (self._name,)).fetchone()[0]
        return bool(noted < version)


def _said(refused: BaseException) -> str:
    return str(refused).strip().split("\n")[0]


def _hint(refused: Any) -> str:
    hints = {
        "42P10": "the table needs a primary key or unique index on just these keys",
        "21000": "a version may have each key once: aggregate by the keys, or choose keys that identify a row",
    }
    return hints.get(getattr(refused, "sqlstate", None) or "", "")
