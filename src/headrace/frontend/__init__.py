"""The front end: from Spark's analysed plan of an unmodified PySpark program to Headrace's graph."""
