"""The kernels: stateful operators over Arrow, without Spark."""
