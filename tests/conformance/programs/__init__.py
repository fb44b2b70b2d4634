"""The programs, by what they show. Importing a module registers its programs."""

from tests.conformance.programs import (
    aggregates,
    chains,
    duplicates,
    joins,
    keys_and_types,
    more_joins,
    refused,
    sessions_and_windows,
    sql,
    sql_forms,
    stateful_python,
    steps,
    windows,
)

ALL = (
    aggregates,
    keys_and_types,
    windows,
    sessions_and_windows,
    joins,
    more_joins,
    duplicates,
    chains,
    steps,
    sql,
    sql_forms,
    stateful_python,
    refused,
)
