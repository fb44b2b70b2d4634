"""What users and our own tests test queries with."""
