"""Users' stateful code in Python: read from Spark's plans, and given PySpark's own classes in the tasks.

``nodes`` reads a plan, ``declared`` runs ``init`` once to learn the state variables. The rest runs in tasks: ``front`` makes PySpark's
objects, ``codecs`` converts state values, ``rows`` and ``frames`` convert the rows that the code gets and gives, and ``lazy`` has pandas
frames that are only filled when somebody looks.
"""
