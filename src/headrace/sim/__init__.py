"""A simulator that drives the policies of `headrace.control` at the papers' scale. Same seed, same trace.

```
workload ──rows──> Stage ──rows──> Stage ──> latencies        Stage: an operator's instances, an array per quantity
                     ^ CPU           ^                        Machines: what instances live on, and the pool
                  Machines <── start, fail ── Clock           Clock: a heap of events
                     ^                          │ every report_s
                     └─ changes <── decisions ── policies <── Observation          Checkers look at it all
```

How it is used:

>>> from headrace.ids import OperatorId
>>> from headrace.sim import model, policies, workload
>>> from headrace.sim.simulator import Simulator
>>> count = model.Operator(OperatorId("count"), {"lines": 1.0}, cost_s=1e-4, state=model.State(bytes_per_row=10, bytes_max=1e6))
>>> query = model.Query({"lines": workload.ramp(1_000, 30_000, 120)}, (count,))
>>> plan = model.Plan(query, duration_s=200, machines=model.MachineModel(start_s=20), spare=2)
>>> trace = Simulator(plan, [policies.seep()], policies.constant_pool(2, 20), seed=1).run()
>>> trace["instances.count"][[0, -1]].astype(int).tolist(), trace.violations
([1, 8], ())

| module      | what                                                                                                        |
| ----------- | ----------------------------------------------------------------------------------------------------------- |
| `model`     | what is simulated, as frozen values: Query, Operator, State, MachineModel, Settings, Fault, Plan            |
| `workload`  | rates over time and distributions of keys                                                                   |
| `policies`  | the policies with their memory; any function from an observation to decisions is one                         |
| `simulator` | `Simulator(plan, policies, pool, seed, listeners)`, `.run() -> Trace`                                        |
| `trace`     | time series as arrays, latencies, decisions, events, violations                                              |
| `checkers`  | what must hold, one file each                                                                               |
| `scenarios` | the papers' figures; `headrace simulate` lists and runs them                                                 |

A *listener* ``listener(sim, observation)`` is called after every report, for what is no plain policy (a ring of nodes that send messages,
say). It may use ``sim.clock.after(delay_s, action)``, ``sim.perform(decision)``, ``sim.stages[name]`` (``owners``, ``hosts``, ``holders``,
``reroute``), ``sim.machines`` (``take``, ``release``, ``speed``, ``zone``, ``alive``) and ``sim.fail(fault)``; ``recovery="none"`` leaves
recovery to it.

Rows are flows, amounts per tick, and no single tuples. It would change a decision where
- what counts is below a tick: a queue that comes and goes within one is not seen, and latencies are known to about a tick;
- an operator gets a few rows a second: half a row is processed, where a real one waits for a whole row;
- one key is heavier than its slot's share: a slot is split evenly over time, and never within itself;
- rows differ in cost: all rows of an operator cost the same, and arrive smoothly but for ``jitter``, so that below full load queues are
  shorter than those of single tuples.
Network counts for rows into an instance and for state on its way, each on its own: a transfer does not slow the rows beside it.
"""
