"""Reports: plots over time on a page, in one file that needs no network."""
