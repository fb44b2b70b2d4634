"""A program that fails in every way that user code can, and is then interrupted."""
