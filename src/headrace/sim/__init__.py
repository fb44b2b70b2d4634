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
>>> state = model.SimulatedState(bytes_per_row=10, bytes_max=1e6)
>>> count = model.SimulatedOperator(OperatorId("count"), {"lines": 1.0}, cost_s=1e-4, state=state)
>>> query = model.SimulatedQuery({"lines": workload.ramp(1_000, 30_000, 120)}, (count,))
>>> plan = model.SimulationPlan(query, duration_s=200, machines=model.MachineModel(start_s=20), spare=2)
>>> trace = Simulator(plan, [policies.seep()], policies.constant_pool(2, 20), seed=1).run()
>>> trace["instances.count"][[0, -1]].astype(int).tolist(), trace.violations
([1, 8], ())

| module      | what                                                                                                        |
| ----------- | ----------------------------------------------------------------------------------------------------------- |
| `model`     | what is simulated, as frozen values: SimulationPlan, SimulatedQuery, SimulatedOperator, MachineModel, Fault |
| `workload`  | rates over time and distributions of keys                                                                   |
| `policies`  | the policies with their memory; a policy is any function from an observation to decisions                    |
| `simulator` | `Simulator(plan, policies, pool, seed, listeners)`, `.run() -> Trace`                                        |
| `trace`     | time series as arrays, latencies, decisions, events, violations                                              |
| `checkers`  | invariants of every run, one file each                                                                      |
| `scenarios` | the papers' figures; `headrace simulate` lists and runs them                                                 |

A *listener* ``listener(sim, observation)`` is called after every report. It is for control that is more than a policy, such as a ring of
nodes that send messages. It may use ``sim.clock.after(delay_s, action)``, ``sim.perform(decision)``, ``sim.fail(fault)``,
``sim.stages[name]`` (``owners``, ``hosts``, ``holders``, ``reroute``) and ``sim.machines`` (``take``, ``release``, ``speed``, ``zone``,
``alive``). The setting ``recovery="none"`` leaves recovery to it.

Rows are simulated as flows (amounts per tick), not as single tuples. A real system may decide differently where
- events are shorter than a tick: a queue that builds up and drains within a tick is not seen, and latencies are exact to about a tick;
- an operator gets a few rows a second: the simulator processes half a row, where a real operator waits for a whole one;
- one key is very heavy: the simulator knows only the load of whole slots, not of the keys in a slot;
- rows differ in cost: here all rows of an operator cost the same. They arrive smoothly except for ``jitter``, so below full load queues
  are shorter than with single tuples.
The network limits rows into an instance and transfers of state independently: a transfer does not slow down rows.
"""
