"""Availability (Borealis 5.2): servers back each other up in small units, in their idle time.

Running queries use it for the order in which a checkpoint ships the state of instances. Scenarios of the simulator run all of it.

units.py        HA units, and how long their recovery takes
scheduling.py   the next checkpoint task of an idle server: min-max, round-robin, or whole checkpoints
ordering.py     the order of the units of one checkpoint to the durable store, in running queries
backups.py      which server backs up which unit, so that the worst failure recovers faster
"""
