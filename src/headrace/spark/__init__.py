"""The only package that uses py4j, Spark's JVM classes and PySpark's private names."""
