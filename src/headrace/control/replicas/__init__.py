"""Replica placement (replica groups 3.5): which nodes hold the copies of each range of keys.

model.py       ranges, hosts, what shipping costs, and what has to be done to get from one arrangement to another
transport.py   replicas of primaries that stay where they are: Hungarian for one, the transport problem for more
together.py    primaries and replicas as one entity, also when a node is overloaded
"""
