"""The kernel of users' own stateful code, written for Spark: ``StatefulProcessor`` classes, and functions for ``applyInPandasWithState``.

The code runs unmodified. Its state is not Spark's state store, but typed Arrow rows in stores of the engine, one store per state variable.
So it is split, moved, replicated and shown like all other state. PySpark's own classes (rows, timer values, group states) come from a
`Front`, because kernels do not import PySpark.
"""
