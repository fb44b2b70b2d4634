"""Replica placement (replica groups 3.5): which nodes hold the copies of each range of keys.

No running query uses it; the engine keeps no replicas yet.

model.py       ranges, hosts, the cost of shipping state, and the changes that lead from one arrangement to another
transport.py   replicas for primaries that stay where they are: Hungarian for one replica, the transport problem for more; only tests run it
together.py    primaries and replicas placed together, also if a node is overloaded; scenarios of the simulator run it
"""
