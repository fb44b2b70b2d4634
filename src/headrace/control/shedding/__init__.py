"""Load shedding (Borealis 4): which tuples to drop where, so that no node is overloaded and the most results come out.

Running queries, which are one node whose costs are measured:
costs.py      what batches cost, learned from the run times of their jobs
table.py      the best plans for these costs, made ahead, looked up before each batch
pacing.py     how long a batch may take, so that rows keep their deadline

Networks of nodes, which only scenarios of the simulator have:
plan.py       a plan, its id, what it does to a query; the decision
program.py    the linear program: the best plan for given rates
quadtree.py   Solver and Solver-W: plans in advance for a space of rates, within an error bound
fit.py        FIT: feasible input tables, merged upstream
groups.py     which nodes build a table together, and all tables built in one place
gossip.py     the same tables by messages between the nodes; only tests run it
"""
