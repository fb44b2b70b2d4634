"""The only package that uses py4j, Spark's JVM classes and PySpark's private names.

Importing it raises a SessionError if Headrace does not support the installed PySpark. That comes first: other modules of the package
import names that other versions of PySpark do not have.
"""

from headrace.spark.versions import pyspark_version

pyspark_version()
