"""Decisions as pure functions: ``decide(observation, config) -> decisions``, one policy a file.

A policy reads no clock, does no I/O and knows no Spark; what it must remember it is given and gives back. The runtime and the simulator
drive the same functions.

| policy            | from               | decides                                                              |
| ----------------- | ------------------ | -------------------------------------------------------------------- |
| `bottleneck`      | SEEP 5.1           | split instances that were too busy in several reports in a row       |
| `pool`            | SEEP 5.2           | how many executors wait ready                                        |
| `elastic_manager` | StreamCloud V.B    | how many instances, from their average utilisation                   |
| `load_balancer`   | StreamCloud V.B    | which slots move, from the deviation of utilisation                  |
| `ring`            | Floe VI, VII       | the same without a centre: nodes talk to their neighbours (a folder) |
| `rates`           | DS2                | the instances of all operators in one step, from true rates          |
| `tiers`           | Borealis 2         | which of local, neighbourhood and global remedies is used when       |
| `correlation`     | Borealis 3.1       | which operators go to which nodes, so that each one's load varies little |
| `resilient`       | Borealis 3.2       | the same once for all, so that many combinations of rates are borne  |
| `shedding`        | Borealis 4         | which tuples to drop where, by plans made in advance                 |
| `availability`    | Borealis 5.2       | which checkpoint task is next, and who backs up whom                 |
| `replicas`        | replica groups 3.5 | where primaries and replicas are (a folder)                          |

`observation` and `decisions` are what goes in and out; `assignment` moves slots from busy instances to idle ones, and
`headrace.state.levelling` deals them out anew; `checks` refuses impossible settings. Placement and shedding see a query as a graph instead
(`network`), and have alternatives to be compared with (`baselines`) and queries to try (`trees`).
For a running query: `elastic` has the user's settings and the policies by name. `batch_report` is what a micro-batch reports, and
`observing` makes observations of it. `governor` says which decisions are performed, and logs them all. `headrace.sim.replay` does the same
with recorded progress.

```
observation ─┐
config ──────┼─> decide ─┬─> decisions, each with its reason
memory ──────┘           └─> memory
```
"""
