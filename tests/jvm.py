"""How JVMs of tests are started: tests are many short Spark programs, whose start is much of their time.

The second compiler would be busy with code that is about to be thrown away, and the classes are Spark's own, which need not be verified
anew by each of thirty JVMs (an archive of loaded classes would save a little more, but takes longer to make than it saves in one run).
"""

from __future__ import annotations

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
