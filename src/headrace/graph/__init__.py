"""The user's query as a graph of frozen nodes."""
