"""Load shedding (Borealis 4): which tuples to drop where, so that no node is overloaded and the most results come out.

No running query uses it, so none drops rows; scenarios of the simulator run it.

plan.py       a plan, its id, what it does to a query; the decision
program.py    the linear program: the best plan for given rates
quadtree.py   Solver and Solver-W: plans in advance for a space of rates, within an error bound
fit.py        FIT: feasible input tables, merged upstream
groups.py     which nodes build a table together, and all tables built in one place
gossip.py     the same tables by messages between the nodes; only tests run it
"""
