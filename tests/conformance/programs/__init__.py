"""The programs, by what they show. Importing a module registers its programs."""

from tests.conformance.programs import aggregates, duplicates, joins, refused, sql, stateful_python, steps, windows

ALL = (aggregates, windows, joins, duplicates, steps, sql, stateful_python, refused)
