"""A long random campaign against the engine: ``make chaos``, or ``python -m tests.chaos --seconds 600 --seed 7``.

Each round picks a query, an input and a number of instances for every start, then kills: the whole program at random moments, the
driver at named points, workers in the middle of a task; in half of the rounds the query's routing changes all the time. After the last
restart the output and the state must be those of a run that nobody disturbed. The first difference ends the campaign; its files are
kept, and the last line says how to repeat the round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.crash.batches import as_read_by
from tests.crash.driver import KINDS
from tests.crash.faults import disturb
from tests.crash.harness import Left, Program, write_input

FAULTS_MAX = 4


class Campaign:
    """Rounds, one after another, each from its own seed."""

    def __init__(self, seed: int, seconds: float, console: Console) -> None:
        self.seed = seed
        self.seconds = seconds
        self.console = console
        self.faults = 0

    def run(self, first: int, rounds: int | None) -> int:
        """Returns the number of rounds done; raises at the first difference."""
        began = time.monotonic()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        number = first
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task("starting", total=self.seconds)
            while time.monotonic() - began < self.seconds if rounds is None else number < first + rounds:
                self.round(number, lambda text: progress.update(bar, description=text, completed=time.monotonic() - began))
                number += 1
        return number - first

    def round(self, number: int, tell: Callable[[str], None]) -> None:
        """One query, disturbed a few times, compared in the end."""
        random = Random(f"{self.seed}/{number}")
        kind, files, faults = random.choice(KINDS), random.randint(5, 14), random.randint(1, FAULTS_MAX)
        work = Path(tempfile.mkdtemp(prefix=f"headrace-chaos-{self.seed}-{number}-"))
        source = write_input(work / "input", files, seed=random.randrange(2**31), rows=random.choice((20, 150, 3000)))
        program = Program(kind, source, work / "crashed", changes=random.choice((None, number)))
        about = f"round {number} (seed {self.seed}): {kind}, {files} batches" + (", routing changes" if program.changes is not None else "")
        done: list[str] = []
        try:
            for fault in range(faults):
                tell(f"{about}: fault {fault + 1} of {faults}")
                done.append(disturb(program, random))
            tell(f"{about}: finishing")
            program.finish(random.randint(1, 4))
            tell(f"{about}: undisturbed run")
            calm = Program(kind, as_read_by(program, work / "joined"), work / "undisturbed")
            calm.finish(2)
            difference = Left.of(program).difference(Left.of(calm))
            if difference:
                raise AssertionError(difference)
        except BaseException:
            self.console.print(f"[red]{about}: failed[/red] after: {' | '.join(done)}; files in {work}", highlight=False, soft_wrap=True)
            self.console.print(f"repeat with: python -m tests.chaos --seed {self.seed} --round {number}", highlight=False, soft_wrap=True)
            raise
        self.faults += faults
        self.console.print(f"{about}, {faults} faults: same. {' | '.join(done)}", highlight=False, soft_wrap=True)
        shutil.rmtree(work)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.chaos", description="Random faults against a live query.")
    arguments.add_argument("--seconds", type=float, default=300, help="start no new round after this time (300)")
    arguments.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)), help="of all random choices (a new one)")
    arguments.add_argument("--round", type=int, help="only this round of the seed's campaign")
    given = arguments.parse_args()
    console = Console()
    console.print(f"chaos: seed {given.seed}, {given.seconds:.0f} s", highlight=False, soft_wrap=True)
    campaign = Campaign(given.seed, given.seconds, console)
    try:
        rounds = campaign.run(given.round or 0, None if given.round is None else 1)
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    except Exception as failed:
        if not isinstance(failed, AssertionError):
            traceback.print_exc()
        console.print(f"[red]{failed}[/red]", highlight=False, markup=not isinstance(failed, AssertionError))
        return 1
    console.print(f"chaos: {rounds} round(s), {campaign.faults} fault(s), no difference", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
