"""Earlier batches of a query are read again on each supported version: these use what differs between the versions."""

from __future__ import annotations

from tests.integration.test_replayable import test_expressions_that_may_differ, test_sources_that_cannot_give_rows_again
from tests.integration.test_reread import (
    pytestmark,
    test_a_source_written_in_python,
    test_hidden_columns_of_files_and_a_compacted_log,
    test_offsets_that_spark_has_removed,
    test_sources_without_rows_in_a_batch_or_in_any_so_far,
    test_the_time_of_the_batch,
)

__all__ = [
    "pytestmark",
    "test_a_source_written_in_python",
    "test_expressions_that_may_differ",
    "test_hidden_columns_of_files_and_a_compacted_log",
    "test_offsets_that_spark_has_removed",
    "test_sources_that_cannot_give_rows_again",
    "test_sources_without_rows_in_a_batch_or_in_any_so_far",
    "test_the_time_of_the_batch",
]
