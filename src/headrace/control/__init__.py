"""Policies: pure functions from what was observed to what is to be done. Only the runtime does it."""
