"""The demo: a stream of calls whose rate rises and falls, the heavy-customers query on it, a live view, a check and a report."""
