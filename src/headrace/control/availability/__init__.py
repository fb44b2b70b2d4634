"""Availability (Borealis 5.2): servers back each other up in small units, in their idle time.

No running query uses it; scenarios of the simulator run it. It is for durable checkpoints at longer intervals. Today a query makes one in
every batch.

units.py        HA units, and how long their recovery takes
scheduling.py   the next checkpoint task of an idle server: min-max, round-robin, or whole checkpoints
backups.py      which server backs up which unit, so that the worst failure recovers faster
"""
