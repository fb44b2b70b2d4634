"""Small PySpark programs as people write them, each run by plain Spark and by Headrace with one line changed."""
