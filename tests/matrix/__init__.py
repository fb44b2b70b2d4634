"""A short suite for each supported version of Spark: one query of each operator, a crash and a rescale.

``make test-matrix`` runs it on every version, each in an environment of its own. ``make test-all`` runs it on the version in ``.venv``,
and ``make test`` runs a part of it there, because other tests say the same.
"""
