"""Borealis Fig. 9: min-max checkpoint scheduling against whole checkpoints (the paper's baseline) and round-robin (ours).

5 servers with 16 aggregates each; from 150 s on, tuples take 90% of their CPU. (a) is the recovery time of the worst failure over time; (b)
is the delay of tuples by checkpoints.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from headrace.control.availability.backups import BackupConfig
from headrace.control.availability.scheduling import ScheduleConfig
from headrace.report.plots import Plot, Series
from headrace.sim.checkpointing import Aggregates, Checkpointed, CheckpointingServers
from headrace.sim.scenario import Claim, Options, Result, Scenario, number
from headrace.sim.workload import steps

MIN_MAX: Final = "min-max"
ROUND_ROBIN: Final = "round-robin"
WHOLE: Final = "whole"
SETTLED = 1 / 3
"""The share of each phase that is left out of its mean, because the cluster starts with everything captured."""


def run(options: Options, seed: int) -> Result:
    raised_s, duration_s = number(options, "raised_s"), number(options, "duration_s")
    about = Aggregates(
        int(options["servers"]),
        int(options["aggregates"]),
        steps((0.0, number(options, "load")), (raised_s, number(options, "raised_load"))),
        one_backup=bool(options["one_backup"]),
    )
    backups = BackupConfig() if options["reassign"] else None
    interval_s = number(options, "interval_s")
    gain_s = number(options, "gain_min_s")
    configs = (
        ScheduleConfig(MIN_MAX, gain_min_s=gain_s),
        ScheduleConfig(ROUND_ROBIN, gain_min_s=gain_s),
        ScheduleConfig(WHOLE, interval_s=interval_s),
    )
    seen = {config.method: CheckpointingServers(about, config, seed, backups).run(duration_s) for config in configs}
    phases = {"before": (raised_s * SETTLED, raised_s), "after": (raised_s + (duration_s - raised_s) * SETTLED, duration_s)}
    recovery = {name: {phase: _mean(each, each.recovery_s, span) for phase, span in phases.items()} for name, each in seen.items()}
    waited = {name: {phase: _mean(each, each.waited_s, span) for phase, span in phases.items()} for name, each in seen.items()}
    claims = (
        *(_recovery_claim(phase, {name: each[phase] for name, each in recovery.items()}) for phase in phases),
        Claim(
            "mean time that tuples wait for checkpoint tasks",
            "much less than with whole checkpoints",
            "; ".join(f"{name} {1000 * each['before']:.1f}, {1000 * each['after']:.1f} ms" for name, each in waited.items()),
            all(waited[MIN_MAX][phase] < waited[WHOLE][phase] / 2 for phase in phases),
        ),
        Claim(
            "longest task",
            "finer-grained",
            "; ".join(f"{name} {1000 * each.task_s_max:.0f} ms" for name, each in seen.items()),
            seen[MIN_MAX].task_s_max < seen[WHOLE].task_s_max,
        ),
    )
    return Result(
        claims,
        (
            Plot("Recovery time of the worst failure", "s", tuple(_line(name, each, each.recovery_s) for name, each in seen.items())),
            Plot("Wait of tuples for tasks", "ms", tuple(_line(name, each, 1000 * each.waited_s) for name, each in seen.items())),
        ),
        ("", "recovery before, s", "after, s", "wait before, ms", "after, ms", "longest task, ms", "tasks", "backups changed"),
        tuple(
            (
                name,
                *(f"{value:.2f}" for value in recovery[name].values()),
                *(f"{1000 * value:.2f}" for value in waited[name].values()),
                f"{1000 * each.task_s_max:.0f}",
                str(each.tasks),
                str(each.reassigned),
            )
            for name, each in seen.items()
        ),
        simulated_s=3 * duration_s,
        nodes=about.servers,
        note="with enough idle time, every unit worth a capture is captured, in whatever order: min-max and round-robin tie",
        figures={
            f"{what} {name} {phase}": value
            for what, found in (("recovery", recovery), ("wait", waited))
            for name, each in found.items()
            for phase, value in each.items()
        },
        held="",
    )


def _recovery_claim(phase: str, recovery_s: dict[str, float]) -> Claim:
    seen = "; ".join(f"{name} {value:.2f} s" for name, value in recovery_s.items())
    fastest = recovery_s[MIN_MAX] < min(recovery_s[ROUND_ROBIN], recovery_s[WHOLE])
    return Claim(f"recovery time of the worst failure, {phase} the rates rise", "min-max is fastest", seen, fastest)


def _mean(seen: Checkpointed, values: np.ndarray, span: tuple[float, float]) -> float:
    return float(values[(seen.at_s > span[0]) & (seen.at_s <= span[1])].mean())


def _line(name: str, seen: Checkpointed, values: np.ndarray) -> Series:
    return Series(name, seen.at_s.tolist(), values.tolist())


SCENARIOS = (
    Scenario(
        "borealis-fig9",
        "Borealis Fig. 9",
        "min-max scheduling recovers fastest, and hardly holds tuples back",
        {
            "servers": 5,
            "aggregates": 16,
            "load": 0.6,
            "raised_load": 0.9,
            "raised_s": 150.0,
            "duration_s": 300.0,
            "interval_s": 10.0,
            "gain_min_s": 0.02,
            "one_backup": False,
            "reassign": False,
        },
        run,
    ),
)
