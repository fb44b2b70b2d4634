"""From the state of a plain Spark query to the state of ours: per kind of node, a function from Spark's rows to the rows of our stores."""
