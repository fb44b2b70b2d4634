"""A campaign of faults against live queries, compared with Spark's batch answer: ``make chaos``, or ``python -m tests.chaos``."""
