"""Every class and name of Spark that Headrace relies on exists in each supported version."""

from __future__ import annotations

from tests.integration.test_contract import (
    pytestmark,
    test_every_class_that_the_compiler_knows_by_name_exists,
    test_nodes_that_decide_about_correctness_are_in_the_contract,
    test_this_spark_fulfils_the_contract,
    unchecked,
)

__all__ = [
    "pytestmark",
    "test_every_class_that_the_compiler_knows_by_name_exists",
    "test_nodes_that_decide_about_correctness_are_in_the_contract",
    "test_this_spark_fulfils_the_contract",
    "unchecked",
]
