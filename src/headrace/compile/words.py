"""Expressions as text: see ``headrace.spark.words``."""

from headrace.spark.words import texts, words, words_over

__all__ = ["texts", "words", "words_over"]
