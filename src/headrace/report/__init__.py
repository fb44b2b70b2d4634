"""Reports: plots over time and a page that holds them, in one file that needs no network."""
