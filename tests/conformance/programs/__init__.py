"""The programs, by what they show. Importing a module registers its programs."""

from tests.conformance.programs import aggregates, duplicates, joins, refused, sql, steps, windows

ALL = (aggregates, windows, joins, duplicates, steps, sql, refused)
