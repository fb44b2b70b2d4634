"""Availability (Borealis 5.2): servers that back each other up in small units, in their idle time.

units.py        HA units and what their recovery takes
scheduling.py   which checkpoint task an idle server does next: min-max, round-robin, or whole checkpoints
backups.py      which server backs up which unit: away from the worst point of failure
"""
