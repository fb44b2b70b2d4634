"""The user's API: streams, grouped streams, writers and query handles."""
