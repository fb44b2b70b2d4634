"""Floe's ring (V.A, V.B, VI, VII): elasticity and recovery without a coordinator.

No running query uses it; scenarios of the simulator run it. It is for queries that keep replicas of their state on other executors, which
is not built yet.

Each node of the ring is a state machine: it gets an event, changes its state, and sends messages.

view.py        tokens, arcs, and the nodes that hold copies
messages.py    messages, events, decisions, the state of a node, and the settings
protocol.py    `decide`: handles an event
cuts.py        when a node is overloaded or light, and where its arc is cut
asking.py      requests for help and requests to leave, and the answers
handing.py     the hand-over of slots, once the neighbour has accepted
copies.py      replication, watching neighbours, taking over
turn.py        the state while one event is handled; all of these modify it
"""
