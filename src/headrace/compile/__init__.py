"""From the user's graph to what Spark and the kernels run."""
