"""Decisions as pure functions: ``decide(observation, config) -> decisions``, one policy a file or a folder.

A policy reads no clock, does no I/O and knows no Spark. What it must remember it is given, and gives back. So the runtime and the simulator
can call the same function. Today a query can choose four policies by name (`elastic`); the simulator's scenarios run most of the others.

| policy            | from               | decides                                                              | queries | scenarios |
| ----------------- | ------------------ | -------------------------------------------------------------------- | ------- | --------- |
| `bottleneck`      | SEEP 5.1           | split instances that were too busy in several reports in a row       | yes     | yes       |
| `elastic_manager` | StreamCloud V.B    | how many instances, from their average utilisation                   | yes     | yes       |
| `load_balancer`   | StreamCloud V.B    | which slots move, from the deviation of utilisation                  | yes     | yes       |
| `rates`           | DS2                | the instances of all operators in one step, from true rates          | yes     | no        |
| `handover`        | StreamCloud V.A    | by which protocol slots get their new owner                          | yes     | no        |
| `homes`           | SEEP, Floe         | on which executor an instance runs                                   | yes     | no        |
| `hot`             | Headrace           | which slots are spread or cut, because one instance cannot bear them | yes     | no        |
| `pool`            | SEEP 5.2           | how many executors wait ready                                        | no      | yes       |
| `ring`            | Floe VI, VII       | moves and recovery between neighbours, without a coordinator         | no      | yes       |
| `correlation`     | Borealis 3.1       | which operators go to which nodes, so that each node's load varies little | no | yes       |
| `resilient`       | Borealis 3.2       | a static placement that bears many combinations of rates             | no      | yes       |
| `critical_path`   | Headrace           | how many instances, if stages run one after another                  | yes     | no        |
| `shedding`        | Borealis 4         | which tuples to drop where, by plans made in advance                 | yes     | yes       |
| `availability`    | Borealis 5.2       | which checkpoint task is next (in queries), and who backs up whom   | yes     | yes       |
| `replicas`        | replica groups 3.5 | where primaries and replicas are                                     | no      | yes       |
| `tiers`           | Borealis 2         | which of local, neighbourhood and global remedies is used when       | no      | no        |

Tests run `rates` and `tiers` on the simulator. `docs/architecture.md` says what will use the policies that no query uses yet.

`observation` and `decisions` are what goes in and out. `assignment` moves slots from busy instances to idle ones;
`headrace.state.levelling` assigns them anew. `checks` refuses impossible settings, and `wording` formats numbers in reasons.
Placement and shedding see a query as a graph (`network`). Placements are compared with simple ones (`baselines`), which no query uses.

For a running query, `elastic` has the user's settings and the policies by name. `batch_report` is what a micro-batch reports, and
`observing` makes observations of it. `governor` says which decisions are performed, and logs them all. `headrace.sim.replay` does the same
with recorded progress.

```
observation ─┐
config ──────┼─> decide ─┬─> decisions, each with its reason
memory ──────┘           └─> memory
```
"""
