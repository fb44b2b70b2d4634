"""Everything that happens while a query runs."""
