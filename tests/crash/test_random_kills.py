"""A kill at a random moment, while the routing changes too; ``make chaos`` does it for as long as one likes."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import Undisturbed
from tests.crash.faults import kill_at_random
from tests.crash.harness import Left, Program, write_input

KILLS = 1


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_at_random_moments(tmp_path: Path, undisturbed: Undisturbed) -> None:
    seed = int(os.environ.get("HEADRACE_SEED") or int.from_bytes(os.urandom(3)))
    print(f"seed {seed}: repeat with HEADRACE_SEED={seed}")
    random = Random(seed)
    # The graph of many operators takes several times as long; ``make chaos`` kills it too.
    kind = random.choice(("windowed", "dedup", "running"))
    source = write_input(tmp_path / "input", files=9, seed=seed)
    program = Program(kind, source, tmp_path / "crashed", changes=seed)
    for _ in range(KILLS):
        print(kill_at_random(program, random, random.randint(1, 3)))
    program.finish(2)
    difference = Left.of(program).difference(undisturbed(kind, source, tmp_path / "undisturbed"))
    assert not difference, f"seed {seed}: {difference}"
