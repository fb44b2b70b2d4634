"""Floe's ring (V.A, V.B, VI, VII): elasticity and recovery without a centre, as messages in and messages out.

view.py        tokens, arcs, and who holds copies
messages.py    what nodes say, remember and decide; the settings
protocol.py    an event comes in: `decide`
cuts.py        when a node is overloaded or light, and where its arc is cut
asking.py      who asks whom for help, or to take all
handing.py     the hand-over, once it is agreed on
copies.py      replication, watching a neighbour, taking over
turn.py        one node's turn, which all of these write to
"""
