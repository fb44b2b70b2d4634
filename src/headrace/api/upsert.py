"""``hr.upsert``: the common case of a sink that is a table of a database."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.origin import user_line
from headrace.errors import QueryError
from headrace.runtime.sinks.upsert import Upsert


def upsert(address: str, table: str, keys: str | Sequence[str], name: str = "") -> Upsert:
    """Merge results into a table of PostgreSQL, exactly once: give this to ``foreachBatch``.

    - ``address``: how to connect, as ``postgresql://user@host/database`` or ``host=... dbname=...``. Passwords are better in a
      ``.pgpass`` file of the driver's user, or in ``PGPASSWORD``.
    - ``table``: the table, maybe with its schema: ``sales.totals``. It is created if it is not there; one that is there needs a primary
      key or unique index on the keys.
    - ``keys``: the columns that identify a row. A row with the same keys is replaced.
    - ``name``: under which versions are noted in the table ``headrace_versions``. Headrace queries have an id, so it is not needed.

    Each version is one transaction, which also notes the version, so a version that is delivered again changes nothing. In complete mode
    it replaces all rows. Needs the package psycopg: ``pip install headrace[postgres]``. For example (this needs a database)::

        totals = calls.groupBy("src").agg(F.sum("seconds").alias("total"))
        query = totals.writeStream.outputMode("update").foreachBatch(hr.upsert("postgresql://localhost/shop", "totals", "src")).start()
    """
    where = user_line("upsert")
    chosen = (keys,) if isinstance(keys, str) else tuple(keys)
    if not chosen or len(set(chosen)) < len(chosen):
        raise QueryError(where=where, wanted="the columns that identify a row, each once", found=repr(keys))
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise QueryError(where=where, wanted="the package psycopg", found="none", hint="pip install headrace[postgres]") from None
    return Upsert(address, table, chosen, name, where)
